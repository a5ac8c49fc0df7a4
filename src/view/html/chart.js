// The stack chart: the calls of threads as bars in time order, one block of rows per thread.

/** Maximum number of samples of a thread that are scanned for the deepest stack. */
const SCANNED_MAX = 5_000;

class StackChart {
  constructor(page) {
    this.page = page;
    this.boxes = [];
    this.rows = 1;
    this.extents = new Map();
    this.segments = new Map();
    this.depths = new Map();
  }

  get isFlipped() {
    return false;
  }

  /** Lays out the threads, one below the other, the heaviest first. */
  layout(width) {
    const { trace, mode, choice } = this.page;
    this.width = width;
    this.window = choice.times;
    const shown = trace.threads.map((_, thread) => thread).filter(thread =>
      choice.has(thread) && mode.weightOf[thread] > 0);
    shown.sort((one, other) => mode.weightOf[other] - mode.weightOf[one] || one - other);
    let top = 0;
    // Rows stay where they are while the time moves below the pointer.
    if (!this.page.isMoving) this.depths.clear();
    this.blocks = shown.map(thread => {
      const extent = { ...this.extentOf(thread) };
      if (!this.depths.has(thread)) this.depths.set(thread, this.depthOf(thread, extent));
      extent.depth = this.depths.get(thread);
      const block = { thread, top, ...extent };
      top += 1 + extent.depth - extent.hidden + (extent.hidden ? 1 : 0);
      return block;
    }).filter(block => block.depth > 0);
    this.rows = Math.max(top, 1);
    this.boxes = [];
    this.shown = null;
    at('crumbs').replaceChildren();
    this.show(at('scroll').scrollTop, Math.max(at('scroll').clientHeight, 40));
  }

  /** Returns the deepest stack of a thread, and the number of frames that all its stacks share. */
  extentOf(thread) {
    const { tree, mode, choice, kept, fits } = this.page;
    const key = [mode.name, thread, choice.roots].join(' ');
    if (this.extentTree !== tree || this.extentKept !== kept || this.extentFits !== fits) {
      this.extents.clear();
      Object.assign(this, { extentTree: tree, extentKept: kept, extentFits: fits });
      this.seen = new Uint32Array(tree.count);
      this.stamp = 0;
    }
    let known = this.extents.get(key);
    if (known) return known;
    // Each thread has a stamp of its own, so that the array is not cleared.
    const { seen } = this, stamp = ++this.stamp;
    let depth = 0, common = -1;
    for (let row = mode.first[thread]; row < mode.first[thread + 1]; row++) {
      const node = tree.of[mode.call[row]];
      if (seen[node] === stamp || !this.isShown(row)) continue;
      seen[node] = stamp;
      depth = Math.max(depth, tree.depth[node]);
      if (common < 0) common = node;
      while (common !== tree.callerAt(node, tree.depth[common])) common = tree.parent[common];
    }
    // The innermost of the common frames keeps a row of its own.
    let hidden = common < 0 || choice.roots ? 0 : Math.max(tree.depth[common] - 1, 0);
    if (hidden < 2) hidden = 0;
    known = { depth, hidden, common };
    this.extents.set(key, known);
    return known;
  }

  /** Returns the deepest stack of a thread in the shown time, or of all where that is long. */
  depthOf(thread, { depth, hidden }) {
    const { tree, mode } = this.page;
    const { from, to } = this.window;
    // A piece may be some times as long before its end as its sample.
    const { low, high } = rowsIn(mode, thread, { from, to: to + 4 * mode.longest[thread] });
    if (high - low > SCANNED_MAX) return depth;
    let deepest = Math.min(hidden + 1, depth);
    for (let row = low; row < high; row++) {
      if (this.isShown(row)) deepest = Math.max(deepest, tree.depth[tree.of[mode.call[row]]]);
    }
    return deepest;
  }

  /** Returns the pieces of time of a thread. */
  segmentsOf(thread) {
    const { trace, mode } = this.page;
    const key = `${mode.name} ${thread}`;
    if (!this.segments.has(key)) this.segments.set(key, segmentsOf(trace, mode, thread));
    return this.segments.get(key);
  }

  isShown(row) {
    const { mode, kept, fits } = this.page;
    return (!kept || kept[mode.call[row]]) && (!fits || fits[mode.context[row]]);
  }

