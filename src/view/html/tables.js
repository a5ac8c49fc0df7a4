// The tables: functions by self and total weight; spans, root spans and tags.

const ROWS_MAX = 500;

function shareBar(part, all) {
  const bar = element('span', { className: 'share' });
  bar.style.width = Math.max(part / Math.max(all, 1e-9) * 60, 0) + 'px';
  return element('td', { className: 'bar' }, bar);
}

function columnHead(title, isSorted, ascending, className, sort) {
  const head = element('th', { scope: 'col', className },
    element('button', { type: 'button', textContent: title, onclick: sort }));
  if (isSorted) head.setAttribute('aria-sort', ascending ? 'ascending' : 'descending');
  return head;
}

function numbersOf(mode, weight, all) {
  const texts = weight > 0 ? [weightText(mode, weight), shareText(weight, all)] : ['-', ''];
  return texts.map(textContent => element('td', { textContent }));
}

/** Returns the functions of the selected samples in the chosen order, with their weights. */
function listed(page) {
  const { trace, tree, sum, choice, matches } = page;
  const { own, total } = byFunction(trace, tree, sum);
  const { functions, modules } = trace.texts;
  const shown = functions.map((_, name) => name).filter(name => total[name] > 0
    && (!matches || matches[name]));
  const texts = { name: functions, module: modules }[choice.sort],
    numbers = choice.sort === 'total' ? total : own;
  const compare = texts
    ? (one, other) => texts[other].localeCompare(texts[one]) || total[one] - total[other]
    : (one, other) => numbers[other] - numbers[one] || total[other] - total[one] || one - other;
  shown.sort(choice.ascending ? (one, other) => compare(other, one) : compare);
  return { shown, own, total };
}

/** Shows the functions of the selected samples, and the callers and callees of one. */
function showFunctions(page) {
  const { trace, tree, sum, mode, choice, matches } = page;
  const { functions, modules } = trace.texts;
  const { shown: all, own, total } = listed(page);
  const shown = all.slice(0, ROWS_MAX);
  const chosen = total[choice.function] > 0 ? choice.function : shown[0];
  const by = (sort, isText) => () => {
    const isSame = choice.sort === sort;
    page.change({ sort, ascending: isSame ? !choice.ascending : Boolean(isText) });
  };
  const head = (title, sort, className, isText) =>
    columnHead(title, choice.sort === sort, choice.ascending, className, by(sort, isText));
  const rows = shown.map(name => {
    const row = element('tr', {
      className: matches ? 'found' : '', 'aria-selected': String(name === chosen),
    },
    ...numbersOf(mode, own[name], sum.weight),
    shareBar(own[name], sum.weight),
    ...numbersOf(mode, total[name], sum.weight),
    element('td', { className: 'name', textContent: functions[name], title: functions[name] }),
    element('td', { className: 'text module', textContent: modules[name], title: modules[name] }));
    row.dataset.function = name;
    return row;
  });
  const more = all.length > ROWS_MAX ? `, of which the first ${ROWS_MAX} are listed` : '';
  const none = () => element('th', { scope: 'col' });
  at('function-table').replaceChildren(
    element('caption', {
      textContent: `${all.length.toLocaleString('en')} functions`
        + `${matches ? ' that match' : ''}${more}. A click shows callers and callees.`,
    }),
    element('thead', {}, element('tr', {},
      head('Self', 'own', ''), none(), none(), head('Total', 'total', ''), none(),
      head('Function', 'name', 'text', true), head('Module', 'module', 'text module', true))),
    element('tbody', {}, ...rows));
  at('sandwich').hidden = chosen === undefined;
  if (chosen === undefined) return;
  at('of').textContent = functions[chosen];
  page.callers.show(new CallersOf(tree, sum, chosen), chosen);
  page.callees.show(new CalleesOf(tree, sum, chosen), chosen);
}

/** Chooses functions by pointer and keys. */
function listenToFunctions(page) {
  const table = at('function-table');
  table.tabIndex = 0;
  const rowOf = event => event.target.closest('tbody tr');
  table.addEventListener('click', event => {
    const row = rowOf(event);
    if (row) page.change({ function: Number(row.dataset.function) });
  });
  table.addEventListener('contextmenu', event => {
    const row = event.button === 2 ? rowOf(event) : table.querySelector('[aria-selected="true"]');
    if (!row) return;
    event.preventDefault();
    const name = Number(row.dataset.function), place = row.getBoundingClientRect();
    openMenu(page, { name, text: page.trace.texts.functions[name], stack: [], zoom: null },
      event.button === 2 ? event.clientX : place.left + 60,
      event.button === 2 ? event.clientY : place.bottom);
  });
  table.addEventListener('keydown', event => {
    const row = table.querySelector('[aria-selected="true"]');
    const isPlain = event.target === table && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (!row || !isPlain) return;
    const { nextElementSibling: ArrowDown, previousElementSibling: ArrowUp } = row;
    const next = { ArrowDown, ArrowUp }[event.key];
    if (event.key === 'c') copy(page, page.trace.texts.functions[row.dataset.function]);
    if (!next) return;
    event.preventDefault();
    page.change({ function: Number(next.dataset.function) });
    table.querySelector('[aria-selected="true"]').scrollIntoView({ block: 'nearest' });
  });
}

/** Shows the selected threads and times by span, root or tag. A click selects one. */
function showSpans(page) {
  const { trace, sum, mode, choice } = page;
  const kinds = kindsOfContexts(trace);
  if (!kinds.length) return;
  const asked = choice.spansBy || (choice.context && choice.context.kind);
  const kind = kinds.includes(asked) ? asked : kinds[0];
  at('span-kinds').replaceChildren(...kinds.map(it => element('button', {
    type: 'button', textContent: titleOfKind(it), 'aria-pressed': String(it === kind),
    onclick: () => page.change({ spansBy: it }),
  })));
  const weights = new Map();
  const add = (value, weight) => {
    if (weight > 0) weights.set(value, (weights.get(value) || 0) + weight);
  };
  add(NONE, sum.contexts[0]);
  trace.contexts.forEach((context, number) =>
    add(valueOf(context, kind) ?? NONE, sum.contexts[number + 1]));
  const all = [...weights.values()].reduce((known, weight) => known + weight, 0);
  const sorted = [...weights].sort((one, other) => (one[0] === NONE) - (other[0] === NONE)
    || other[1] - one[1]);
  const isChosen = value => Boolean(choice.context) && choice.context.kind === kind
    && choice.context.value === value;
  const rows = sorted.slice(0, ROWS_MAX).map(([value, weight]) =>
    element('tr', {
      className: isChosen(value) ? 'found' : '', onclick: () =>
        page.change({ context: isChosen(value) ? null : { kind, value }, spansBy: kind }),
    },
    ...numbersOf(mode, weight, all),
    shareBar(weight, all),
    element('td', { className: 'name' }, element('button', {
      type: 'button', textContent: value, 'aria-pressed': String(isChosen(value)),
    }))));
  const more = sorted.length > ROWS_MAX ? `; the ${ROWS_MAX} heaviest are listed` : '';
  at('span-table').replaceChildren(
    element('caption', {
      textContent: `${titleOfKind(kind)}, in the window and the threads that are chosen: `
        + `${sorted.length.toLocaleString('en')}${more}. A click looks at one of them alone.`,
    }),
    element('thead', {}, element('tr', {},
      ...['Time', '', '', titleOfKind(kind)].map((textContent, place) => element('th', {
        scope: 'col', className: place === 3 ? 'plain text' : 'plain', textContent,
      })))),
    element('tbody', {}, ...rows));
}
