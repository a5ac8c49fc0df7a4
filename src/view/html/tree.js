// The calls of the trace, merged by function.

/** All distinct paths of functions. Node 0 is the root, and a node comes after its caller. */
class FunctionTree {
  /** `names` has the function that stands for each function: processes may be joined. */
  constructor(trace, names) {
    const { caller, frame } = trace.calls;
    const functions = trace.texts.functions.length;
    const count = caller.length;
    this.of = new Uint32Array(count);
    const parents = new Uint32Array(count), functionOf = new Uint32Array(count);
    const depths = new Uint16Array(count);
    const known = new Map();
    let nodes = 1;
    for (let call = 1; call < count; call++) {
      const parent = this.of[caller[call]];
      const name = names[trace.frames.function[frame[call]]];
      const key = parent * functions + name;
      let node = known.get(key);
      if (node === undefined) {
        node = nodes++;
        known.set(key, node);
        parents[node] = parent;
        functionOf[node] = name;
        depths[node] = depths[parent] + 1;
      }
      this.of[call] = node;
    }
    this.count = nodes;
    this.parent = parents.slice(0, nodes);
    this.name = functionOf.slice(0, nodes);
    /** The number of functions on the path to each node. */
    this.depth = depths.slice(0, nodes);
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

  /** Returns the functions on the path to a node, the outermost first. */
  pathOf(node) {
    const path = [];
    for (let at = node; at !== 0; at = this.parent[at]) path.push(this.name[at]);
    return path.reverse();
  }

  /** Returns the caller of a node at a depth. */
  callerAt(node, depth) {
    let at = node;
    while (this.depth[at] > depth) at = this.parent[at];
    return at;
  }
}
