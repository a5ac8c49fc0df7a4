// Calls `rest` from functions of every shape. Each call prints the stack as the engine tells it,
// and holds still until a line arrives.
import fs from 'node:fs';
import vm from 'node:vm';
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const buffer = Buffer.alloc(1);

Error.stackTraceLimit = 100;

// With `quiet`, the engine is not asked, because that makes it find out the lines.
const isQuiet = process.argv.includes('quiet');

function stackOf(sites) {
  return sites.filter((site) => !site.isAsync()).map((site) => ({
    name: site.getFunctionName() || '',
    file: site.getScriptNameOrSourceURL() || (site.isEval() && site.getEvalOrigin()) || '',
    line: site.getLineNumber() || 0,
  }));
}

function told() {
  const before = Error.prepareStackTrace;
  Error.prepareStackTrace = (_, sites) => stackOf(sites);
  const stack = new Error().stack;
  Error.prepareStackTrace = before;
  return stack.slice(1);
}

function say(value) {
  process.stdout.write(JSON.stringify(value) + '\n');
}

export function rest(expected) {
  // All on one line, so that it is the same for both.
  const stack = isQuiet ? [] : told(); say({ expected, stack }); fs.readSync(0, buffer);
  return 1;
}
globalThis.rest = rest;

function declared() {
  return rest('declared') + 0;
}
const assigned = function () {
  return rest('assigned') + 0;
};
const named = function inner() {
  return rest('inner') + 0;
};
const arrow = () => rest('arrow') + 0;
const holder = {
  method() {
    return rest('method') + 0;
  },
  get value() {
    return rest('value') + 0;
  },
  set value(_) {
    rest('value');
  },
  ['computed' + 1]() {
    return rest('computed1') + 0;
  },
  [Symbol('mark')]() {
    return rest('mark') + 0;
  },
  property: function () {
    return rest('property') + 0;
  },
};
holder.later = function () {
  return rest('later') + 0;
};
holder.deep = { deeper: {} };
holder.deep.deeper.deepest = () => rest('deepest') + 0;

class Animal {
  field = rest('<instance_members_initializer>');
  static shared = rest('<static_initializer>');
  #secret() {
    return rest('#secret') + 0;
  }
  static {
    rest('<static_initializer>');
  }
  constructor() {
    rest('Animal');
  }
  speak() {
    return this.#secret() + rest('speak');
  }
  static create() {
    rest('create');
    return new Animal();
  }
  get legs() {
    return rest('legs');
  }
  async later() {
    await null;
    return rest('later');
  }
  *each() {
    yield rest('each');
  }
  async *stream() {
    yield rest('stream');
  }
}

function generic(größe) {
  const 名前 = () => rest('名前');
  function ñandú() {
    return 名前() + größe;
  }
  return ñandú();
}

function many() {
  // More than the names of a scope that are in it.
  let a0 = 0, a1 = 0, a2 = 0, a3 = 0, a4 = 0, a5 = 0, a6 = 0, a7 = 0, a8 = 0, a9 = 0;
  let b0 = 0, b1 = 0, b2 = 0, b3 = 0, b4 = 0, b5 = 0, b6 = 0, b7 = 0, b8 = 0, b9 = 0;
  let c0 = 0, c1 = 0, c2 = 0, c3 = 0, c4 = 0, c5 = 0, c6 = 0, c7 = 0, c8 = 0, c9 = 0;
  let d0 = 0, d1 = 0, d2 = 0, d3 = 0, d4 = 0, d5 = 0, d6 = 0, d7 = 0, d8 = 0, d9 = 0;
  let e0 = 0, e1 = 0, e2 = 0, e3 = 0, e4 = 0, e5 = 0, e6 = 0, e7 = 0, e8 = 0, e9 = 0;
  let f0 = 0, f1 = 0, f2 = 0, f3 = 0, f4 = 0, f5 = 0, f6 = 0, f7 = 0, f8 = 0, f9 = 0;
  let g0 = 0, g1 = 0, g2 = 0, g3 = 0, g4 = 0, g5 = 0, g6 = 0, g7 = 0, g8 = 0, g9 = 0;
  let h0 = 0, h1 = 0, h2 = 0, h3 = 0, h4 = 0, h5 = 0, h6 = 0, h7 = 0, h8 = 0, h9 = 0;
  const all = () => [
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9,
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, d0, d1, d2, d3, d4, d5, d6, d7, d8, d9,
    e0, e1, e2, e3, e4, e5, e6, e7, e8, e9, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9,
    g0, g1, g2, g3, g4, g5, g6, g7, g8, g9, h0, h1, h2, h3, h4, h5, h6, h7, h8, h9,
  ];
  return all().length + rest('many');
}

function callsBack() {
  [1].map((x) => rest('mapped') + x);
  [2, 1].sort(function compare(a, b) {
    rest('compare');
    return a - b;
  });
  JSON.parse('[1]', function reviver(_, value) {
    if (value === 1) rest('reviver');
    return value;
  });
  'a'.replace(/a/, () => String(rest('replaced')));
  Reflect.apply(function applied() {
    rest('applied');
  }, null, []);
  new Proxy({}, {
    get() {
      return rest('get');
    },
  }).anything;
  (function bindable() {
    rest('bindable');
  }).bind(null)();
  try {
    throw 1;
  } catch {
    rest('callsBack');
  } finally {
    (() => rest(''))();
  }
}

function evaluates() {
  eval('rest("eval");');
  (0, eval)('function fromEval() {\n  return rest("fromEval");\n}\nfromEval();');
  new Function('a', 'return rest("anonymous") + a;')(1);
  vm.runInThisContext('\n\nfunction inVm() {\n  rest("inVm");\n}\ninVm();', {
    filename: 'virtual.js',
    lineOffset: 10,
  });
  vm.runInThisContext('(function () { rest(""); })()\n//# sourceURL=elsewhere.js');
  vm.runInThisContext('\r\n\r\u2028(function ends() { rest("ends"); })()', 'ends.js');
}

async function waits() {
  await null;
  rest('waits');
  const [last] = await Promise.all([new Animal().later()]);
  for await (const _ of new Animal().stream());
  return last;
}

declared();
assigned();
named();
arrow();
holder.method();
holder.value;
holder.value = 1;
holder.computed1();
holder[Object.getOwnPropertySymbols(holder)[0]]();
holder.property();
holder.later();
holder.deep.deeper.deepest();
Animal.create().speak();
new Animal().legs;
for (const _ of new Animal().each());
generic(1);
many();
callsBack();
evaluates();
(() => rest(''))();
(function () {
  rest('');
})();
rest('(top level)');
require('./v8_common.cjs');
await waits();
setTimeout(function timer() {
  rest('timer');
  process.nextTick(() => {
    rest('');
    console.log('done');
  });
}, 1);