  /** Makes the bars of the visible blocks. */
  show(scrollTop, height) {
    const visible = this.blocks.filter(block =>
      (block.top + block.depth + 2) * ROW >= scrollTop && block.top * ROW <= scrollTop + height);
    const shown = visible.map(block => block.thread).join(' ');
    if (shown === this.shown) return;
    this.shown = shown;
    this.boxes = [];
    for (const block of visible) this.fill(block);
  }

  get room() {
    return Math.max(Math.floor(this.width - 2 * INSET), 1);
  }

  fill(block) {
    const { trace } = this.page;
    const { thread, hidden } = block;
    const title = { name: -1, isTitle: true, thread, x: 0, width: this.room, row: block.top,
      key: `title ${thread}`, text: titleOfThread(trace, thread) };
    const { to, row, count } = this.segmentsOf(thread);
    const low = firstNotBelow(to, 0, count, this.window.from);
    const high = firstNotBelow(to, low, count, this.window.to + 1);
    // The ends of single samples.
    if (high - low < this.room / 4) {
      title.marks = [];
      for (let piece = low; piece < high; piece++) {
        if (this.isShown(row[piece])) title.marks.push(INSET + this.pixelOf(to[piece]));
      }
    }
    this.boxes.push(title);
    if (hidden) {
      const path = this.page.tree.pathOf(block.common).slice(0, hidden);
      this.boxes.push({ name: -1, isAbove: true, folded: path, thread, x: 0, width: this.room,
        row: block.top + 1, key: `folded ${thread}`,
        text: path.map(name => trace.texts.functions[name]).join(' › ') });
    }
    this.fillBars(block);
  }

  /** Makes bars of the samples in each column. A bar goes on while the calls stay. */
  fillBars(block) {
    const { tree, mode } = this.page;
    const { thread, hidden } = block;
    const pieces = this.piecesAt(thread);
    const { row: rows } = this.segmentsOf(thread);
    const first = block.top + 1 + (hidden ? 1 : 0);
    const open = [];
    for (let column = 0; column <= pieces.length; column++) {
      const x = Math.min(column * CELL, this.room);
      const piece = column < pieces.length ? pieces[column] : -1;
      const node = piece < 0 ? 0 : tree.of[mode.call[rows[piece]]];
      // Where the calls stay the same, so do all bars.
      if (open.length && node === open[open.length - 1].node) continue;
      const depth = tree.depth[node];
      let same = Math.min(open.length, Math.max(depth - hidden, 0));
      while (same > 0 && open[same - 1].node !== tree.callerAt(node, hidden + same)) same--;
      for (const bar of open.splice(same)) {
        bar.width = x - bar.x;
        this.boxes.push(bar);
      }
      for (let at = hidden + same + 1; at <= depth; at++) {
        const caller = tree.callerAt(node, at);
        open.push({ name: tree.name[caller], node: caller, piece, thread, x,
          row: first + at - hidden - 1, key: `${thread} ${caller} ${piece}` });
      }
    }
  }

  /** Returns the piece in each column: the one at its middle, else the first one in it; or -1. */
  piecesAt(thread) {
    const { from, to } = this.window;
    const { from: begins, to: ends, row, count } = this.segmentsOf(thread);
    const each = (to - from) / this.room * CELL;
    const gap = this.gapOf(thread);
    const pieces = new Int32Array(Math.ceil(this.room / CELL)).fill(-1);
    let first = firstNotBelow(ends, 0, count, from);
    for (let column = 0; column < pieces.length && first < count; column++) {
      const left = from + column * each;
      first = firstNotBelow(ends, first, count, left);
      const middle = firstNotBelow(ends, first, count, left + each / 2);
      for (const piece of [middle, first]) {
        const limit = piece === middle ? left + each / 2 : left + each;
        if (piece >= count || begins[piece] - gap > limit || !this.isShown(row[piece])) continue;
        pieces[column] = piece;
        break;
      }
    }
    return pieces;
  }

  /** Returns the time between two samples that does not end a call. */
  gapOf(thread) {
    const { mode } = this.page;
    const { first, time, unitUs } = mode;
    if (unitUs && !mode.isWall) return unitUs;
    const count = first[thread + 1] - first[thread];
    const usual = count > 1 ? (time[first[thread + 1] - 1] - time[first[thread]]) / count : 0;
    return Math.min(usual, 10_000);
  }

