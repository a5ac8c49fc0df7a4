// A function that calls itself 600 times before it calls one that works, until SIGTERM.
'use strict';

function deepLeaf(n) {
  let sum = n;
  for (let i = 0; i < 300000; i++) sum = (Math.imul(sum, 31) + i) | 0;
  return sum;
}
function deep(n) {
  return n > 1 ? deep(n - 1) + 1 : deepLeaf(n);
}

let sum = 0;
let on = true;
function turn() {
  for (let i = 0; i < 20; i++) sum = (sum + deep(600)) | 0;
  if (on) setImmediate(turn);
  else process.exit(17);
}
process.on('SIGTERM', () => {
  on = false;
});
turn();
console.log('ready');
