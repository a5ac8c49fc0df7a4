// The page: the selection, its sums, and the parts that show them.

class Page {
  constructor(trace) {
    this.trace = trace;
    this.choice = new Choice(trace);
    this.colors = new Colors(trace);
    this.timeline = new Timeline(this);
    this.flame = new Flame(this);
    this.chart = new StackChart(this);
    this.graph = new Graph(this);
    this.callTree = new TreeTable(this, 'tree-table', 'Call tree');
    this.callers = new TreeTable(this, 'callers-table', 'Callers');
    this.callees = new TreeTable(this, 'callees-table', 'Callees');
    this.slices = new Slices();
    this.trees = new Map();
    this.ranksOf = new Map();
    const isEmpty = { spans: !kindsOfContexts(trace).length,
      source: !Object.keys(trace.sources || {}).length,
      assembly: !trace.assembly };
    this.tabs = TABS.filter(name => !isEmpty[name]);
    this.listen();
    this.showHead();
  }

  /** Reads the selection from the address. */
  open() {
    this.choice.read(location.hash);
    at('search').value = this.choice.search;
    this.lanesKey = this.cellsKey = null;
    this.refresh();
  }

  /** Changes the selection. */
  change(changes) {
    // In another order of the rows, and of other processes, the paths differ.
    for (const key of ['order', 'apart']) {
      if (key in changes && changes[key] !== this.choice[key] && !('zoom' in changes)) {
        this.choice.zoom = [];
      }
    }
    this.isMoving = false;
    Object.assign(this.choice, changes);
    if ('search' in changes) at('search').value = this.choice.search;
    this.refresh();
  }

  /** Zooms to a part of the time. */
  zoomTo(from, to) {
    this.choice.addRange(from, to);
    this.change({ window: null });
  }

  /** Zooms by a factor about a place between 0 and 1 of the shown time. */
  scale(factor, share) {
    const { from, to } = this.choice.times;
    const here = from + (to - from) * Math.min(Math.max(share, 0), 1);
    this.moveTo(here - (here - from) * factor, here + (to - here) * factor);
  }

  /** Moves by a share of the shown time. */
  pan(share) {
    const { trace, choice } = this;
    const { from, to } = choice.times;
    const step = Math.min(Math.max((to - from) * share, trace.fromUs - from), trace.toUs - to);
    this.moveTo(from + step, to + step);
  }

  /** Shows another part of the time. One movement is one step for the way back. */
  moveTo(from, to) {
    const { choice, trace } = this;
    const low = Math.max(from, trace.fromUs), high = Math.min(to, trace.toUs);
    if (high - low < 10) return;
    const before = this.isMoving ? choice.ranges.slice(0, -1) : choice.ranges;
    choice.ranges = before.filter(range => range.from <= low && range.to >= high);
    const count = choice.ranges.length;
    choice.addRange(low, high);
    this.isMoving = choice.ranges.length > count;
    choice.window = null;
    this.refreshSoon();
  }

  refreshSoon() {
    this.waiting ||= requestAnimationFrame(() => {
      this.waiting = 0;
      // What is being summed is shown before anything newer, else a drag would never show it.
      if (this.slices.isBusy) this.refreshSoon();
      else this.refresh();
    });
  }

  /** Sums the selected samples and shows them. */
  refresh() {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    const { trace, choice } = this;
    this.mode = trace.modes[choice.mode];
    this.tree = this.treeOf(choice.apart || !trace.joined);
    this.fits = choice.fitting();
    const keptKey = JSON.stringify([choice.focus, choice.hidden, choice.apart]);
    if (keptKey !== this.keptKey) this.kept = choice.kept(this.tree);
    this.keptKey = keptKey;
    const { expression, isValid } = choice.expression();
    this.matches = expression
      && Uint8Array.from(trace.texts.functions, name => expression.test(name) ? 1 : 0);
    this.isValid = isValid;
    at('search').setAttribute('aria-invalid', String(!isValid));
    const lanesKey = [choice.mode, choice.folded].join(' ');
    if (lanesKey !== this.lanesKey) this.timeline.layout();
    else this.timeline.mark();
    this.lanesKey = lanesKey;
    const cellsKey = JSON.stringify([lanesKey, keptKey, choice.context, choice.range]);
    const isOther = cellsKey !== this.cellsKey;
    this.slices.run(this.work(isOther), ({ sum, ranks, cells }) => {
      Object.assign(this, { sum, ranks, cellsKey });
      if (cells) this.timeline.draw(cells);
      this.showTotals();
      this.showTabs();
      this.remember();
      this.resolveReady?.();
    }, Boolean(document.documentElement.dataset.printed));
  }

