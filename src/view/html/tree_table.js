// A tree as a table whose rows open and close: the call tree, and callers and callees.

class TreeTable {
  /** `id` is that of the table, `title` the name of the tree and of its first column. */
  constructor(page, id, title) {
    Object.assign(this, { page, table: at(id), title, opened: new Map(), rows: [], chosen: null });
    this.table.tabIndex = 0;
    this.table.setAttribute('role', 'treegrid');
    this.table.setAttribute('aria-label', title);
    this.table.addEventListener('keydown', event => this.key(event));
    this.table.addEventListener('click', event => this.click(event));
    this.table.addEventListener('contextmenu', event => this.menu(event));
  }

  /** Closes all rows, as at first. */
  clear() {
    this.opened.clear();
    this.chosen = null;
  }

  /** Shows a tree. Trees of different `kind` have different open rows. */
  show(source, kind, isFiltered) {
    const { page } = this;
    this.source = source;
    this.leads = isFiltered && page.matches ? leadsOf(page.tree, page.matches) : null;
    const root = source.root();
    if (!this.opened.has(kind)) this.opened.set(kind, this.heaviest(root));
    this.open = this.opened.get(kind);
    this.all = page.sum.weight;
    this.root = root;
    this.fill();
  }

  /** Returns the heaviest rows, down to the first place where the weight spreads. */
  heaviest(root) {
    const open = new Set();
    let frame = root, key = '';
    for (let depth = 0; depth < 60; depth++) {
      const [next] = this.source.children(frame).sort((one, other) => other.total - one.total);
      if (!next || depth > 0 && next.total < frame.total / 2) break;
      key += '.' + next.name;
      open.add(key);
      frame = next;
    }
    return open;
  }

  childrenOf(frame, isMatched) {
    const { treeSort, treeAscending } = this.page.choice;
    const { functions } = this.page.trace.texts;
    const isLeading = it => !this.leads || isMatched || this.leads[it.node];
    const children = this.source.children(frame).filter(isLeading);
    const compare = treeSort === 'name'
      ? (one, other) => functions[other.name].localeCompare(functions[one.name])
      : (one, other) => other[treeSort] - one[treeSort] || other.total - one.total;
    return children.sort(treeAscending ? (one, other) => compare(other, one) : compare);
  }

  /** Lists the visible rows, and shows them. */
  fill() {
    const { matches } = this.page;
    this.rows = [];
    let more = 0;
    const pending = [];
    const push = (frame, path, key, isMatched) => {
      for (const child of this.childrenOf(frame, isMatched).reverse()) {
        pending.push({ frame: child, path: [...path, child.name], key: `${key}.${child.name}`,
          isMatched: isMatched || Boolean(matches?.[child.name]) });
      }
    };
    push(this.root, [], '', false);
    while (pending.length) {
      const row = pending.pop();
      if (this.rows.length >= ROWS_MAX) {
        more++;
        continue;
      }
      row.leads = this.source.children(row.frame).length > 0;
      row.isOpen = row.leads && this.open.has(row.key);
      this.rows.push(row);
      if (row.isOpen) push(row.frame, row.path, row.key, row.isMatched);
    }
    if (!this.rows.some(row => row.key === this.chosen)) this.chosen = this.rows[0]?.key ?? null;
    const { treeSort, treeAscending } = this.page.choice;
    const head = (title, sort, className) => columnHead(title, treeSort === sort, treeAscending,
      className, () => this.page.change({ treeSort: sort,
        treeAscending: treeSort === sort ? !treeAscending : sort === 'name' }));
    const none = () => element('th', { scope: 'col' });
    this.table.replaceChildren(
      element('thead', {}, element('tr', {}, head('Self', 'own', ''), none(),
        head('Total', 'total', ''), none(), none(),
        head(this.title + (more ? ` (${ROWS_MAX} rows and more)` : ''), 'name', 'text'))),
      element('tbody', {}, ...this.rows.map(row => this.line(row))));
    if (!this.rows.length) {
      this.table.append(element('caption', { textContent: `${this.title}: none` }));
    }
  }

