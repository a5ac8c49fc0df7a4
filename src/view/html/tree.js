// The calls of the trace, merged by function, and the sums of selected samples in them.

/** All distinct paths of functions. Node 0 is the root, and a node comes after its caller. */
class FunctionTree {
  constructor(trace) {
    const { caller, frame } = trace.calls;
    const functions = trace.texts.functions.length;
    const count = caller.length;
    this.of = new Uint32Array(count);
    const parents = new Uint32Array(count), names = new Uint32Array(count);
    const known = new Map();
    let nodes = 1;
    for (let call = 1; call < count; call++) {
      const parent = this.of[caller[call]];
      const name = trace.frames.function[frame[call]];
      const key = parent * functions + name;
      let node = known.get(key);
      if (node === undefined) {
        node = nodes++;
        known.set(key, node);
        parents[node] = parent;
        names[node] = name;
      }
      this.of[call] = node;
    }
    this.count = nodes;
    this.parent = parents.slice(0, nodes);
    this.name = names.slice(0, nodes);
    this.linkCallees();
    this.outermost = this.findOutermost(functions);
  }

  /** The callees of `n` are `callees[from[n]]` up to `callees[from[n + 1]]`. */
  linkCallees() {
    const { count, parent } = this;
    this.from = new Uint32Array(count + 1);
    for (let node = 1; node < count; node++) this.from[parent[node] + 1]++;
    for (let node = 0; node < count; node++) this.from[node + 1] += this.from[node];
    this.callees = new Uint32Array(Math.max(count - 1, 0));
    const next = this.from.slice();
    for (let node = 1; node < count; node++) this.callees[next[parent[node]]++] = node;
  }

  /** Whether a node's function is not one of its callers, so that recursion counts once. */
  findOutermost(functions) {
    const outermost = new Uint8Array(this.count), open = new Uint32Array(functions + 1);
    const pending = [0];
    while (pending.length) {
      const node = pending.pop();
      if (node < 0) {
        open[this.name[-node]]--;
        continue;
      }
      if (node > 0) {
        outermost[node] = open[this.name[node]] === 0 ? 1 : 0;
        open[this.name[node]]++;
        pending.push(-node);
      }
      for (let at = this.from[node]; at < this.from[node + 1]; at++) pending.push(this.callees[at]);
    }
    return outermost;
  }
}

/** Returns the first row from `low` on whose value is not below `limit`. */
function firstNotBelow(values, low, high, limit) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Calls `use(row, weight)` for the samples of a thread in a window. A sample of wall clock time
 * counts with its part in the window, and a sample of CPU time counts where it was taken.
 * Adjacent windows add up.
 */
function eachInWindow(trace, mode, thread, { from, to }, use) {
  const { first, time, since, weight, longest } = mode;
  const end = first[thread + 1];
  const isLast = to >= trace.toUs;
  for (let row = firstNotBelow(time, first[thread], end, from); row < end; row++) {
    const length = mode.isWall ? time[row] - since[row] : 0;
    if (length <= 0) {
      if (time[row] < to || isLast) use(row, weight[row]);
    } else {
      const inside = Math.min(time[row], to) - Math.max(since[row], from);
      if (inside > 0) use(row, weight[row] * Math.min(1, inside / length));
    }
    if (time[row] - longest[thread] > to) break;
  }
}

/** Sums the selected samples by call, by node and by state. */
function aggregate(trace, tree, mode, chosen) {
  const own = new Float64Array(trace.calls.caller.length);
  const states = new Float64Array(STATES.length);
  const contexts = new Float64Array(trace.contexts.length + 1);
  let samples = 0, weight = 0;
  const { call, context, samplesOf } = mode;
  const { fits } = chosen;
  const use = (row, part) => {
    contexts[context[row]] += part;
    if (fits && !fits[context[row]]) return;
    own[call[row]] += part;
    states[trace.stateOfCall[call[row]]] += part;
    samples += samplesOf[row];
    weight += part;
  };
  for (let thread = 0; thread < trace.threads.length; thread++) {
    if (!chosen.has(thread)) continue;
    eachInWindow(trace, mode, thread, chosen.window, use);
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
