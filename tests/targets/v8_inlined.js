// Calls `rest` from functions that are inlined into each other: by the optimizing compiler, or with
// `maglev` by the one before it. Needs --allow-natives-syntax.
const fs = require('node:fs');
const buffer = Buffer.alloc(1);
let isCold = true;

function stackOf(sites) {
  return sites.map((site) => ({
    name: site.getFunctionName() || '',
    file: site.getFileName() || '',
    line: site.getLineNumber() || 0,
  }));
}

function told() {
  Error.stackTraceLimit = 100;
  Error.prepareStackTrace = (_, sites) => stackOf(sites);
  const stack = new Error().stack;
  Error.prepareStackTrace = undefined;
  return stack.slice(1);
}

function say(value) {
  process.stdout.write(JSON.stringify(value) + '\n');
}

function rest() {
  if (isCold) return 1;
  // All on one line, so that it is the same for both.
  const stack = told(); say({ expected: 'rest', stack }); fs.readSync(0, buffer);
  return 1;
}

function innermost(a) {
  return a +
    rest();
}

function inner(a) {
  let sum = 0;
  for (let i = 0; i < 2; i++) sum += innermost(a);
  return sum;
}

function middle(a) {
  return inner(a) +
    inner(a + 1);
}

class Outer {
  outer(a) {
    return middle(a) + 1;
  }
}

function through(values) {
  return values.map((value) => innermost(value)).length;
}

const object = new Outer();
const outer = object.outer;
const all = [outer, middle, inner, innermost, through];
%NeverOptimizeFunction(rest);
for (const one of all) %PrepareFunctionForOptimization(one);
for (let i = 0; i < 200; i++) {
  object.outer(i);
  through([1, 2]);
}
// Not all versions know the other one.
const isMaglev = process.argv.includes('maglev');
const native = isMaglev ? '%OptimizeMaglevOnNextCall' : '%OptimizeFunctionOnNextCall';
const optimize = new Function('f', `${native}(f)`);
optimize(outer);
optimize(through);
object.outer(1);
through([1]);
isCold = false;
object.outer(1);
through([1]);
console.log('done');