  line(row) {
    const { page } = this;
    const { functions, modules } = page.trace.texts;
    const { frame, path } = row;
    const text = functions[frame.name];
    const spot = element('i', { className: 'spot' });
    spot.style.background = page.colors.fill(frame.name);
    const twist = !row.leads ? '' : row.isOpen ? '▾' : '▸';
    const name = element('td', { className: 'name', title: text },
      element('span', { className: 'twist', textContent: twist }),
      spot, text, element('small', { textContent: modules[frame.name] }));
    name.style.paddingLeft = `${Math.min(path.length - 1, 40) * 12 + 8}px`;
    const line = element('tr', {
      className: page.matches?.[frame.name] ? 'found' : '', role: 'row',
      'aria-level': String(path.length), 'aria-selected': String(row.key === this.chosen),
    }, ...numbersOf(page.mode, frame.own, this.all), ...numbersOf(page.mode, frame.total, this.all),
    shareBar(frame.total, this.all), name);
    if (row.leads) line.setAttribute('aria-expanded', String(row.isOpen));
    return line;
  }

  rowOf(event) {
    const line = event.target.closest('tbody tr');
    return line && this.rows[[...line.parentElement.children].indexOf(line)];
  }

  click(event) {
    const row = this.rowOf(event);
    if (!row) return;
    this.chosen = row.key;
    this.toggle(row, !row.isOpen);
  }

  menu(event) {
    const isPointed = event.button === 2;
    const row = isPointed ? this.rowOf(event) : this.rows.find(it => it.key === this.chosen);
    if (!row) return;
    event.preventDefault();
    const { path, frame } = row;
    const corner = this.table.querySelector('[aria-selected="true"]').getBoundingClientRect();
    openMenu(this.page, {
      name: frame.name, text: this.page.trace.texts.functions[frame.name],
      stack: this.page.tree.pathOf(this.source.nodesOf(frame)[0]),
      zoom: this.source instanceof CallersFirst ? () => this.zoom(path) : null,
    }, isPointed ? event.clientX : corner.left + 60, isPointed ? event.clientY : corner.bottom);
  }

  zoom(path) {
    this.page.change({ tab: 'flame', order: 'callers', zoom: path });
  }

  toggle(row, isOpen) {
    if (isOpen) this.open.add(row.key);
    else this.open.delete(row.key);
    this.fill();
    this.table.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: 'nearest' });
  }

  /** Opens all that is heavy below a row. */
  openBelow(row) {
    const pending = [[row.frame, row.key]];
    for (let count = 0; pending.length && count < ROWS_MAX; count++) {
      const [frame, key] = pending.shift();
      this.open.add(key);
      for (const child of this.source.children(frame)) {
        if (child.total >= this.all / 200) pending.push([child, `${key}.${child.name}`]);
      }
    }
    this.toggle(row, true);
  }

  key(event) {
    if (event.target !== this.table || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = this.rows.findIndex(row => row.key === this.chosen), row = this.rows[here];
    if (!row) return;
    const choose = next => {
      if (!next) return;
      this.chosen = next.key;
      this.fill();
      this.table.querySelector('[aria-selected="true"]').scrollIntoView({ block: 'nearest' });
    };
    const caller = () => this.rows.slice(0, here).reverse().find(it =>
      it.path.length < row.path.length);
    const acts = {
      ArrowDown: () => choose(this.rows[here + 1]),
      ArrowUp: () => choose(this.rows[here - 1]),
      ArrowRight: () => row.isOpen || !row.leads ? choose(this.rows[here + 1])
        : this.toggle(row, true),
      ArrowLeft: () => row.isOpen ? this.toggle(row, false) : choose(caller()),
      '*': () => this.openBelow(row),
      Enter: () => this.source instanceof CallersFirst && this.zoom(row.path),
      c: () => copy(this.page, this.page.trace.texts.functions[row.frame.name]),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }
}

/** Returns by node whether it, one of its callers or one of its callees matches. */
function leadsOf(tree, matches) {
  const leads = new Uint8Array(tree.count);
  for (let node = 1; node < tree.count; node++) {
    leads[node] = matches[tree.name[node]] || leads[tree.parent[node]] ? 1 : 0;
  }
  for (let node = tree.count - 1; node > 0; node--) {
    if (leads[node]) leads[tree.parent[node]] = 1;
  }
  return leads;
}
