// The flame graph: its frames, their drawing, and the actions of pointer and keys.

const ROW = 19;
/** Minimum width of a frame that is drawn. */
const NARROWEST = 0.6;
const INSET = 14;

/** A frame: a node of the function tree or, in the inverted graph, a function with its nodes. */
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
}

class CalleesFirst {
  constructor(tree, sum) {
    Object.assign(this, { tree, sum });
  }

  root() {
    const nodes = [], weights = [];
    this.sum.nodeOwn.forEach((own, node) => {
      if (own > 0) {
        nodes.push(node);
        weights.push(own);
      }
    });
    return { nodes, weights, below: nodes, name: -1, total: this.sum.nodeTotal[0], own: 0 };
  }

  children({ nodes, weights, name }) {
    const { tree } = this;
    const found = new Map();
    for (let place = 0; place < nodes.length; place++) {
      // Below the root are all nodes. Below a function are the nodes of its callers.
      const node = name < 0 ? nodes[place] : tree.parent[nodes[place]];
      if (node === 0) continue;
      let group = found.get(tree.name[node]);
      if (!group) {
        group = { nodes: [], weights: [], name: tree.name[node], total: 0, own: 0 };
        found.set(tree.name[node], group);
      }
      group.nodes.push(node);
      group.weights.push(weights[place]);
      group.total += weights[place];
      if (tree.parent[node] === 0) group.own += weights[place];
    }
    return [...found.values()].sort((one, other) => other.total - one.total
      || one.name - other.name);
  }

  holds(frame) {
    const nodes = new Set(frame.nodes);
    return node => nodes.has(node);
  }
}

class Flame {
  constructor(page) {
    this.page = page;
    this.canvas = at('graph');
    this.boxes = [];
    this.focus = null;
    this.hovered = null;
    this.listen();
  }

  /** Lays out the selected samples. */
  layout() {
    const { tree, sum, choice, ranks } = this.page;
    this.width = Math.max(at('scroll').clientWidth, 80);
    this.source = choice.inverted ? new CalleesFirst(tree, sum)
      : new CallersFirst(tree, sum, ranks);
    this.boxes = [];
    let frame = this.source.root();
    const all = frame.total;
    this.crumbs = [];
    this.put(frame, 0, 1, 0, []);
    for (const name of choice.zoom) {
      const next = this.source.children(frame).find(it => it.name === name);
      if (!next) break;
      frame = next;
      this.crumbs.push(name);
      this.put(frame, 0, 1, this.crumbs.length, this.crumbs.slice(), true);
    }
    if (frame.total > 0) this.layoutBelow(frame);
    this.rows = 1 + this.boxes.reduce((most, box) => Math.max(most, box.depth), 0);
    this.all = all;
    const path = this.focus && this.focus.path.join('.');
    this.focus = path === null || path === undefined ? null
      : this.boxes.find(box => box.path.join('.') === path) || null;
    // Their height is subtracted from the graph.
    this.showCrumbs();
    this.draw();
  }

  put(frame, x, width, depth, path, isAbove = depth === 0) {
    const box = { frame, x, width, depth, path, isAbove };
    this.boxes.push(box);
    return box;
  }

  layoutBelow(zoomed) {
    const narrowest = NARROWEST / (this.width - 2 * INSET);
    const last = this.boxes[this.boxes.length - 1];
    last.isAbove = false;
    const pending = [last];
    while (pending.length) {
      const box = pending.pop();
      let x = box.x;
      for (const frame of this.source.children(box.frame)) {
        const width = frame.total / zoomed.total;
        if (width >= narrowest) {
          pending.push(this.put(frame, x, width, box.depth + 1, [...box.path, frame.name], false));
        }
        x += width;
      }
    }
  }

  nameOf({ frame }) {
    return frame.name < 0 ? 'all' : this.page.trace.texts.functions[frame.name];
  }

