// Functions that run in every way that the engine has, on the main thread and on a worker, until
// SIGTERM.
const { Worker, isMainThread } = require('node:worker_threads');

function leaf(n) {
  let sum = 0;
  for (let i = 0; i < 40; i++) sum = (sum * 31 + n + i) | 0;
  return sum;
}

function parent(n) {
  return leaf(n) + 1;
}

class Shape {
  constructor(side) {
    this.side = side;
  }
  get area() {
    return this.side * this.side + leaf(this.side);
  }
  static of(side) {
    return new Shape(side);
  }
  *corners() {
    for (let i = 0; i < 4; i++) yield this.side + i;
  }
}

function recursive(n) {
  return n < 2 ? n : recursive(n - 1) + recursive(n - 2);
}

function closures(n) {
  const add = (a) => (b) => a + b + n;
  let sum = 0;
  for (let i = 0; i < 50; i++) sum += add(i)(n);
  return sum;
}

function builtins(n) {
  const values = Array.from({ length: 60 }, (_, i) => (i * 7919 + n) % 101);
  values.sort(function compare(a, b) {
    return a - b;
  });
  const text = JSON.stringify(values.map((value) => ({ value })));
  return JSON.parse(text, function revive(_, value) {
    return value;
  }).reduce((sum, it) => sum + it.value, 0);
}

function generators(n) {
  let sum = 0;
  for (const corner of Shape.of(n).corners()) sum += corner;
  return sum;
}

function proxied(n) {
  const proxy = new Proxy({}, {
    get(_, name) {
      return name.length + n;
    },
  });
  return proxy.some + proxy.other;
}

function thrown(n) {
  try {
    if (n % 3 === 0) throw new Error('thrown');
    return n;
  } catch {
    return 0;
  }
}

function longLoop() {
  let sum = 0;
  for (let i = 0; i < 30000; i++) sum = (sum + parent(i)) | 0;
  return sum;
}

async function later(n) {
  await null;
  return leaf(n);
}

function churned(n) {
  return new Function('n', `return n * ${n % 1000};`)(n);
}

function round(n) {
  let sum = longLoop() + recursive(12);
  for (let i = 0; i < 100; i++) {
    sum += closures(i) + Shape.of(i).area + generators(i) + proxied(i) + thrown(i);
  }
  return sum + builtins(n) + churned(n);
}

let on = true;
process.on('SIGTERM', () => process.exit(17));

async function loop(n) {
  round(n);
  await later(n);
  if (on) setImmediate(loop, n + 1);
}

if (isMainThread) new Worker(__filename);
loop(0);
if (isMainThread) console.log('ready');
