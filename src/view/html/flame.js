// The flame graph: where its frames are, and what they say.

/** Minimum width of a frame that is drawn. */
const NARROWEST = 0.6;

class Flame {
  constructor(page) {
    this.page = page;
    this.boxes = [];
    this.rows = 1;
  }

  get isFlipped() {
    return this.page.choice.flipped;
  }

  /** Lays out the selected samples. */
  layout(width) {
    const { tree, sum, choice, ranks } = this.page;
    this.width = width;
    this.source = choice.order === 'callees' ? new CalleesFirst(tree, sum)
      : new CallersFirst(tree, sum, ranks);
    this.boxes = [];
    let frame = this.source.root();
    this.put(frame, 0, 1, 0, []);
    this.crumbs = [];
    for (const name of choice.zoom) {
      const next = this.source.children(frame).find(it => it.name === name);
      if (!next) break;
      frame = next;
      this.crumbs.push(name);
      this.put(frame, 0, 1, this.crumbs.length, this.crumbs.slice(), true);
    }
    if (frame.total > 0) {
      this.foldRoots();
      this.layoutBelow();
    }
    this.rows = 1 + this.boxes.reduce((most, box) => Math.max(most, box.depth), 0);
    this.showCrumbs();
  }

  put(frame, x, width, depth, path, isAbove = depth === 0) {
    const box = { frame, name: frame.name, x, width, depth, path, isAbove, key: path.join('.') };
    this.boxes.push(box);
    return box;
  }

  /** Folds the frames that all shown samples have in common into one row, except the innermost. */
  foldRoots() {
    if (this.page.choice.roots || this.page.choice.order === 'callees') return;
    let last = this.boxes[this.boxes.length - 1];
    // The frame that one has zoomed to stays.
    while (!this.crumbs.length) {
      const children = last.frame.own > 0 ? [] : this.source.children(last.frame);
      if (children.length !== 1) break;
      const [next] = children;
      last = this.put(next, 0, 1, last.depth + 1, [...last.path, next.name]);
    }
    const hidden = this.boxes.length - 1;
    if (hidden < 3) return;
    const texts = this.boxes.slice(1, -1).map(box => this.nameOf(box));
    const folded = { ...this.boxes[0], folded: texts, key: 'folded', isAbove: true };
    Object.assign(last, { depth: 1, isAbove: false });
    this.boxes = [folded, last];
  }

  layoutBelow() {
    const narrowest = NARROWEST / (this.width - 2 * INSET);
    const last = this.boxes[this.boxes.length - 1];
    last.isAbove = false;
    const all = last.frame.total;
    const pending = [last];
    while (pending.length) {
      const box = pending.pop();
      let x = box.x;
      for (const frame of this.source.children(box.frame)) {
        const width = frame.total / all;
        if (width >= narrowest) {
          pending.push(this.put(frame, x, width, box.depth + 1, [...box.path, frame.name], false));
        }
        x += width;
      }
    }
  }

  nameOf(box) {
    if (box.folded) return ['all', ...box.folded].join(' › ');
    return box.name < 0 ? 'all' : this.page.trace.texts.functions[box.name];
  }

  place({ x, width, depth }) {
    const room = this.width - 2 * INSET;
    const row = this.isFlipped ? this.rows - 1 - depth : depth;
    const below = this.isFlipped
      ? Math.max(at('scroll').clientHeight - this.rows * ROW - 8, 0) : 0;
    return { x: INSET + x * room, width: width * room,
      y: row * ROW + 4 + below - at('scroll').scrollTop };
  }

  /** A click zooms to a frame, and unfolds folded ones. */
  open(box) {
    if (box.folded) {
      this.page.change({ roots: true });
      return;
    }
    this.page.change({ zoom: box.path });
    at('scroll').scrollTop = this.isFlipped ? at('scroll').scrollHeight : 0;
  }

  actionsOf(box) {
    const isInverted = this.page.choice.order === 'callees';
    const stack = isInverted ? [...box.path].reverse() : box.path;
    return { name: box.name, text: this.nameOf(box), stack, zoom: () => this.open(box) };
  }

  /** Returns the facts about a frame, one per line. */
  describe(box) {
    const { trace, tree, sum, mode, choice } = this.page;
    const { frame } = box;
    const isInverted = choice.order === 'callees';
    const weight = value => `${weightText(mode, value)} (${shareText(value, sum.nodeTotal[0])})`;
    if (box.folded) {
      return [`${box.folded.length} frames that all have in common`, ...box.folded.slice(0, 30),
        `total ${weight(frame.total)}`, 'A click shows them.'];
    }
    const lines = [this.nameOf(box)];
    const part = isInverted && box.path.length > 1 ? `called ${trace.texts.functions[box.path[0]]}`
      : 'total';
    lines.push(`${part} ${weight(frame.total)}`
      + (isInverted ? '' : `, self ${weight(frame.own)}`));
    if (frame.name < 0) return lines;
    const places = placesOf(trace, tree, sum, this.source.holds(frame));
    const all = places.reduce((known, [, value]) => known + value, 0);
    for (const [place, value] of places.slice(0, 3)) {
      lines.push(places.length > 1 ? `${place} (${shareText(value, all)} of its lines)` : place);
    }
    if (places.length > 3) lines.push(`and ${places.length - 3} other lines`);
    const origin = originOf(trace, frame.name);
    if (origin) lines.push(origin);
    return lines;
  }

  firstBox() {
    return this.boxes.find(box => !box.isAbove) || this.boxes[0];
  }

  /** Returns the next frame before or after a frame, or in or out of it. */
  beside(focus, way) {
    const { boxes } = this;
    const row = boxes.filter(box => box.depth === focus.depth)
      .sort((one, other) => one.x - other.x);
    const here = row.indexOf(focus);
    if (way === 'before') return row[here - 1];
    if (way === 'after') return row[here + 1];
    if (way === 'out') return boxes.find(box => box.depth === focus.depth - 1
      && box.x <= focus.x + 1e-9 && box.x + box.width >= focus.x + focus.width - 1e-9);
    const inside = boxes.filter(box => box.depth === focus.depth + 1
      && (focus.folded || box.path.slice(0, -1).join('.') === focus.key));
    return inside.sort((one, other) => other.width - one.width)[0];
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
    crumbs.replaceChildren(...all);
    // The last function is the current view.
    crumbs.scrollLeft = crumbs.scrollWidth;
  }
}