  /** Draws the visible part. */
  draw() {
    const scroll = at('scroll'), all = this.rows * ROW + 8;
    // A printed page does not scroll.
    const height = document.documentElement.dataset.printed ? all
      : Math.max(scroll.clientHeight, 40);
    at('height').style.height = all + 'px';
    const pen = fit(this.canvas, this.width, height);
    const { colors, matches } = this.page;
    pen.fillStyle = colors.back;
    pen.fillRect(0, 0, this.width, height);
    pen.font = '12px ' + getComputedStyle(document.documentElement).getPropertyValue('--mono');
    pen.textBaseline = 'middle';
    const letter = pen.measureText('M').width;
    for (const box of this.boxes) {
      const { x, y, width } = this.place(box);
      if (y + ROW < 0 || y > height) continue;
      const { name } = box.frame;
      const found = name >= 0 && matches && matches[name];
      pen.globalAlpha = box.isAbove ? 0.55 : matches && !found ? 0.5 : 1;
      pen.fillStyle = found ? colors.found : name < 0 ? colors.other : colors.fill(name);
      pen.fillRect(x, y, Math.max(width - 0.6, 0.4), ROW - 1);
      if (name >= 0 && !found && width > 3 && colors.isState(name)) {
        pen.fillStyle = colors.stripesFor(pen);
        pen.fillRect(x, y, width - 0.6, ROW - 1);
      }
      pen.globalAlpha = 1;
      const letters = Math.floor((width - 8) / letter);
      if (letters >= 2) {
        const text = this.nameOf(box);
        pen.fillStyle = found ? colors.foundText : name < 0 ? colors.text : matches || box.isAbove
          ? colors.text : colors.ink(name);
        pen.fillText(text.length > letters ? text.slice(0, letters - 1) + '…' : text, x + 4,
          y + ROW / 2);
      }
      if (box === this.focus || box === this.hovered) {
        pen.strokeStyle = box === this.focus ? colors.accent : colors.text;
        pen.lineWidth = box === this.focus ? 2 : 1;
        pen.strokeRect(x + 1, y + 0.5, Math.max(width - 2, 1), ROW - 2);
      }
    }
    if (!(this.all > 0)) {
      pen.fillStyle = colors.text;
      pen.fillText('No samples are in what is chosen.', INSET, ROW * 2);
    }
  }

  place({ x, width, depth }) {
    const room = this.width - 2 * INSET;
    const row = this.page.choice.flipped ? this.rows - 1 - depth : depth;
    const below = this.page.choice.flipped
      ? Math.max(at('scroll').clientHeight - this.rows * ROW - 8, 0) : 0;
    return { x: INSET + x * room, width: width * room,
      y: row * ROW + 4 + below - at('scroll').scrollTop };
  }

  boxAt(x, y) {
    for (let index = this.boxes.length - 1; index >= 0; index--) {
      const box = this.boxes[index], place = this.place(box);
      if (y >= place.y && y < place.y + ROW && x >= place.x
        && x < place.x + Math.max(place.width, 1)) return box;
    }
    return null;
  }

  zoom(box) {
    this.page.change({ zoom: box.path });
    this.hovered = null;
    at('scroll').scrollTop = this.page.choice.flipped ? at('scroll').scrollHeight : 0;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener('click', event => {
      const box = this.boxAt(event.offsetX, event.offsetY);
      if (box) this.zoom(box);
    });
    canvas.addEventListener('mousemove', event => this.hover(event));
    canvas.addEventListener('mouseleave', () => this.hover(null));
    canvas.addEventListener('keydown', event => this.key(event));
    canvas.addEventListener('blur', () => {
      this.focus = null;
      hideTooltip();
      this.draw();
    });
    at('scroll').addEventListener('scroll', () => this.draw());
  }

  hover(event) {
    const box = event && this.boxAt(event.offsetX, event.offsetY);
    if (box !== this.hovered) {
      this.hovered = box;
      this.draw();
      this.lines = box && this.describe(box);
    }
    if (box) showTooltip(this.lines, event.clientX, event.clientY);
    else hideTooltip();
  }

  /** Returns the facts about a frame, one per line. */
  describe(box) {
    const { trace, tree, sum, mode } = this.page;
    const { frame } = box;
    const { inverted } = this.page.choice;
    const weight = value => `${weightText(mode, value)} (${shareText(value, sum.nodeTotal[0])})`;
    const lines = [this.nameOf(box)];
    const part = inverted && box.path.length > 1 ? `called ${trace.texts.functions[box.path[0]]}`
      : 'total';
    lines.push(`${part} ${weight(frame.total)}` + (inverted ? '' : `, self ${weight(frame.own)}`));
    if (frame.name < 0) return lines;
    const places = placesOf(trace, tree, sum, this.source.holds(frame));
    const all = places.reduce((known, [, value]) => known + value, 0);
    for (const [place, value] of places.slice(0, 3)) {
      lines.push(places.length > 1 ? `${place} (${shareText(value, all)} of its lines)` : place);
    }
    if (places.length > 3) lines.push(`and ${places.length - 3} other lines`);
    const module = trace.texts.modules[frame.name];
    const isCode = trace.hasLanguages && trace.kinds[frame.name] === 0;
    const language = isCode ? LANGUAGES[trace.languages[frame.name]] : '';
    const origin = [module, language].filter(text => text).join(', ');
    if (origin) lines.push(origin);
    return lines;
  }

