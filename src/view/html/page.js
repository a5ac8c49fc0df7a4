// The page: the selection, its sums, and the parts that show them.

class Page {
  constructor(trace) {
    this.trace = trace;
    this.tree = new FunctionTree(trace);
    this.choice = new Choice(trace);
    this.colors = new Colors(trace);
    this.timeline = new Timeline(this);
    this.flame = new Flame(this);
    this.ranksOf = new Map();
    this.listen();
    this.showHead();
  }

  /** Reads the selection from the address. */
  open() {
    this.choice.read(location.hash);
    at('search').value = this.choice.search;
    this.mode = null;
    this.refresh();
  }

  /** Changes the selection. */
  change(changes) {
    // In another order of the rows the paths differ.
    if ('inverted' in changes && changes.inverted !== this.choice.inverted) this.choice.zoom = [];
    Object.assign(this.choice, changes);
    if ('search' in changes) at('search').value = this.choice.search;
    this.refresh();
  }

  refreshSoon() {
    this.waiting ||= requestAnimationFrame(() => this.refresh());
  }

  /** Sums the selected samples and shows them. */
  refresh() {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    const { trace, tree, choice } = this;
    const mode = trace.modes[choice.mode];
    const rowsKey = JSON.stringify([choice.mode, choice.context]);
    const isOther = rowsKey !== this.rowsKey;
    this.rowsKey = rowsKey;
    this.mode = mode;
    this.fits = choice.fitting();
    this.ranks = this.ranksIn(mode);
    this.sum = aggregate(trace, tree, mode,
      { window: choice.times, has: thread => choice.has(thread), fits: this.fits });
    const { expression, isValid } = choice.expression();
    this.matches = expression
      && Uint8Array.from(trace.texts.functions, name => expression.test(name) ? 1 : 0);
    at('search').setAttribute('aria-invalid', String(!isValid));
    if (isOther) this.timeline.layout();
    else this.timeline.mark();
    this.isValid = isValid;
    this.showTotals(isValid);
    this.showTabs();
    this.remember();
  }

