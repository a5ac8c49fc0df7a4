// Calls that are each on a line of their own, which says what it calls. New copies of the functions
// run in turn, so that every compiler has code of some of them.
const source = `
function work(n) {
  let sum = 0;
  for (let i = 0; i < 200; i++) sum = (sum * 31 + n + i) | 0;
  return sum;
}
`;
const fresh = new Function(source + 'return work;');

function rounds() {
  let work = fresh();

  function low(n) {
    let sum = n;
    if (n === -1) {
      sum ^= 5;
    }
    sum +=
      work(n); // calls work
    return sum | 0;
  }

  function plain(n) {
    let sum = 0;
    for (let i = 0; i < 3; i++) {
      sum += i;
      sum += low(i) // calls low
        + 1;
    }
    try {
      sum += n;
    } finally {
      sum++;
    }
    return sum;
  }

  const arrow = (n) =>
    1 +
    plain(n); // calls plain

  function mapped() {
    const all = [1, 2]
      .map(arrow) // calls arrow
      .concat([5]);
    return all.length;
  }

  class Holder {
    static many() {
      let sum = 0;
      for (let i = 0; i < 2; i++)
        sum += mapped(); // calls mapped
      return sum;
    }
    get value() {
      const sum =
        Holder.many(); // calls many
      return sum;
    }
  }

  const holder = new Holder();
  return function loop() {
    const end = Date.now() + 5;
    let sum = 0;
    while (Date.now() < end) {
      sum += holder.value; // calls get value
    }
    return sum;
  };
}

process.on('SIGTERM', () => process.exit(17));
let loop = rounds();
let turns = 0;
function turn() {
  if (turns++ % 100 === 0) {
    // From the same source again.
    loop = rounds();
  }
  loop();
  setImmediate(turn);
}
console.log('ready');
turn();