  key(event) {
    const { flipped } = this.page.choice;
    const moves = { ArrowLeft: 'before', ArrowRight: 'after', ArrowUp: flipped ? 'in' : 'out',
      ArrowDown: flipped ? 'out' : 'in' };
    if (event.key === 'Enter' || event.key === ' ') {
      if (this.focus) this.zoom(this.focus);
    } else if (moves[event.key]) {
      this.move(moves[event.key]);
    } else {
      return;
    }
    event.preventDefault();
  }

  move(way) {
    const { focus, boxes } = this;
    const deepest = boxes[this.crumbs.length] || boxes[0];
    let next = deepest;
    if (focus) {
      const side = box => box.depth === focus.depth;
      const beside = boxes.filter(side).sort((one, other) => one.x - other.x);
      const here = beside.indexOf(focus);
      const path = focus.path.join('.');
      if (way === 'before') next = beside[here - 1];
      if (way === 'after') next = beside[here + 1];
      if (way === 'out') next = boxes.find(box => box.depth === focus.depth - 1
        && box.x <= focus.x + 1e-9 && box.x + box.width >= focus.x + focus.width - 1e-9);
      if (way === 'in') {
        const inside = boxes.filter(box => box.depth === focus.depth + 1
          && box.path.slice(0, -1).join('.') === path);
        next = inside.sort((one, other) => other.width - one.width)[0];
      }
    }
    if (!next) return;
    this.focus = next;
    const { y, x } = this.place(next);
    const scroll = at('scroll');
    if (y < 0) scroll.scrollTop += y - 4;
    if (y + ROW > scroll.clientHeight) scroll.scrollTop += y + ROW + 4 - scroll.clientHeight;
    this.draw();
    const lines = this.describe(next);
    at('focused').textContent = lines.join(', ');
    const corner = this.canvas.getBoundingClientRect();
    showTooltip(lines, corner.left + x, corner.top + this.place(next).y + ROW);
  }

  /** Shows the functions that the view is zoomed into. A click on one zooms out to it. */
  showCrumbs() {
    const { trace } = this.page;
    const crumb = (text, path) => element('button', {
      type: 'button', title: text, textContent: text, onclick: () =>
        this.page.change({ zoom: path }),
    });
    const all = this.crumbs.length ? [crumb('all', [])] : [];
    this.crumbs.forEach((name, depth) => {
      all.push('›', crumb(trace.texts.functions[name], this.crumbs.slice(0, depth + 1)));
    });
    const crumbs = at('crumbs');
    const each = trace.hasLanguages ? 'language' : 'module';
    const colours = this.page.mode.isWall
      ? ` Frames are pale, a colour for each ${each}; states are strong and striped.` : '';
    crumbs.replaceChildren(...all.length ? all
      : ['Click on a frame to zoom, / searches, Esc goes back.' + colours]);
    crumbs.classList.toggle('hint', !all.length);
    // The last function is the current view. A hint is read from its start.
    crumbs.scrollLeft = all.length ? crumbs.scrollWidth : 0;
  }
}

function showTooltip(lines, x, y) {
  const box = at('tooltip');
  box.replaceChildren(element('b', { textContent: lines[0] }),
    ...lines.slice(1).map(text => element('div', { textContent: text })));
  box.hidden = false;
  const { offsetWidth, offsetHeight } = box;
  const left = Math.min(x + 14, innerWidth - offsetWidth - 6);
  const top = y + 16 + offsetHeight > innerHeight ? y - offsetHeight - 10 : y + 16;
  box.style.left = Math.max(left, 4) + 'px';
  box.style.top = Math.max(top, 4) + 'px';
}

function hideTooltip() {
  at('tooltip').hidden = true;
}
