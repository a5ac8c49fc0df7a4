// One function that only matches a regular expression, until SIGTERM.
'use strict';

const text = 'ab'.repeat(2000);
function matching() {
  return /(a|b|ab)*c/.test(text.slice(0, 14)) || /[^a]b{2,}a/.test(text);
}

let on = true;
function turn() {
  for (let i = 0; i < 20; i++) matching();
  if (on) setImmediate(turn);
  else process.exit(17);
}
process.on('SIGTERM', () => {
  on = false;
});
for (let i = 0; i < 200; i++) matching();
turn();
console.log('ready');
