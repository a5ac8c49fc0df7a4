// Does a fixed amount of work when it is told to, and prints what time that took.
//
// node fixed.js ROUNDS DEPTH: the work is done below so many calls. It begins after a line on
// standard input, with code that is warm.
'use strict';
const { readSync } = require('node:fs');

const [rounds, depth] = process.argv.slice(2).map(Number);
const text = Array.from({ length: 2000 }, (_, i) => `word${(i * 7919) % 503}`).join(' ');

function countWords() {
  const counts = new Map();
  for (const word of text.split(' ')) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts.keys()].sort((one, other) => counts.get(other) - counts.get(one)).length;
}
function fibonacci(n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
function work(count) {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += fibonacci(15) + countWords();
  return sum;
}
function below(calls, count) {
  return calls > 0 ? below(calls - 1, count) + 1 : work(count);
}

for (let i = 0; i < 100; i++) below(depth, Math.ceil(rounds / 100));
readSync(0, Buffer.alloc(1));
const start = process.hrtime.bigint();
const used = process.cpuUsage();
below(depth, rounds);
const { user, system } = process.cpuUsage(used);
console.log(`elapsed_ms ${Number(process.hrtime.bigint() - start) / 1e6}`);
console.log(`cpu_ms ${(user + system) / 1e3}`);
