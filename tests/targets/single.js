// Every function whose name begins with `c_` has one caller, which follows it here; `-` stands for
// none, and a function that calls itself has itself besides. Until SIGTERM.
//
//   c_turn < -
//   c_plain1 < c_turn
//   c_plain2 < c_plain1
//   c_plain3 < c_plain2
//   c_long < c_turn
//   c_long_leaf < c_long
//   c_recurse < c_turn c_recurse
//   c_recurse_leaf < c_recurse
//   c_closures < c_turn
//   c_closure < c_closures
//   c_closure_leaf < c_closure
//   c_classes < c_turn
//   c_method < c_classes
//   c_super < c_method
//   c_getter < c_classes
//   c_getter_leaf < c_getter
//   c_static < c_classes
//   c_built < c_classes
//   c_generators < c_turn
//   c_generator < c_generators
//   c_generator_leaf < c_generator
//   c_async1 < c_turn -
//   c_async2 < c_async1 -
//   c_async_before < c_async2
//   c_async_after < c_async2
//   c_mapping < c_turn
//   c_mapped < c_mapping
//   c_mapped_leaf < c_mapped
//   c_sorting < c_turn
//   c_compared < c_sorting
//   c_reviving < c_turn
//   c_revived < c_reviving
//   c_replacing < c_turn
//   c_replaced < c_replacing
//   c_proxies < c_turn
//   c_trap < c_proxies
//   c_converting < c_turn
//   c_value < c_converting
//   c_applying < c_turn
//   c_applied < c_applying
//   c_bound < c_applying
//   c_reflected < c_applying
//   c_throwing < c_turn
//   c_throws < c_throwing
//   c_finally < c_throwing
//   c_caught < c_throwing
//   c_dropping < c_turn
//   c_dropped < c_dropping
//   c_dropped_leaf < c_dropped
//   c_arguments < c_turn
//   c_fewer < c_arguments
//   c_more < c_arguments
//   c_polymorphic < c_turn
//   c_shape < c_polymorphic
'use strict';

let sum = 0;

function c_plain3(n) {
  let s = n;
  for (let i = 0; i < 60; i++) s = (s * 31 + i) | 0;
  return s;
}
function c_plain2(n) {
  return c_plain3(n) + (n & 3);
}
function c_plain1() {
  let t = 0;
  for (let i = 0; i < 300; i++) t = (t + c_plain2(i)) | 0;
  return t;
}

// Entered in the middle of its loop once it is optimized.
function c_long_leaf(x) {
  return Math.sqrt(x) * 1.5 + x % 7;
}
function c_long() {
  let t = 0;
  for (let i = 0; i < 20000; i++) t += c_long_leaf(i);
  return t | 0;
}

function c_recurse_leaf(n) {
  let s = n;
  for (let i = 0; i < 20; i++) s = (s * 17 + i) | 0;
  return s;
}
function c_recurse(n) {
  if (n <= 0) return 1;
  return (c_recurse(n - 1) + c_recurse_leaf(n)) | 0;
}

function makeClosure(k) {
  const c_closure_leaf = (x) => {
    let s = x;
    for (let i = 0; i < 30; i++) s = (s * k + i) | 0;
    return s;
  };
  return function c_closure(x) {
    return (c_closure_leaf(x) + k) | 0;
  };
}
const closures = [makeClosure(3), makeClosure(5), makeClosure(7)];
function c_closures() {
  let t = 0;
  for (let i = 0; i < 300; i++) t = (t + closures[i % 3](i)) | 0;
  return t;
}