  /** All sums of a refresh. */
  *work(hasOtherCells) {
    const { trace, tree, mode, choice, fits, kept } = this;
    const ranks = yield* this.ranksIn(mode);
    const sum = yield* summed(trace, tree, mode,
      { window: choice.times, has: thread => choice.has(thread), fits, kept });
    return { sum, ranks, cells: hasOtherCells ? yield* this.timeline.measure() : null };
  }

  treeOf(isApart) {
    if (!this.trees.has(isApart)) {
      const names = isApart ? Uint32Array.from(this.trace.texts.functions.keys())
        : this.trace.joined;
      this.trees.set(isApart, new FunctionTree(this.trace, names));
    }
    return this.trees.get(isApart);
  }

  /** The weight of each node in a complete mode, so that callees keep their order in any window. */
  *ranksIn(mode) {
    const { tree, ranksOf } = this;
    if (ranksOf.get(mode)?.tree !== tree) {
      const { fromUs: from, toUs: to } = this.trace;
      const all = yield* summed(this.trace, tree, mode,
        { window: { from, to }, has: () => true, fits: null, kept: null });
      ranksOf.set(mode, { tree, weights: all.nodeTotal });
      mode.whole = all.weight;
    }
    return ranksOf.get(mode).weights;
  }

  remember() {
    // Browsers accept a new address only a few times per second, and a pointer moves more often.
    if (this.isDragging) return;
    const fragment = this.choice.write();
    try {
      history.replaceState(null, '', fragment ? '#' + fragment
        : location.pathname + location.search);
    } catch {
      // A page inside a frame has no address of its own to link to.
    }
  }

  showHead() {
    const { trace } = this;
    const title = trace.title || 'traceprof';
    document.title = `${title} - traceprof`;
    at('title').textContent = title;
    const parts = [];
    if (trace.startMs) {
      const date = new Date(trace.startMs).toISOString().replace('T', ' ').slice(0, 19);
      parts.push(date + ' UTC');
    }
    parts.push(trace.window || timeText(trace.toUs - trace.fromUs));
    parts.push(`${trace.threads.length} thread${trace.threads.length === 1 ? '' : 's'}`);
    at('subtitle').textContent = parts.join(', ');
    const modes = at('modes');
    modes.hidden = trace.modes.length < 2;
    this.modeButtons = trace.modes.map((mode, place) => element('button', {
      type: 'button', textContent: mode.isWall ? 'All time' : 'CPU time',
      title: mode.isWall ? 'Time of all threads, whether they run or not' : 'Time on processors',
      onclick: () => this.change({ mode: place, zoom: [] }),
    }));
    modes.replaceChildren(...this.modeButtons);
    at('title').title = `${title}, ${parts.join(', ')}`;
    at('processes').hidden = !trace.joined;
  }

  showFacts() {
    const { mode } = this;
    const rows = [...mode.about];
    if (mode.cellUs) {
      const entries = mode.time.length, factor = mode.samples / Math.max(entries, 1);
      rows.push(['merged',
        `${mode.samples.toLocaleString('en')} samples to ${entries.toLocaleString('en')} `
        + `(1 in ${factor.toFixed(1)}): those of one thread and one stack within `
        + `${timeText(mode.cellUs)}; weights are those of all`]);
    }
    if (mode.large) rows.push(['large', mode.large]);
    at('facts').replaceChildren(...rows.flatMap(([label, text]) => [
      element('dt', { textContent: label }), element('dd', { textContent: text }),
    ]));
    const quality = ['rooted', 'lost', 'cpu time', 'damage', 'note', 'merged', 'large'];
    const shown = rows.filter(([label]) => quality.includes(label));
    const texts = shown.map(([label, text]) => label === 'lost' ? `lost: ${text}` : text);
    at('quality').textContent = texts.join('; ');
  }

