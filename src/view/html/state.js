// The user's selection. It is the fragment of the address, so a link leads back to it.

const TABS = ['flame', 'tree', 'functions', 'source', 'assembly', 'spans'];
const ORDERS = ['callers', 'callees', 'time'];

class Choice {
  constructor(trace) {
    this.trace = trace;
    this.clear();
  }

  clear() {
    Object.assign(this, {
      mode: 0, window: null, ranges: [], threads: null, context: null, search: '', zoom: [],
      focus: null, hidden: [], order: 'callers', flipped: false, roots: false, apart: false,
      idle: false, folded: false, tab: 'flame', function: null, sort: 'own', ascending: false,
      treeSort: 'total', treeAscending: false, spansBy: null,
    });
  }

  /** The time that the time line shows, in microseconds since the start of the recording. */
  get range() {
    return this.ranges[this.ranges.length - 1]
      || { from: this.trace.fromUs, to: this.trace.toUs };
  }

  /** The time whose samples are summed. */
  get times() {
    return this.window || this.range;
  }

  /** Reads the address. Invalid parts are ignored. */
  read(hash) {
    this.clear();
    const { trace } = this;
    const given = new URLSearchParams(hash.replace(/^#/, ''));
    this.mode = Math.max(trace.modes.findIndex(mode => mode.name === given.get('mode')), 0);
    for (const part of (given.get('range') || '').split(',').filter(Boolean)) {
      const [from, to] = part.split('-').map(text => Number(text) * 1e6);
      if (from < to) this.addRange(from, to);
    }
    const [from, to] = ['from', 'to'].map(name => given.has(name) ? Number(given.get(name)) * 1e6
      : NaN);
    if (from >= 0 || to >= 0) this.setWindow(from >= 0 ? from : this.range.from, to >= 0 ? to
      : this.range.to);
    const ids = (given.get('thread') || '').split(',').filter(Boolean);
    const threads = ids.map(id => trace.threads.findIndex(thread => thread.id === id)).filter(at =>
      at >= 0);
    this.threads = threads.length ? new Set(threads) : null;
    for (const kind of kindsOfContexts(trace)) {
      if (given.has(kind)) this.context = { kind, value: given.get(kind) };
    }
    this.search = given.get('search') || '';
    const names = key => {
      const all = (given.get(key) || '').split('.').filter(Boolean).map(Number);
      return all.every(name => name < trace.texts.functions.length) ? all : [];
    };
    this.zoom = names('zoom');
    this.focus = names('focus')[0] ?? null;
    this.hidden = names('hide');
    this.function = names('function')[0] ?? null;
    this.order = ORDERS.includes(given.get('order')) ? given.get('order') : 'callers';
    this.roots = given.get('roots') === 'shown';
    this.apart = given.get('processes') === 'apart';
    this.folded = given.get('lines') === 'folded';
    this.flipped = given.get('rows') === 'upwards';
    this.idle = given.get('idle') === 'shown';
    this.tab = TABS.includes(given.get('view')) ? given.get('view') : 'flame';
    const sort = given.get('sort') || '';
    if (['own', 'total', 'name', 'module'].includes(sort.replace(/^-/, ''))) {
      this.sort = sort.replace(/^-/, '');
      this.ascending = sort.startsWith('-');
    }
    const treeSort = given.get('tree') || '';
    if (['own', 'total', 'name'].includes(treeSort.replace(/^-/, ''))) {
      this.treeSort = treeSort.replace(/^-/, '');
      this.treeAscending = treeSort.startsWith('-');
    }
  }

  /** Returns the selection as the fragment of the address. */
  write() {
    const { trace } = this;
    const fragment = new URLSearchParams();
    const seconds = us => String(Math.round(us) / 1e6);
    if (this.mode) fragment.set('mode', trace.modes[this.mode].name);
    if (this.ranges.length) fragment.set('range',
      this.ranges.map(({ from, to }) => `${seconds(from)}-${seconds(to)}`).join(','));
    if (this.window) {
      fragment.set('from', seconds(this.window.from));
      fragment.set('to', seconds(this.window.to));
    }
    if (this.threads) fragment.set('thread',
      [...this.threads].map(at => trace.threads[at].id).join(','));
    if (this.context) fragment.set(this.context.kind, this.context.value);
    if (this.search) fragment.set('search', this.search);
    if (this.zoom.length) fragment.set('zoom', this.zoom.join('.'));
    if (this.focus !== null) fragment.set('focus', this.focus);
    if (this.hidden.length) fragment.set('hide', this.hidden.join('.'));
    if (this.function !== null) fragment.set('function', this.function);
    if (this.order !== 'callers') fragment.set('order', this.order);
    if (this.roots) fragment.set('roots', 'shown');
    if (this.apart) fragment.set('processes', 'apart');
    if (this.folded) fragment.set('lines', 'folded');
    if (this.flipped) fragment.set('rows', 'upwards');
    if (this.idle) fragment.set('idle', 'shown');
    if (this.tab !== 'flame') fragment.set('view', this.tab);
    if (this.sort !== 'own' || this.ascending) fragment.set('sort',
      (this.ascending ? '-' : '') + this.sort);
    if (this.treeSort !== 'total' || this.treeAscending) fragment.set('tree',
      (this.treeAscending ? '-' : '') + this.treeSort);
    return fragment.toString();
  }

  /** Returns whether a thread is shown. In wall clock time idle threads would hide all others. */
  has(thread) {
    if (this.threads) return this.threads.has(thread);
    return !this.leavesOut(thread);
  }

  leavesOut(thread) {
    return !this.threads && !this.idle && this.trace.modes[this.mode].isWall
      && this.trace.threads[thread].idle;
  }

  /** Sets a window within the shown time. A window of all the time counts as no window. */
  setWindow(from, to) {
    const { range } = this;
    const { from: low, to: high } = within(range, Math.min(from, to), Math.max(from, to));
    this.window = high <= low || (low === range.from && high === range.to) ? null
      : { from: low, to: high };
  }

  /** Shows a part of the time. Every part is in the part before. */
  addRange(from, to) {
    const { range } = this;
    const inside = within(range, from, to);
    // Less than some microseconds has nothing to show.
    if (inside.to - inside.from < 10) return;
    if (inside.from > range.from || inside.to < range.to) this.ranges = [...this.ranges, inside];
  }

  /** Returns by call whether its stack is shown, or null if all are. */
  kept(tree) {
    const { focus, hidden, trace } = this;
    if (focus === null && !hidden.length) return null;
    const has = new Uint8Array(tree.count), isOut = new Uint8Array(tree.count);
    const outs = new Set(hidden);
    has[0] = focus === null ? 1 : 0;
    for (let node = 1; node < tree.count; node++) {
      has[node] = has[tree.parent[node]] || tree.name[node] === focus ? 1 : 0;
      isOut[node] = isOut[tree.parent[node]] || outs.has(tree.name[node]) ? 1 : 0;
    }
    return Uint8Array.from(trace.calls.caller, (_, call) =>
      has[tree.of[call]] && !isOut[tree.of[call]] ? 1 : 0);
  }

  /** Returns which contexts match, by number, or null if the user selected none. */
  fitting() {
    if (!this.context) return null;
    const { kind, value } = this.context;
    const fits = new Uint8Array(this.trace.contexts.length + 1);
    if (value === NONE) fits[0] = 1;
    this.trace.contexts.forEach((context, at) => {
      if ((valueOf(context, kind) ?? NONE) === value) fits[at + 1] = 1;
    });
    return fits;
  }

  /** Returns the expression to search for and whether it is valid. An invalid one is plain text. */
  expression() {
    if (!this.search) return { expression: null, isValid: true };
    try {
      return { expression: new RegExp(this.search, 'i'), isValid: true };
    } catch {
      return { expression: new RegExp(literally(this.search), 'i'), isValid: false };
    }
  }
}

/** Returns a part of a range of time, in whole microseconds. */
function within(range, from, to) {
  const inside = us => Math.min(Math.max(Math.round(us), range.from), range.to);
  return { from: inside(from), to: inside(to) };
}

const NONE = '(none)';
const OTHERS = '(other)';

function literally(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}

/** Returns the groupings of contexts in a trace: `span`, `root` and `tag:NAME`. */
function kindsOfContexts(trace) {
  const kinds = new Set();
  for (const context of trace.contexts) {
    if (context.root) kinds.add('root');
    if (context.span) kinds.add('span');
    for (const [name] of context.tags || []) kinds.add('tag:' + name);
  }
  return [...kinds].sort((one, other) => rankOfKind(one) - rankOfKind(other));
}

function rankOfKind(kind) {
  return kind === 'root' ? 0 : kind === 'span' ? 1 : 2;
}

function titleOfKind(kind) {
  return kind === 'root' ? 'Root spans' : kind === 'span' ? 'Spans' : kind.slice('tag:'.length);
}

/** Returns the value of a context for a grouping, or undefined if it has none. */
function valueOf(context, kind) {
  if (context.others) return OTHERS;
  if (kind === 'root') return context.root ?? undefined;
  if (kind === 'span') return context.span ?? undefined;
  const found = context.tags.find(([name]) => 'tag:' + name === kind);
  return found && found[1];
}

/** Returns a weight as text: as time if the length of a sampling period is known. */
function weightText(mode, weight) {
  if (!mode.unitNs) return `${Math.round(weight).toLocaleString('en')} periods`;
  return timeText(weight * mode.unitNs / 1000);
}

function timeText(us) {
  if (us >= 1e6) return `${(us / 1e6).toFixed(us >= 1e8 ? 1 : us >= 1e7 ? 2 : 3)} s`;
  if (us >= 1000) return `${(us / 1000).toFixed(us >= 1e5 ? 0 : us >= 1e4 ? 1 : 2)} ms`;
  return `${Math.round(us)} µs`;
}

function shareText(part, all) {
  const percent = all > 0 ? part * 100 / all : 0;
  return `${percent.toFixed(percent >= 9.95 ? 1 : 2)} %`;
}

/** Creates an element with these properties and children. Texts are never markup. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith('aria-') || key === 'role' || key === 'scope') made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

const at = id => document.getElementById(id);