function c_getter_leaf(n) {
  let s = n;
  for (let i = 0; i < 30; i++) s = (s ^ (s << 3)) + i | 0;
  return s;
}
class Base {
  c_super(n) {
    let s = n;
    for (let i = 0; i < 30; i++) s = (s * 13 + i) | 0;
    return s;
  }
}
function c_built(n) {
  let s = n;
  for (let i = 0; i < 30; i++) s = (s * 11 + i) | 0;
  this.n = s;
}
class Derived extends Base {
  constructor(n) {
    super();
    this.n = n;
  }
  c_method(n) {
    return (super.c_super(n) + this.n) | 0;
  }
}
const accessors = {
  n: 3,
  get value() {
    return 0;
  },
};
Object.defineProperty(accessors, 'value', {
  get: function c_getter() {
    return c_getter_leaf(this.n++);
  },
});
class Holder {
  static c_static(n) {
    let s = n;
    for (let i = 0; i < 30; i++) s = (s * 19 + i) | 0;
    return s;
  }
}
function c_classes() {
  let t = 0;
  const it = new Derived(5);
  for (let i = 0; i < 150; i++) {
    t = (t + it.c_method(i) + accessors.value + Holder.c_static(i) + new c_built(i).n) | 0;
  }
  return t;
}

function c_generator_leaf(n) {
  let s = n;
  for (let i = 0; i < 30; i++) s = (s * 23 + i) | 0;
  return s;
}
function* c_generator(n) {
  for (let i = 0; i < n; i++) yield c_generator_leaf(i);
}
function c_generators() {
  let t = 0;
  for (const value of c_generator(200)) t = (t + value) | 0;
  return t;
}

function c_async_before(n) {
  let s = n;
  for (let i = 0; i < 1500; i++) s = (s * 29 + i) | 0;
  return s;
}
function c_async_after(n) {
  let s = n;
  for (let i = 0; i < 1500; i++) s = (s * 37 + i) | 0;
  return s;
}
async function c_async2(n) {
  let t = c_async_before(n);
  for (let i = 0; i < 4; i++) {
    await null;
    t = (t + c_async_after(i)) | 0;
  }
  return t;
}
async function c_async1(n) {
  sum = (sum + (await c_async2(n))) | 0;
}

const numbers = Array.from({ length: 200 }, (_, i) => (i * 7919) % 1009);
function c_mapped_leaf(n) {
  let s = n;
  for (let i = 0; i < 30; i++) s = (s * 41 + i) | 0;
  return s;
}
function c_mapped(n) {
  return c_mapped_leaf(n) + 1;
}
function c_mapping() {
  return numbers.map(c_mapped).length;
}

function c_compared(a, b) {
  let s = a - b;
  for (let i = 0; i < 4; i++) s += i & 0;
  return s;
}
function c_sorting() {
  return numbers.slice().sort(c_compared)[0];
}

const text = JSON.stringify(numbers);
function c_revived(key, value) {
  let s = value | 0;
  for (let i = 0; i < 10; i++) s = (s * 43 + i) | 0;
  return s;
}
function c_reviving() {
  return JSON.parse(text, c_revived) | 0;
}

const letters = 'abcdefghij'.repeat(20);
function c_replaced(match, at) {
  let s = at | 0;
  for (let i = 0; i < 10; i++) s = (s * 47 + i) | 0;
  return s & 1 ? 'x' : match;
}
function c_replacing() {
  return letters.replace(/[aeiou]/g, c_replaced).length;
}

const proxy = new Proxy(numbers, {
  get: function c_trap(target, key) {
    let s = 1;
    for (let i = 0; i < 30; i++) s = (s * 53 + i) | 0;
    return (target[key] + s) | 0;
  },
});
function c_proxies() {
  let t = 0;
  for (let i = 0; i < 150; i++) t = (t + proxy[i]) | 0;
  return t;
}

const convertible = {
  valueOf: function c_value() {
    let s = 1;
    for (let i = 0; i < 30; i++) s = (s * 59 + i) | 0;
    return s;
  },
};
function c_converting() {
  let t = 0;
  for (let i = 0; i < 200; i++) t = (t + convertible * 1) | 0;
  return t;
}

