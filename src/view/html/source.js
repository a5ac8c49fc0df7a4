// The source of the chosen function: the lines of its file with their weights.

/** Returns the file of a function with most of its weight, by its number, if the page has it. */
function sourceOf({ trace, tree, sum }, name) {
  const { calls, frames, sources } = trace;
  if (!sources || name === null) return undefined;
  const totals = callTotals(trace, sum);
  const weights = new Map();
  for (let call = 1; call < calls.frame.length; call++) {
    if (tree.name[tree.of[call]] !== name || !totals[call]) continue;
    const frame = calls.frame[call], file = frames.file[frame] - 1;
    if (frames.line[frame] && sources[file] !== undefined) {
      weights.set(file, (weights.get(file) || 0) + totals[call]);
    }
  }
  return [...weights].sort((one, other) => other[1] - one[1])[0]?.[0];
}

/** Returns the self and total weights of the lines of a file. Recursion counts once. */
function lineWeights({ trace, tree, sum }, file, name) {
  const { calls, frames } = trace;
  const totals = callTotals(trace, sum);
  const own = new Map(), total = new Map(), ofFunction = new Map();
  const add = (weights, line, weight) => weights.set(line, (weights.get(line) || 0) + weight);
  const numbers = new Map();
  const keys = Uint32Array.from(frames.line, (line, frame) => {
    if (frames.file[frame] - 1 !== file || !line) return 0;
    if (!numbers.has(line)) numbers.set(line, numbers.size + 1);
    return numbers.get(line);
  });
  const repeated = repeatedCalls(calls, keys);
  for (let call = 1; call < calls.frame.length; call++) {
    const frame = calls.frame[call], line = frames.line[frame];
    if (frames.file[frame] - 1 !== file || !line || !totals[call]) continue;
    add(own, line, sum.own[call]);
    if (!repeated[call]) add(total, line, totals[call]);
    if (tree.name[tree.of[call]] === name) add(ofFunction, line, totals[call]);
  }
  return { own, total, ofFunction };
}

/** Shows the lines around those of the chosen function. */
function showSource(page) {
  const { trace, choice, sum, mode, tree } = page;
  const { own } = byFunction(trace, tree, sum);
  const heaviestFirst = (one, other) => own[other] - own[one];
  const hasSource = name => sourceOf(page, name) !== undefined;
  const name = hasSource(choice.function) ? choice.function
    : [...own.keys()].filter(it => own[it] > 0).sort(heaviestFirst).slice(0, 100).find(hasSource);
  if (name === undefined) {
    at('source-table').replaceChildren(element('caption', {
      textContent: 'No function of those that are chosen has lines in the source of this page.',
    }));
    return;
  }
  const file = sourceOf(page, name);
  const { own: selfs, total, ofFunction } = lineWeights(page, file, name);
  const [hottest] = [...ofFunction].sort((one, other) => other[1] - one[1])[0];
  const lines = trace.sources[file].split('\n');
  const first = Math.max(Math.min(hottest - ROWS_MAX / 2, lines.length - ROWS_MAX), 0);
  const rows = lines.slice(first, first + ROWS_MAX).map((text, index) => {
    const line = first + index + 1;
    return element('tr', { 'aria-selected': String(line === hottest) },
      ...numbersOf(mode, selfs.get(line) || 0, sum.weight),
      ...numbersOf(mode, total.get(line) || 0, sum.weight),
      shareBar(total.get(line) || 0, sum.weight),
      element('td', { textContent: line }),
      element('td', { className: 'code', textContent: text }));
  });
  const head = ['Self', '', 'Total', '', '', 'Line', trace.texts.files[file]];
  const part = lines.length > rows.length
    ? `, lines ${first + 1} to ${first + rows.length} of ${lines.length}` : '';
  at('source-table').replaceChildren(
    element('caption', { textContent: `${trace.texts.functions[name]}${part}` }),
    element('thead', {}, element('tr', {}, ...head.map((textContent, place) => element('th', {
      scope: 'col', className: place === 6 ? 'plain text' : 'plain', textContent,
    })))),
    element('tbody', {}, ...rows));
  at('source').querySelector('[aria-selected="true"]')?.scrollIntoView({ block: 'center' });
}
