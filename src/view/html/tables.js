// The tables: functions by self and total weight; spans, root spans and tags.

const ROWS_MAX = 500;

function shareBar(part, all) {
  const bar = element('span', { className: 'share' });
  bar.style.width = Math.max(part / Math.max(all, 1e-9) * 80, 0) + 'px';
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

/** Shows the functions of the selected samples. */
function showFunctions(page) {
  const { trace, tree, sum, mode, choice, matches } = page;
  const { own, total } = byFunction(trace, tree, sum);
  const { functions, modules } = trace.texts;
  let shown = functions.map((_, name) => name).filter(name => total[name] > 0
    && (!matches || matches[name]));
  const many = shown.length;
  const texts = { name: functions, module: modules }[choice.sort],
    numbers = choice.sort === 'total' ? total : own;
  const compare = texts
    ? (one, other) => texts[other].localeCompare(texts[one]) || total[one] - total[other]
    : (one, other) => numbers[other] - numbers[one] || total[other] - total[one] || one - other;
  shown.sort(choice.ascending ? (one, other) => compare(other, one) : compare);
  shown = shown.slice(0, ROWS_MAX);
  const by = (sort, isText) => () => {
    const isSame = choice.sort === sort;
    page.change({ sort, ascending: isSame ? !choice.ascending : Boolean(isText) });
  };
  const head = (title, sort, className, isText) =>
    columnHead(title, choice.sort === sort, choice.ascending, className, by(sort, isText));
  const all = sum.weight;
  const rows = shown.map(name => element('tr', { className: matches ? 'found' : '' },
    ...numbersOf(mode, own[name], all),
    shareBar(own[name], all),
    ...numbersOf(mode, total[name], all),
    element('td', { className: 'name' }, element('button', {
      type: 'button', textContent: functions[name], title: functions[name],
      onclick: () => page.change({ search: '^' + literally(functions[name]) + '$', tab: 'flame' }),
    })),
    element('td', { className: 'text module', textContent: modules[name], title: modules[name] })));
  const more = many > ROWS_MAX ? `, of which the first ${ROWS_MAX} are listed` : '';
  at('function-table').replaceChildren(
    element('caption', {
      textContent: `${many.toLocaleString('en')} functions${matches ? ' that match' : ''}${more}. `
        + 'A click searches for one in the flame graph.',
    }),
    element('thead', {}, element('tr', {},
      head('Self', 'own', ''), element('th', { scope: 'col' }), element('th', { scope: 'col' }),
        head('Total', 'total', ''),
      element('th', { scope: 'col' }), head('Function', 'name', 'text', true),
        head('Module', 'module', 'text module', true))),
    element('tbody', {}, ...rows));
}

/** Shows the selected threads and times by span, root or tag. A click selects one. */
function showSpans(page) {
  const { trace, sum, mode, choice } = page;
  const kinds = kindsOfContexts(trace);
  if (!kinds.length) {
    at('span-kinds').replaceChildren();
    at('span-table').replaceChildren(element('caption', {
      textContent: 'No sample has a span or a tag. Applications publish them while they are '
        + 'recorded, with the traceprof-context library or the thread context of OpenTelemetry.',
    }));
    return;
  }
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
    element('tr', { className: isChosen(value) ? 'found' : '' },
    ...numbersOf(mode, weight, all),
    shareBar(weight, all),
    element('td', { className: 'name' }, element('button', {
      type: 'button', textContent: value, 'aria-pressed': String(isChosen(value)),
      onclick: () =>
        page.change({ context: isChosen(value) ? null : { kind, value }, spansBy: kind }),
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