  /** Shows the weight of the selection, and its parts. */
  showTotals() {
    const { sum, mode, choice, trace, isValid } = this;
    this.showFacts();
    this.modeButtons.forEach((button, place) =>
      button.setAttribute('aria-pressed', String(place === choice.mode)));
    const total = at('total');
    total.textContent = `${weightText(mode, sum.weight)} (${shareText(sum.weight, mode.whole)}) `
      + `in ${sum.samples.toLocaleString('en')} samples`;
    total.dataset.weight = sum.weight;
    total.dataset.samples = sum.samples;
    const chip = (text, changes) => element('button', {
      type: 'button', textContent: text + '  ✕', title: 'Show all again', onclick: () =>
        this.change(changes),
    });
    const chips = [];
    const rangeText = ({ from, to }) =>
      `${timeText(from)} to ${timeText(to)} (${timeText(to - from)})`;
    if (choice.window) {
      chips.push(chip(rangeText(choice.window), { window: null }), element('button', {
        id: 'zoom-in', type: 'button', textContent: 'Zoom to it', title: 'Key w, or a double click',
        onclick: () => this.zoomTo(choice.window.from, choice.window.to),
      }));
    }
    if (choice.ranges.length) {
      chips.push(chip(`zoomed to ${rangeText(choice.range)}`,
        { ranges: choice.ranges.slice(0, -1), window: null }));
    }
    const { functions } = trace.texts;
    if (choice.focus !== null) chips.push(chip(`focus: ${functions[choice.focus]}`,
      { focus: null }));
    for (const name of choice.hidden) {
      chips.push(chip(`hidden: ${functions[name]}`,
        { hidden: choice.hidden.filter(it => it !== name) }));
    }
    if (choice.threads) {
      const names = [...choice.threads].map(thread =>
        `${trace.threads[thread].name} (${trace.threads[thread].id})`);
      chips.push(chip(names.length > 2 ? `${names.length} threads: ${names.join(', ')}`
        : names.join(', '), { threads: null }));
    }
    const leftOut = trace.threads.filter((_, thread) => choice.leavesOut(thread)).length;
    if (leftOut) chips.push(chip(`without ${leftOut} idle thread${leftOut === 1 ? '' : 's'}`,
      { idle: true }));
    if (choice.context) {
      const kind = choice.context.kind.replace(/^tag:/, '');
      chips.push(chip(`${kind} ${choice.context.value}`, { context: null }));
    }
    at('chips').replaceChildren(...chips);
    showLegend(this);
    const matched = at('matched');
    const weight = this.matches ? matchedWeight(this.tree, sum, this.matches) : 0;
    matched.textContent = !this.matches ? ''
      : `${shareText(weight, sum.weight)} matches` + (isValid ? '' : ' (as plain text)');
    matched.dataset.weight = weight;
  }

  showTabs() {
    const { choice, tree, sum } = this;
    if (!this.tabs.includes(choice.tab)) choice.tab = 'flame';
    for (const name of TABS) {
      const tab = at('tab-' + name), isShown = name === choice.tab;
      tab.hidden = !this.tabs.includes(name);
      tab.setAttribute('aria-selected', String(isShown));
      tab.tabIndex = isShown ? 0 : -1;
      at(name).hidden = !isShown;
    }
    for (const id of ['order', 'rows', 'crumbs']) at(id).hidden = choice.tab !== 'flame';
    for (const order of ORDERS) {
      at('order-' + order).setAttribute('aria-pressed', String(order === choice.order));
    }
    at('flipped').setAttribute('aria-pressed', String(choice.flipped));
    at('flipped').hidden = choice.order === 'time';
    at('roots').setAttribute('aria-pressed', String(choice.roots));
    at('joined').setAttribute('aria-pressed', String(!choice.apart));
    at('apart').setAttribute('aria-pressed', String(choice.apart));
    if (choice.tab === 'flame') this.graph.layout();
    if (choice.tab === 'tree') {
      this.callTree.show(new CallersFirst(tree, sum, this.ranks), choice.apart, true);
    }
    if (choice.tab === 'functions') showFunctions(this);
    if (choice.tab === 'source') showSource(this);
    if (choice.tab === 'assembly') showAssembly(this);
    if (choice.tab === 'spans') showSpans(this);
  }