  /** The weight of each node in a complete mode, so that callees keep their order in any window. */
  ranksIn(mode) {
    if (!this.ranksOf.has(mode)) {
      const { fromUs: from, toUs: to } = this.trace;
      const all = aggregate(this.trace, this.tree, mode,
        { window: { from, to }, has: () => true, fits: null });
      this.ranksOf.set(mode, all.nodeTotal);
      mode.whole = all.weight;
    }
    return this.ranksOf.get(mode);
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
  showTotals(isValid) {
    const { sum, mode, choice, trace } = this;
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
    if (choice.window) {
      const { from, to } = choice.window;
      chips.push(chip(`${timeText(from)} to ${timeText(to)} (${timeText(to - from)})`,
        { window: null }));
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
    this.showStates();
    this.showLanguages();
    const matched = at('matched');
    const weight = this.matches ? matchedWeight(this.tree, sum, this.matches) : 0;
    matched.textContent = !this.matches ? ''
      : `${shareText(weight, sum.weight)} matches` + (isValid ? '' : ' (as plain text)');
    matched.dataset.weight = weight;
  }

  /** Shows the states, which are also the legend. */
  showStates() {
    const { sum, mode, colors } = this;
    at('states')?.remove();
    if (!mode.isWall) return;
    const shown = STATES.map((name, state) => [name, state]).filter(([, state]) =>
      sum.states[state] > 0);
    at('chosen').append(element('span', { id: 'states', className: 'states' },
      ...shown.map(([name, state]) => {
      const spot = element('i');
      spot.style.background = colors.states[state];
      const meaning = MEANINGS[name] ? ` (${MEANINGS[name]})` : '';
      const share = element('span',
        { textContent: `${name}${meaning} ${shareText(sum.states[state], sum.weight)}` });
      share.dataset.weight = sum.states[state];
      share.dataset.state = name;
      return element('span', {}, spot, share);
    })));
  }

  /** Shows the languages of the innermost functions, which are also the legend. */
  showLanguages() {
    const { sum, tree, trace, colors } = this;
    at('languages')?.remove();
    if (!trace.hasLanguages) return;
    const weights = LANGUAGES.map(() => 0);
    sum.nodeOwn.forEach((own, node) => {
      if (own === 0) return;
      while (node !== 0 && trace.kinds[tree.name[node]] > 0) node = tree.parent[node];
      if (node !== 0) weights[trace.languages[tree.name[node]]] += own;
    });
    const present = new Set(trace.languages.filter((_, name) => trace.kinds[name] === 0));
    const shown = LANGUAGES.map((name, language) => [name, language]).filter(([, language]) =>
      present.has(language));
    at('chosen').append(element('span', { id: 'languages', className: 'states' },
      ...shown.map(([name, language]) => {
      const spot = element('i');
      spot.style.background = colors.ofLanguage(language);
      const share = element('span',
        { textContent: `${name} ${shareText(weights[language], sum.weight)}` });
      share.dataset.weight = weights[language];
      share.dataset.language = name;
      return element('span', {}, spot, share);
    })));
  }

  showTabs() {
    const { choice } = this;
    for (const name of TABS) {
      const tab = at('tab-' + name), isShown = name === choice.tab;
      tab.setAttribute('aria-selected', String(isShown));
      tab.tabIndex = isShown ? 0 : -1;
      at(name).hidden = !isShown;
    }
    at('order').hidden = choice.tab !== 'flame';
    at('inverted').setAttribute('aria-pressed', String(choice.inverted));
    at('flipped').setAttribute('aria-pressed', String(choice.flipped));
    if (choice.tab === 'flame') this.flame.layout();
    if (choice.tab === 'functions') showFunctions(this);
    if (choice.tab === 'spans') showSpans(this);
  }

  /** Resets the selection. */
  reset() {
    hideTooltip();
    const { mode, tab, inverted, flipped, sort, ascending } = this.choice;
    this.choice.clear();
    this.change({ mode, tab, inverted, flipped, sort, ascending, search: '' });
  }

  listen() {
    at('reset').onclick = () => this.reset();
    at('search').addEventListener('input', event => {
      this.choice.search = event.target.value;
      this.refreshSoon();
    });
    at('inverted').onclick = () => this.change({ inverted: !this.choice.inverted });
    at('flipped').onclick = () => {
      this.change({ flipped: !this.choice.flipped });
      at('scroll').scrollTop = this.choice.flipped ? at('scroll').scrollHeight : 0;
    };
    TABS.forEach((name, place) => {
      const tab = at('tab-' + name);
      tab.onclick = () => this.change({ tab: name });
      tab.addEventListener('keydown', event => {
        const step = { ArrowLeft: TABS.length - 1, ArrowRight: 1 }[event.key];
        if (!step) return;
        const next = TABS[(place + step) % TABS.length];
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
    this.drawing = requestAnimationFrame(() => {
      this.timeline.layout();
      this.showTotals(this.isValid);
      this.showTabs();
    });
  }

  key(event) {
    const isTyping = event.target === at('search');
    if (event.key === '/' && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      at('search').focus();
      at('search').select();
    } else if (event.key === 'Escape') {
      event.preventDefault();
      this.back(event.target);
    }
  }

  /** Goes one step back, in the focused part first. Only the button resets everything at once. */
  back(from) {
    hideTooltip();
    const { search, window, zoom, context, threads } = this.choice;
    if (from === at('search')) {
      from.blur();
      if (search) this.change({ search: '' });
    } else if (from === at('strip') && window) {
      this.change({ window: null });
    } else if (zoom.length) {
      this.change({ zoom: zoom.slice(0, -1) });
    } else {
      const chosen = Object.entries({ window, context, threads, search }).find(([, value]) =>
        value);
      if (chosen) this.change({ [chosen[0]]: chosen[0] === 'search' ? '' : null });
    }
  }

  /** Draws in light colours for printing, or for the screen again. */
  print(isPrinted) {
    if (isPrinted) document.documentElement.dataset.printed = 'yes';
    else delete document.documentElement.dataset.printed;
    this.colors.update();
    this.timeline.layout();
    this.showTotals(this.isValid);
    this.showTabs();
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
    page.open();
    problem.textContent = '';
    problem.hidden = true;
    document.documentElement.dataset.ready = 'yes';
  } catch (error) {
    problem.textContent = `This page cannot be shown: ${error && error.message}. `
      + 'The file may be cut off: write it anew with traceprof view.';
    throw error;
  }
})();
