// Two worker threads and the main thread, each in functions of its own, until SIGTERM.
'use strict';
const { Worker, isMainThread, workerData, parentPort } = require('node:worker_threads');

function mix(n) {
  let s = n;
  for (let i = 0; i < 3000; i++) s = (s * 31 + i) | 0;
  return s;
}
const work = {
  main: function ofMain(n) {
    return mix(n) + 1;
  },
  first: function ofFirst(n) {
    return mix(n) + 2;
  },
  second: function ofSecond(n) {
    return mix(n) + 3;
  },
};

let on = true;
function turn(kind) {
  let t = 0;
  for (let i = 0; i < 50; i++) t = (t + work[kind](i)) | 0;
  if (on) setImmediate(turn, kind);
  else if (isMainThread) process.exit(17);
  return t;
}

if (isMainThread) {
  let ready = 0;
  for (const kind of ['first', 'second']) {
    new Worker(__filename, { workerData: kind }).on('message', () => {
      if (++ready < 2) return;
      turn('main');
      console.log('ready');
    });
  }
  process.on('SIGTERM', () => {
    on = false;
  });
} else {
  parentPort.postMessage('ready');
  turn(workerData);
}
