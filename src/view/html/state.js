// The user's selection. It is the fragment of the address, so a link leads back to it.

const TABS = ['flame', 'functions', 'spans'];

class Choice {
  constructor(trace) {
    this.trace = trace;
    this.clear();
  }

  clear() {
    Object.assign(this, {
      mode: 0, window: null, threads: null, context: null, search: '', zoom: [], inverted: false,
      flipped: false, idle: false, tab: 'flame', sort: 'own', ascending: false, spansBy: null,
    });
  }

  /** The window in microseconds since the start of the recording. */
  get times() {
    return this.window || { from: this.trace.fromUs, to: this.trace.toUs };
  }

  /** Reads the address. Invalid parts are ignored. */
  read(hash) {
    this.clear();
    const { trace } = this;
    const given = new URLSearchParams(hash.replace(/^#/, ''));
    this.mode = Math.max(trace.modes.findIndex(mode => mode.name === given.get('mode')), 0);
    const [from, to] = ['from', 'to'].map(name => given.has(name) ? Number(given.get(name)) * 1e6
      : NaN);
    if (from >= 0 || to >= 0) this.setWindow(from >= 0 ? from : trace.fromUs, to >= 0 ? to
      : trace.toUs);
    const ids = (given.get('thread') || '').split(',').filter(Boolean);
    const threads = ids.map(id => trace.threads.findIndex(thread => thread.id === id)).filter(at =>
      at >= 0);
    this.threads = threads.length ? new Set(threads) : null;
    for (const kind of kindsOfContexts(trace)) {
      if (given.has(kind)) this.context = { kind, value: given.get(kind) };
    }
    this.search = given.get('search') || '';
    const zoom = (given.get('zoom') || '').split('.').filter(Boolean).map(Number);
    this.zoom = zoom.every(name => name < trace.texts.functions.length) ? zoom : [];
    this.inverted = given.get('order') === 'callees';
    this.flipped = given.get('rows') === 'upwards';
    this.idle = given.get('idle') === 'shown';
    this.tab = TABS.includes(given.get('view')) ? given.get('view') : 'flame';
    const sort = given.get('sort') || '';
    if (['own', 'total', 'name', 'module'].includes(sort.replace(/^-/, ''))) {
      this.sort = sort.replace(/^-/, '');
      this.ascending = sort.startsWith('-');
    }
  }

  /** Returns the selection as the fragment of the address. */
  write() {
    const { trace } = this;
    const fragment = new URLSearchParams();
    const seconds = us => String(Math.round(us) / 1e6);
    if (this.mode) fragment.set('mode', trace.modes[this.mode].name);
    if (this.window) {
      fragment.set('from', seconds(this.window.from));
      fragment.set('to', seconds(this.window.to));
    }
    if (this.threads) fragment.set('thread',
      [...this.threads].map(at => trace.threads[at].id).join(','));
    if (this.context) fragment.set(this.context.kind, this.context.value);
    if (this.search) fragment.set('search', this.search);
    if (this.zoom.length) fragment.set('zoom', this.zoom.join('.'));
    if (this.inverted) fragment.set('order', 'callees');
    if (this.flipped) fragment.set('rows', 'upwards');
    if (this.idle) fragment.set('idle', 'shown');
    if (this.tab !== 'flame') fragment.set('view', this.tab);
    if (this.sort !== 'own' || this.ascending) fragment.set('sort',
      (this.ascending ? '-' : '') + this.sort);
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

  /** Sets a window within the recorded time. A window of all the time counts as no window. */
  setWindow(from, to) {
    const { fromUs, toUs } = this.trace;
    const inside = us => Math.min(Math.max(Math.round(us), fromUs), toUs);
    const [low, high] = [inside(Math.min(from, to)), inside(Math.max(from, to))];
    this.window = high <= low || (low === fromUs && high === toUs) ? null : { from: low, to: high };
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