  pixelOf(us) {
    const { from, to } = this.window;
    return (us - from) / Math.max(to - from, 1) * this.room;
  }

  place({ x, width, row }) {
    return { x: INSET + x, width, y: row * ROW + 4 - at('scroll').scrollTop };
  }

  nameOf(box) {
    return box.text ?? this.page.trace.texts.functions[box.name];
  }

  /** Returns the time of a call, and its samples: those beside each other with the same calls. */
  spanOf({ node, piece, thread }) {
    const { tree, mode } = this.page;
    const { from, to, row, count } = this.segmentsOf(thread);
    const depth = tree.depth[node], gap = this.gapOf(thread);
    const isIn = at => this.isShown(row[at])
      && tree.callerAt(tree.of[mode.call[row[at]]], depth) === node;
    let low = piece, high = piece;
    while (low > 0 && from[low] - gap <= to[low - 1] && isIn(low - 1)) low--;
    while (high + 1 < count && from[high + 1] - gap <= to[high] && isIn(high + 1)) high++;
    return { from: from[low], to: to[high],
      samples: new Set(row.subarray(low, high + 1)).size };
  }

  /** A click zooms to the time of a call, chooses a thread, or unfolds folded frames. */
  open(box) {
    if (box.folded) this.page.change({ roots: true });
    else if (box.isTitle) this.page.change({ threads: new Set([box.thread]) });
    else {
      const { from, to } = this.spanOf(box);
      // An instant gets some time around it.
      const least = Math.max(this.gapOf(box.thread), 100);
      const more = Math.max(least - (to - from), 0) / 2;
      this.page.zoomTo(from - more, to + more);
    }
  }

  actionsOf(box) {
    const stack = box.node ? this.page.tree.pathOf(box.node) : box.folded || [];
    return { name: box.name, text: this.nameOf(box), stack, zoom: () => this.open(box) };
  }

  /** Returns the facts about a call, one per line. */
  describe(box) {
    const { trace, tree, mode } = this.page;
    if (box.isTitle) return [box.text, 'A click shows this thread alone.'];
    if (box.folded) {
      return [`${box.folded.length} frames that all have in common`,
        ...box.folded.slice(0, 30).map(name => trace.texts.functions[name]), 'A click shows them.'];
    }
    const { from, to, samples } = this.spanOf(box);
    const lines = [this.nameOf(box)];
    lines.push(`${timeText(to - from)}, from ${timeText(from)} to ${timeText(to)}, `
      + `${samples.toLocaleString('en')} sample${samples === 1 ? '' : 's'}`);
    let call = mode.call[this.segmentsOf(box.thread).row[box.piece]];
    for (let more = tree.depth[tree.of[call]] - tree.depth[box.node]; more > 0; more--) {
      call = trace.calls.caller[call];
    }
    const frame = trace.calls.frame[call];
    const file = trace.frames.file[frame], line = trace.frames.line[frame];
    if (file) lines.push(trace.texts.files[file - 1] + (line ? ':' + line : ''));
    const origin = originOf(trace, box.name);
    if (origin) lines.push(origin);
    return [...lines, titleOfThread(trace, box.thread)];
  }

  firstBox() {
    return this.boxes.find(box => box.node);
  }

  /** Returns the next bar before or after a bar, or in or out of it. */
  beside(focus, way) {
    const row = { out: focus.row - 1, in: focus.row + 1 }[way] ?? focus.row;
    const beside = this.boxes.filter(box => box.row === row && box.thread === focus.thread)
      .sort((one, other) => one.x - other.x);
    const here = beside.indexOf(focus);
    if (way === 'before') return beside[here - 1];
    if (way === 'after') return beside[here + 1];
    const touching = beside.filter(box => box.x < focus.x + focus.width
      && box.x + box.width > focus.x);
    return touching.sort((one, other) => other.width - one.width)[0];
  }
}

/** Returns the name of a thread with its number and, if there are several, its process. */
function titleOfThread(trace, thread) {
  const { name, id, pid } = trace.threads[thread];
  const areSeveral = trace.threads.some(other => other.pid !== pid);
  return `${name}, thread ${id}` + (areSeveral ? ` of process ${pid}` : '');
}
