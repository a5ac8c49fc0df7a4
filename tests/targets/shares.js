// Four functions that do one, two, three and four parts of the work of a fifth, which calls each
// from a place of its own, until SIGTERM. All are small enough to be inlined.
'use strict';

function s_one(n) {
  let s = n;
  for (let i = 0; i < 300; i++) s = (Math.imul(s, 31) + i) | 0;
  return s;
}
function s_two(n) {
  let s = n;
  for (let i = 0; i < 600; i++) s = (Math.imul(s, 37) + i) | 0;
  return s;
}
function s_three(n) {
  let s = n;
  for (let i = 0; i < 900; i++) s = (Math.imul(s, 41) + i) | 0;
  return s;
}
function s_four(n) {
  let s = n;
  for (let i = 0; i < 1200; i++) s = (Math.imul(s, 43) + i) | 0;
  return s;
}
function s_all(n) {
  return (s_one(n) + s_two(n) + s_three(n) + s_four(n)) | 0;
}

let sum = 0;
let on = true;
function turn() {
  for (let i = 0; i < 500; i++) sum = (sum + s_all(i)) | 0;
  if (on) setImmediate(turn);
  else process.exit(17);
}
process.on('SIGTERM', () => {
  on = false;
});
// Compiled by the time of the recording.
for (let i = 0; i < 20000; i++) sum = (sum + s_all(i)) | 0;
turn();
console.log('ready');
