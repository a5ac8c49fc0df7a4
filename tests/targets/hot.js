// One chain of calls in code that is compiled when it gets hot, and a builtin that calls back,
// until SIGTERM.
function leafHot(n) {
  let sum = 0;
  for (let i = 0; i < 50; i++) sum = (sum * 31 + n + i) | 0;
  return sum;
}

function parentHot(n) {
  return leafHot(n) + 1;
}

function rootHot() {
  let total = 0;
  for (let i = 0; i < 2000; i++) total += parentHot(i);
  return total;
}

const words = Array.from({ length: 1000 }, (_, i) => (i * 7919) % 10007);
function compareWords(a, b) {
  return a - b;
}

function rootSort() {
  return words.slice().sort(compareWords).length;
}

let on = true;
process.on('SIGTERM', () => {
  on = false;
});

function loop() {
  rootHot();
  rootSort();
  if (on) setImmediate(loop);
  else process.exit(17);
}

// V8 writes a dump of its code two megabytes at a time. With `names` everything is compiled early,
// and enough code follows it that V8 writes the names.
if (process.argv[2] === 'names') {
  for (let i = 0; i < 500; i++) {
    rootHot();
    rootSort();
  }
  for (let i = 0; i < 5000; i++) new Function('n', `return n + ${i};`)(i);
}

loop();
console.log('ready');
