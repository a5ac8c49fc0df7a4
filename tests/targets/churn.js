// Makes functions, runs each until it is compiled, and drops it, until SIGTERM. Ten functions call
// them: `stub_3` calls only functions with a 3 at the end of the number in their names. Their code
// takes the places of earlier ones.
'use strict';

function makeStub(digit) {
  return new Function(`return function stub_${digit}(made, n) { return made(n) + 1; }`)();
}
const stubs = Array.from({ length: 10 }, (_, digit) => makeStub(digit));

function make(number) {
  const lines = Array.from({ length: number % 7 }, (_, i) => `s = (s ^ ${i}) + 3 | 0;`).join(' ');
  return new Function(`
    function leaf_${number}(n) {
      let s = n;
      for (let i = 0; i < 40; i++) { s = (s * ${3 + (number % 90)} + i) | 0; ${lines} }
      return s;
    }
    return function made_${number}(n) { return leaf_${number}(n) + leaf_${number}(n + 1); };
  `)();
}

let number = 0;
let on = true;
let sum = 0;
function turn() {
  for (let i = 0; i < 20; i++) {
    number++;
    const made = make(number);
    const calls = number % 3 === 0 ? 4000 : 100;
    for (let n = 0; n < calls; n++) sum = (sum + stubs[number % 10](made, n)) | 0;
  }
  if (on) setImmediate(turn);
  else process.exit(17);
}
process.on('SIGTERM', () => {
  on = false;
});
setImmediate(turn);
console.log('ready');
