// The sums of selected samples in the calls.

/** Returns the first row from `low` on whose value is not below `limit`. */
function firstNotBelow(values, low, high, limit) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Returns the rows of a thread that may be in a window. */
function rowsIn(mode, thread, { from, to }) {
  const { first, time, longest } = mode;
  const end = first[thread + 1];
  const low = firstNotBelow(time, first[thread], end, from);
  return { low, high: firstNotBelow(time, low, end, to + longest[thread] + 1) };
}

/**
 * Calls `use(row, weight)` for the samples of some rows in a window. A sample of wall clock time
 * counts with its part in the window, and a sample of CPU time counts where it was taken.
 * Adjacent windows add up.
 */
function eachOfRows(trace, mode, { from, to }, { low, high }, use) {
  const { time, since, weight } = mode;
  const isLast = to >= trace.toUs;
  for (let row = low; row < high; row++) {
    const length = mode.isWall ? time[row] - since[row] : 0;
    if (length <= 0) {
      if (time[row] < to || isLast) use(row, weight[row]);
    } else {
      const inside = Math.min(time[row], to) - Math.max(since[row], from);
      if (inside > 0) use(row, weight[row] * Math.min(1, inside / length));
    }
  }
}

/** Calls `use(row, weight)` for the samples of a thread in a window. */
function eachInWindow(trace, mode, thread, window, use) {
  eachOfRows(trace, mode, window, rowsIn(mode, thread, window), use);
}

/** The number of samples that take a part of a frame's time. */
const PORTION = 50_000;

/**
 * Sums the selected samples by call, by node and by state. It yields after each portion of the
 * samples, so that a browser can draw in between.
 */
function* summed(trace, tree, mode, chosen) {
  const own = new Float64Array(trace.calls.caller.length);
  const states = new Float64Array(STATES.length);
  const contexts = new Float64Array(trace.contexts.length + 1);
  let samples = 0, weight = 0;
  const { call, context, samplesOf } = mode;
  const { fits, kept, window } = chosen;
  const use = (row, part) => {
    if (kept && !kept[call[row]]) return;
    contexts[context[row]] += part;
    if (fits && !fits[context[row]]) return;
    own[call[row]] += part;
    states[trace.stateOfCall[call[row]]] += part;
    samples += samplesOf[row];
    weight += part;
  };
  let portion = 0;
  for (let thread = 0; thread < trace.threads.length; thread++) {
    if (!chosen.has(thread)) continue;
    const { low, high } = rowsIn(mode, thread, window);
    for (let row = low; row < high; row += PORTION) {
      const end = Math.min(row + PORTION, high);
      eachOfRows(trace, mode, window, { low: row, high: end }, use);
      portion += end - row;
      if (portion < PORTION) continue;
      portion = 0;
      yield;
    }
  }
  const sum = { own, states, contexts, samples, weight };
  sum.nodeOwn = new Float64Array(tree.count);
  for (let at = 0; at < own.length; at++) if (own[at]) sum.nodeOwn[tree.of[at]] += own[at];
  sum.nodeTotal = sum.nodeOwn.slice();
  for (let node = tree.count - 1; node > 0; node--) {
    sum.nodeTotal[tree.parent[node]] += sum.nodeTotal[node];
  }
  return sum;
}

/** Runs long work in parts that leave time for a frame. Newer work replaces older work. */
class Slices {
  get isBusy() {
    return Boolean(this.next);
  }

  /** Runs work, and calls `done` with its result. Short work is done at once, and all if asked. */
  run(work, done, isWhole) {
    cancelAnimationFrame(this.next);
    let isLong = false;
    const step = () => {
      this.next = 0;
      const until = performance.now() + 12;
      for (;;) {
        const { done: isDone, value } = work.next();
        if (isDone && !isLong) return done(value);
        if (isDone) {
          // What is drawn has a frame of its own.
          this.next = requestAnimationFrame(() => {
            this.next = 0;
            done(value);
          });
          return undefined;
        }
        isLong = !isWhole;
        if (isLong && performance.now() > until) break;
      }
      this.next = requestAnimationFrame(step);
      return undefined;
    };
    step();
  }
}

/** Returns the total weights by call. */
function callTotals(trace, sum) {
  if (!sum.callTotal) {
    sum.callTotal = sum.own.slice();
    const { caller } = trace.calls;
    for (let call = caller.length - 1; call > 0; call--) {
      sum.callTotal[caller[call]] += sum.callTotal[call];
    }
  }
  return sum.callTotal;
}

/**
 * Returns for each call whether one of its callers has the same key, so that recursion counts once.
 * `keys` has a number for each frame, of which 0 is no key.
 */
function repeatedCalls({ caller, frame }, keys) {
  const count = caller.length;
  // Only calls with a key are in this tree: stacks may be deep.
  const above = new Uint32Array(count), nearest = new Uint32Array(count);
  const first = new Uint32Array(count), next = new Uint32Array(count);
  for (let call = 1; call < count; call++) {
    const parent = above[call] = nearest[caller[call]];
    nearest[call] = parent;
    if (!keys[frame[call]]) continue;
    nearest[call] = call;
    next[call] = first[parent];
    first[parent] = call;
  }
  const open = new Uint32Array(keys.reduce((most, key) => Math.max(most, key), 0) + 1);
  const repeated = new Uint8Array(count);
  let call = first[0];
  while (call) {
    repeated[call] = open[keys[frame[call]]]++ ? 1 : 0;
    let to = first[call];
    while (!to && call) {
      open[keys[frame[call]]]--;
      to = next[call];
      call = above[call];
    }
    call = to;
  }
  return repeated;
}

/** Returns the self and total weights by function. */
function byFunction(trace, tree, sum) {
  const own = new Float64Array(trace.texts.functions.length), total = new Float64Array(own.length);
  for (let node = 1; node < tree.count; node++) {
    own[tree.name[node]] += sum.nodeOwn[node];
    if (tree.outermost[node]) total[tree.name[node]] += sum.nodeTotal[node];
  }
  return { own, total };
}

/** Returns the weight of all stacks with a matching function. */
function matchedWeight(tree, sum, matches) {
  const covered = new Uint8Array(tree.count);
  let weight = 0;
  for (let node = 1; node < tree.count; node++) {
    covered[node] = covered[tree.parent[node]] || matches[tree.name[node]];
    if (covered[node]) weight += sum.nodeOwn[node];
  }
  return weight;
}

/** Returns the source locations of a node's calls with their weights, heaviest first. */
function placesOf(trace, tree, sum, inNodes) {
  const totals = callTotals(trace, sum);
  const places = new Map();
  for (let call = 1; call < tree.of.length; call++) {
    if (!totals[call] || !inNodes(tree.of[call])) continue;
    const frame = trace.calls.frame[call];
    const file = trace.frames.file[frame], line = trace.frames.line[frame];
    if (!file) continue;
    const text = trace.texts.files[file - 1] + (line ? ':' + line : '');
    places.set(text, (places.get(text) || 0) + totals[call]);
  }
  return [...places].sort((one, other) => other[1] - one[1]);
}
