// A program of several files. A comment `in NAME` marks each line that runs in the function that the
// original calls so, and takes time or calls.
import { Store, type Entry } from './store';
import { spinInner as spin, weigh } from './work';

interface Options {
  rounds: number;
}

const describeAll = (entries: Entry[], options: Options): number => {
  let sum = 0;
  for (const entry of entries) {
    sum += weigh(entry.value, options.rounds); // in describeAll
  }
  return sum;
};

function runRound(store: Store): number {
  const found = store.collectEntries(20); // in runRound
  const total = describeAll(found, { rounds: 300 }); // in runRound
  return total + spin(20_000); // in runRound
}

let total = 0;
function turnAround(): void {
  const store = new Store('größe 😀');
  const end = Date.now() + 50;
  while (Date.now() < end) total += runRound(store); // in turnAround
  setTimeout(turnAround, 1);
}

process.on('SIGTERM', () => process.exit(total > 0 ? 17 : 1));
console.log('ready');
turnAround();