  /** Says for a moment what was done. */
  say(text) {
    at('said').textContent = text;
    at('said').hidden = false;
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { at('said').hidden = true; }, 2000);
  }

  /** Shows everything as it was at first. */
  reset() {
    hideTooltip();
    this.choice.clear();
    this.timeline.unfolded.clear();
    for (const table of [this.callTree, this.callers, this.callees]) table.clear();
    this.lanesKey = null;
    for (const id of ['scroll', 'lanes', 'tree', 'function-list']) at(id).scrollTop = 0;
    this.change({ search: '' });
  }

  listen() {
    at('reset').onclick = () => this.reset();
    at('search').addEventListener('input', event => {
      this.choice.search = event.target.value;
      this.refreshSoon();
    });
    for (const order of ORDERS) at('order-' + order).onclick = () => this.change({ order });
    at('roots').onclick = () => this.change({ roots: !this.choice.roots });
    at('joined').onclick = () => this.change({ apart: false });
    at('apart').onclick = () => this.change({ apart: true });
    at('keys').onclick = toggleHelp;
    listenToFunctions(this);
    listenToAssembly();
    addEventListener('pointerdown', event => {
      if (menuIsOpen() && !at('menu').contains(event.target)) at('menu').hidden = true;
    });
    at('flipped').onclick = () => {
      this.change({ flipped: !this.choice.flipped });
      at('scroll').scrollTop = this.choice.flipped ? at('scroll').scrollHeight : 0;
    };
    this.tabs.forEach((name, place) => {
      const tab = at('tab-' + name);
      tab.onclick = () => this.change({ tab: name });
      tab.addEventListener('keydown', event => {
        const step = { ArrowLeft: this.tabs.length - 1, ArrowRight: 1 }[event.key];
        if (!step) return;
        const next = this.tabs[(place + step) % this.tabs.length];
        this.change({ tab: next });
        at('tab-' + next).focus();
      });
    });
    addEventListener('keydown', event => this.key(event));
    addEventListener('hashchange', () => this.open());
    addEventListener('resize', () => this.redraw());
    addEventListener('beforeprint', () => this.print(true));
    addEventListener('afterprint', () => this.print(false));
    dark.addEventListener('change', () => {
      this.colors.update();
      this.redraw();
    });
  }

  redraw() {
    cancelAnimationFrame(this.drawing);
    this.drawing = requestAnimationFrame(() => this.relayout());
  }

  /** Draws everything anew, in another size or with other rows. */
  relayout() {
    this.lanesKey = this.cellsKey = null;
    this.refresh();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'Escape') {
      event.preventDefault();
      if (at('help').open) toggleHelp();
      else this.back(event.target);
      return;
    }
    if (/^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
    const { choice } = this;
    const acts = {
      '/': () => {
        at('search').focus();
        at('search').select();
      },
      '?': toggleHelp,
      w: () => choice.window && this.zoomTo(choice.window.from, choice.window.to),
      Backspace: () => this.change({ ranges: choice.ranges.slice(0, -1), window: null }),
      '+': () => this.scale(0.5, 0.5),
      '-': () => this.scale(2, 0.5),
      t: () => this.change({ folded: !choice.folded }),
      m: () => this.change({ tab: 'flame',
        order: ORDERS[(ORDERS.indexOf(choice.order) + 1) % ORDERS.length] }),
      1: () => this.change({ tab: this.tabs[0] }),
      2: () => this.change({ tab: this.tabs[1] }),
      3: () => this.change({ tab: this.tabs[2] }),
      4: () => this.change({ tab: this.tabs[3] ?? choice.tab }),
      5: () => this.change({ tab: this.tabs[4] ?? choice.tab }),
      6: () => this.change({ tab: this.tabs[5] ?? choice.tab }),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** Goes one step back, in the focused part first. Only the button resets everything at once. */
  back(from) {
    hideTooltip();
    const { search, window, zoom, ranges, focus, hidden, context, threads } = this.choice;
    if (from === at('search')) {
      from.blur();
      if (search) this.change({ search: '' });
    } else if (from === at('strip') && window) {
      this.change({ window: null });
    } else if (zoom.length) {
      this.change({ zoom: zoom.slice(0, -1) });
    } else if (window) {
      this.change({ window: null });
    } else if (ranges.length) {
      this.change({ ranges: ranges.slice(0, -1) });
    } else if (hidden.length) {
      this.change({ hidden: hidden.slice(0, -1) });
    } else {
      const chosen = Object.entries({ focus: focus !== null, context, threads, search })
        .find(([, value]) => value);
      if (chosen) this.change({ [chosen[0]]: chosen[0] === 'search' ? '' : null });
    }
  }

  /** Draws in light colours for printing, or for the screen again. */
  print(isPrinted) {
    if (isPrinted) document.documentElement.dataset.printed = 'yes';
    else delete document.documentElement.dataset.printed;
    this.colors.update();
    this.relayout();
  }
}

(async () => {
  const problem = at('problem');
  if (!window.DecompressionStream) {
    problem.textContent = 'This page needs a browser of 2023 or later (DecompressionStream).';
    return;
  }
  problem.textContent = 'Unpacking the samples…';
  try {
    const page = new Page(await readTrace());
    window.traceprof = page;
    await new Promise(resolve => {
      page.resolveReady = resolve;
      page.open();
    });
    problem.textContent = '';
    problem.hidden = true;
    document.documentElement.dataset.ready = 'yes';
  } catch (error) {
    problem.textContent = `This page cannot be shown: ${error && error.message}. `
      + 'The file may be cut off: write it anew with traceprof view.';
    throw error;
  }
})();
