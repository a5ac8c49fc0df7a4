// Two workers at a time, each of which ends soon. Each one works in another of four functions, which
// are inlined into the same one, until SIGTERM.
'use strict';
const { Worker, isMainThread, workerData } = require('node:worker_threads');

if (isMainThread) {
  let started = 0;
  let on = true;
  const start = () => {
    const worker = new Worker(__filename, { workerData: started++ % 4 });
    worker.on('exit', () => (on ? start() : process.exit(17)));
  };
  process.on('SIGTERM', () => {
    on = false;
  });
  start();
  start();
  console.log('ready');
} else {
  const multiplied = (n, by) => {
    let sum = 0;
    for (let i = 0; i < 300; i++) sum = (Math.imul(sum, by) + i * n) | 0;
    return sum;
  };
  const passing = [
    function passing_0(n) {
      return multiplied(n, 31);
    },
    function passing_1(n) {
      return multiplied(n, 33);
    },
    function passing_2(n) {
      return multiplied(n, 35);
    },
    function passing_3(n) {
      return multiplied(n, 37);
    },
  ][workerData];
  const host = (n) => {
    let sum = 0;
    for (let i = 0; i < 20; i++) sum += passing(i + n);
    return sum;
  };
  // Some live for longer than names need to be read.
  const end = Date.now() + 60 + Math.random() * 400;
  let sum = 0;
  while (Date.now() < end) sum += [1, 2, 3, 4].map(host).length;
}
