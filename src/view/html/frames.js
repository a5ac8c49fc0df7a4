// Trees of frames over the function tree: callers first, callees first, and those of one function.

/** The callees below their callers. A frame is a node of the function tree. */
class CallersFirst {
  constructor(tree, sum, ranks) {
    Object.assign(this, { tree, sum, ranks });
  }

  root() {
    return { node: 0, name: -1, total: this.sum.nodeTotal[0], own: this.sum.nodeOwn[0] };
  }

  children({ node }) {
    const { tree, sum } = this;
    const found = [];
    for (let place = tree.from[node]; place < tree.from[node + 1]; place++) {
      const callee = tree.callees[place];
      const total = sum.nodeTotal[callee];
      if (total > 0) found.push({ node: callee, name: tree.name[callee], total,
        own: sum.nodeOwn[callee] });
    }
    return found.sort((one, other) => this.ranks[other.node] - this.ranks[one.node]
      || one.node - other.node);
  }

  holds(frame) {
    return node => node === frame.node;
  }

  nodesOf(frame) {
    return [frame.node];
  }
}

/** Frames that are functions, each with the nodes that it stands for and their weights. */
class Grouped {
  constructor(tree, sum) {
    Object.assign(this, { tree, sum });
  }

  /** Groups nodes by function. `weigh` adds the weights of a node's place to its group. */
  grouped(places, nodeOf, weigh) {
    const { tree } = this;
    const found = new Map();
    for (const place of places) {
      const node = nodeOf(place);
      if (node === 0) continue;
      let group = found.get(tree.name[node]);
      if (!group) {
        group = { nodes: [], totals: [], owns: [], name: tree.name[node], total: 0, own: 0 };
        found.set(tree.name[node], group);
      }
      weigh(group, node, place);
    }
    return [...found.values()].sort((one, other) => other.total - one.total
      || one.name - other.name);
  }

  holds(frame) {
    const nodes = new Set(frame.nodes);
    return node => nodes.has(node);
  }

  nodesOf(frame) {
    return frame.nodes;
  }
}

/** The callers below their callees. */
class CalleesFirst extends Grouped {
  root() {
    const nodes = [], totals = [];
    this.sum.nodeOwn.forEach((own, node) => {
      if (own > 0) {
        nodes.push(node);
        totals.push(own);
      }
    });
    return { nodes, totals, owns: totals, name: -1, total: this.sum.nodeTotal[0], own: 0 };
  }

  children({ nodes, totals, owns, name }) {
    const { tree } = this;
    // Below the root are all nodes. Below a function are the nodes of its callers.
    const nodeOf = place => name < 0 ? nodes[place] : tree.parent[nodes[place]];
    return this.grouped(nodes.keys(), nodeOf, (group, node, place) => {
      group.nodes.push(node);
      group.totals.push(totals[place]);
      group.owns.push(owns[place]);
      group.total += totals[place];
      group.own += owns[place];
    });
  }
}

/** Returns the outermost nodes of a function, and its self weight below each. */
function outermostNodes(tree, sum, name) {
  const owns = new Map();
  for (let node = 1; node < tree.count; node++) {
    if (tree.name[node] !== name || !(sum.nodeTotal[node] > 0)) continue;
    let outermost = node;
    // A recursive call belongs to the outermost one.
    while (!tree.outermost[outermost]) {
      outermost = tree.parent[outermost];
      while (tree.name[outermost] !== name) outermost = tree.parent[outermost];
    }
    owns.set(outermost, (owns.get(outermost) || 0) + sum.nodeOwn[node]);
  }
  return owns;
}

/** Returns a frame of a function, wherever it is called. */
function frameOf(tree, sum, name) {
  const all = outermostNodes(tree, sum, name);
  const nodes = [...all.keys()], owns = [...all.values()];
  const totals = nodes.map(node => sum.nodeTotal[node]);
  const add = (one, other) => one + other;
  return { nodes, totals, owns, name, total: totals.reduce(add, 0), own: owns.reduce(add, 0) };
}

/** The callers of one function. Their weights are those of the function where they call it. */
class CallersOf extends CalleesFirst {
  constructor(tree, sum, name) {
    super(tree, sum);
    this.function = name;
  }

  root() {
    return frameOf(this.tree, this.sum, this.function);
  }
}

/** The callees of one function, wherever it is called. */
class CalleesOf extends Grouped {
  constructor(tree, sum, name) {
    super(tree, sum);
    this.function = name;
  }

  root() {
    return frameOf(this.tree, this.sum, this.function);
  }

  children({ nodes }) {
    const { tree, sum } = this;
    const callees = [];
    for (const node of nodes) {
      for (let place = tree.from[node]; place < tree.from[node + 1]; place++) {
        if (sum.nodeTotal[tree.callees[place]] > 0) callees.push(tree.callees[place]);
      }
    }
    return this.grouped(callees, node => node, (group, node) => {
      group.nodes.push(node);
      group.total += sum.nodeTotal[node];
      group.own += sum.nodeOwn[node];
    });
  }
}