function c_applied(a, b, c) {
  let s = a;
  for (let i = 0; i < 30; i++) s = (s * 61 + b + c + i) | 0;
  return s;
}
const bound = function c_bound(a, b) {
  let s = a;
  for (let i = 0; i < 30; i++) s = (s * 67 + b + i) | 0;
  return s;
}.bind(null, 5);
function c_reflected(a) {
  let s = a;
  for (let i = 0; i < 30; i++) s = (s * 71 + i) | 0;
  return s;
}
function c_applying() {
  let t = 0;
  for (let i = 0; i < 150; i++) {
    t = (t + c_applied.apply(null, [i, 2, 3]) + bound(i)) | 0;
    t = (t + Reflect.apply(c_reflected, null, [i])) | 0;
  }
  return t;
}

function c_throws(n) {
  let s = n;
  for (let i = 0; i < 100; i++) s = (s * 73 + i) | 0;
  throw s;
}
function c_finally(n) {
  let s = n;
  for (let i = 0; i < 100; i++) s = (s * 79 + i) | 0;
  return s;
}
function c_caught(n) {
  let s = n;
  for (let i = 0; i < 100; i++) s = (s * 83 + i) | 0;
  return s;
}
function c_throwing() {
  let t = 0;
  for (let i = 0; i < 40; i++) {
    try {
      c_throws(i);
    } catch (thrown) {
      t = (t + c_caught(thrown)) | 0;
    } finally {
      t = (t + c_finally(i)) | 0;
    }
  }
  return t;
}

// Functions that are dropped after a few calls: they are interpreted.
let made = 0;
function c_dropping() {
  const c_dropped = new Function(`
    function c_dropped_leaf(n) {
      let s = n;
      for (let i = 0; i < 300; i++) s = (s * ${(made++ % 90) + 3} + i) | 0;
      return s;
    }
    return function c_dropped(n) { return c_dropped_leaf(n) + 1; };
  `)();
  return (c_dropped(1) + c_dropped(2)) | 0;
}

function c_fewer(a, b, c) {
  let s = a;
  for (let i = 0; i < 20; i++) s = (s * 89 + (b === undefined ? 1 : 2) + i) | 0;
  return s + (c === undefined ? 0 : 1);
}
function c_more(a) {
  let s = a;
  for (let i = 0; i < 20; i++) s = (s * 97 + arguments.length + i) | 0;
  return s;
}
function c_arguments() {
  let t = 0;
  for (let i = 0; i < 200; i++) t = (t + c_fewer(i) + c_more(i, 1, 2, 3, 4)) | 0;
  return t;
}

// Made and thrown away again by the optimizing compiler.
const shapes = [{ x: 1 }, { y: 1, x: 2 }, { z: 1, y: 2, x: 3 }, { w: 1, x: 1.5 }, { v: 0, x: '4' }];
function c_shape(it) {
  let s = it.x | 0;
  for (let i = 0; i < 30; i++) s = (s * 101 + it.x + i) | 0;
  return s;
}
function c_polymorphic(turn) {
  let t = 0;
  const kinds = 1 + (turn % 5);
  for (let i = 0; i < 200; i++) t = (t + c_shape(shapes[i % kinds])) | 0;
  return t;
}

let turns = 0;
let on = true;
function c_turn() {
  sum = (sum + c_plain1() + c_long() + c_recurse(60) + c_closures() + c_classes()) | 0;
  sum = (sum + c_generators() + c_mapping() + c_sorting() + c_reviving() + c_replacing()) | 0;
  sum = (sum + c_proxies() + c_converting() + c_applying() + c_throwing() + c_dropping()) | 0;
  sum = (sum + c_arguments() + c_polymorphic(turns++)) | 0;
  c_async1(turns);
  if (on) setImmediate(c_turn);
  else process.exit(17);
}

process.on('SIGTERM', () => {
  on = false;
});
setImmediate(c_turn);
console.log('ready');
