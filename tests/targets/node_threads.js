'use strict';
// Threads of all kinds that work, and say which ones they are.
const { Worker, isMainThread, parentPort, threadId } = require('worker_threads');
const crypto = require('crypto');
const fs = require('fs');

// A synchronous call runs in the thread that asks, another one in the pool.
const own = () => fs.readlinkSync('/proc/thread-self').split('/').pop();

function work() {
  const end = Date.now() + 5;
  let sum = 0;
  while (Date.now() < end) sum += Math.sqrt(sum + 1);
  setImmediate(work);
  return sum;
}

function hash() {
  crypto.pbkdf2('a', 'b', 5000, 32, 'sha512', hash);
}

if (isMainThread) {
  const names = [undefined, 'a name', 'a name that is far longer than one of the kernel'];
  const started = names.map((name) => new Promise((resolve) => {
    const worker = new Worker(__filename, { name });
    worker.on('message', (tid) => {
      const shown = name === undefined ? '' : ` (${name})`;
      console.log(`thread-${tid} worker ${worker.threadId}${shown}`);
      resolve();
    });
  }));
  const pool = new Set();
  const find = (resolve) => fs.readlink('/proc/thread-self', (error, link) => {
    if (error) throw error;
    pool.add(link.split('/').pop());
    if (pool.size === 4) return resolve();
    return crypto.pbkdf2('a', 'b', 500, 32, 'sha512', () => find(resolve));
  });
  for (let index = 0; index < 8; index++) started.push(new Promise(find));
  Promise.all(started).then(() => {
    pool.forEach((tid) => console.log(`thread-${tid} libuv pool`));
    console.log(`thread-${own()} main`);
    console.log('ready');
    work();
    for (let index = 0; index < 8; index++) hash();
  });
  process.on('SIGTERM', () => process.exit(17));
} else {
  parentPort.postMessage(own());
  work();
}
