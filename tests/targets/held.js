// A chain of calls that holds still, in a loop or asleep, until SIGTERM or SIGKILL.
'use strict';
const fs = require('node:fs');
const cell = new Int32Array(new SharedArrayBuffer(4));

function heldLeaf(kind) {
  fs.writeSync(1, 'ready\n');
  if (kind === 'asleep') return Atomics.wait(cell, 0, 0, 600000);
  for (let i = 0; ; i++) if (cell[0] !== 0) return i;
}
const holder = {
  heldMethod(kind) {
    return heldLeaf(kind) + 1;
  },
};
function heldCallback(kind) {
  return holder.heldMethod(kind);
}
function heldRoot(kind) {
  return [kind].map(heldCallback)[0];
}

setImmediate(() => heldRoot(process.argv[2]));
