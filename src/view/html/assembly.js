// The instructions of the chosen function with their weights.

/** Returns the listing with most of the weight of a function, by its number from 1 on, or 0. */
function listingOf({ trace, tree, sum }, name) {
  const { calls, frames } = trace;
  const totals = callTotals(trace, sum);
  const weights = new Float64Array(trace.assembly.listings.length + 1);
  for (let call = 1; call < calls.frame.length; call++) {
    const listing = frames.listing[calls.frame[call]];
    if (!listing || !totals[call] || tree.name[tree.of[call]] !== name) continue;
    // Where a function has parts, the part at work is shown, not the one that only calls.
    weights[listing] += sum.own[call] + totals[call] * 1e-6;
  }
  return Math.max(indexOfMost(weights), 0);
}

/** Returns the self and total weights of the rows of a listing. Recursion counts once. */
function rowWeights({ trace, tree, sum }, listing, name) {
  const { calls, frames } = trace;
  const totals = callTotals(trace, sum);
  const keys = Uint32Array.from(frames.row, (row, frame) =>
    frames.listing[frame] === listing ? row + 1 : 0);
  const repeated = repeatedCalls(calls, keys);
  const count = keys.reduce((most, key) => Math.max(most, key), 0);
  const [own, total, ofFunction] = [0, 1, 2].map(() => new Float64Array(count));
  for (let call = 1; call < calls.frame.length; call++) {
    const key = keys[calls.frame[call]];
    if (!key || !totals[call]) continue;
    own[key - 1] += sum.own[call];
    if (!repeated[call]) total[key - 1] += totals[call];
    if (tree.name[tree.of[call]] !== name) continue;
    ofFunction[key - 1] += sum.own[call] + totals[call] * 1e-6;
  }
  return { own, total, ofFunction };
}

/** Returns the index of the largest number, or -1 if none is above 0. */
function indexOfMost(numbers) {
  let found = -1;
  numbers.forEach((number, index) => {
    if (number > (found < 0 ? 0 : numbers[found])) found = index;
  });
  return found;
}

/**
 * Returns the function to show: the chosen one, the one that is zoomed to, or the heaviest whose
 * code is native. A lighter one would hide that the code of that is not at hand.
 */
function assembledFunction(page) {
  const { trace, choice, sum, tree } = page;
  const zoomed = choice.zoom.filter(name => trace.kinds[name] === 0);
  const asked = choice.function ?? zoomed[zoomed.length - 1];
  if (asked !== undefined) return asked;
  const { own } = byFunction(trace, tree, sum);
  const isNative = name => trace.kinds[name] === 0 && trace.languages[name] === 0;
  const found = indexOfMost(own.map((weight, name) => isNative(name) ? weight : 0));
  return found < 0 ? undefined : found;
}

/** Most instructions have no weight, so that they show nothing. */
function weightCells(mode, weight, all) {
  return weight > 0 ? numbersOf(mode, weight, all) : [element('td'), element('td')];
}

/** Shows the instructions of the chosen function, or why they are not at hand. */
function showAssembly(page) {
  const { trace, sum, mode } = page;
  const { listings, files, whys } = trace.assembly;
  const table = at('assembly-table');
  const say = textContent => table.replaceChildren(element('caption', { textContent }));
  const name = assembledFunction(page);
  if (name === undefined) return say('No function of those that are chosen has native code.');
  const functionName = trace.texts.functions[name];
  const number = listingOf(page, name);
  if (!number) {
    const why = trace.kinds[name] ? 'it is not code'
      : trace.whys[name] ? whys[trace.whys[name] - 1]
      : 'it has no samples among those that are chosen';
    return say(`${functionName} has no assembly here: ${why}.`);
  }
  const listing = listings[number - 1];
  const { own, total, ofFunction } = rowWeights(page, number, name);
  const all = own.reduce((known, weight) => known + weight, 0);
  const hottest = indexOfMost(ofFunction);
  const rowAt = new Map(listing.offsets.map((offset, row) => [offset, row]));
  const start = BigInt(listing.start);
  const address = offset => (start + BigInt(offset)).toString(16);
  const gap = count => element('tr', { className: 'gap' }, element('td', {
    colSpan: 8, textContent: `${count.toLocaleString('en')} instructions without samples`,
  }));
  const rows = [];
  let lastPlace = '';
  listing.texts.forEach((text, row) => {
    if (listing.gaps[row]) rows.push(gap(listing.gaps[row]));
    const weight = own[row + 1] || 0;
    const [file, line] = listing.lines[row] || [];
    const place = line ? `${files[file].split('/').pop()}:${line}` : '';
    const shown = place === lastPlace ? '' : place;
    if (place) lastPlace = place;
    const code = element('td', { className: 'code', textContent: text, title: text });
    const made = element('tr', { 'aria-selected': String(row + 1 === hottest) },
      ...weightCells(mode, weight, sum.weight),
      ...weightCells(mode, total[row + 1] || 0, sum.weight),
      shareBar(weight, all),
      element('td', { className: 'address', textContent: address(listing.offsets[row]) }),
      element('td', { className: 'place', textContent: shown,
        title: line ? `${files[file]}:${line}` : '' }),
      code);
    made.dataset.row = row;
    const target = listing.jumps[row];
    if (target !== undefined) {
      const arrow = target > listing.offsets[row] ? ' ↓' : ' ↑';
      code.append(element('span', { className: 'arrow', textContent: arrow }));
      if (rowAt.has(target)) {
        made.className = 'jump';
        made.dataset.target = rowAt.get(target);
        made.title = 'A click goes to where it jumps';
      }
    }
    rows.push(made);
  });
  const after = listing.gaps[listing.texts.length];
  if (after) rows.push(gap(after));
  const whole = listing.name === functionName ? functionName
    : `${functionName}, in the code of ${listing.name}`;
  const unlisted = own[0] ? `, ${weightText(mode, own[0])} of it in no listed one` : '';
  const head = ['Self', '', 'Total', '', '', 'Address', 'Line', whole];
  table.replaceChildren(
    element('caption', {
      textContent: `${whole}, ${listing.module}: `
        + `${weightText(mode, all)} in its ${listing.count.toLocaleString('en')} instructions`
        + `${unlisted}. The bars are shares of that.`,
    }),
    element('thead', {}, element('tr', {}, ...head.map((textContent, place) => element('th', {
      scope: 'col', className: place > 5 ? 'plain text' : 'plain', textContent,
    })))),
    element('tbody', {}, ...rows));
  const selected = table.querySelector('[aria-selected="true"]');
  selected?.scrollIntoView({ block: 'center' });
  return undefined;
}

/** A click on a jump goes to where it leads. */
function listenToAssembly() {
  at('assembly-table').addEventListener('click', event => {
    const { target } = event.target.closest('tr')?.dataset || {};
    if (target === undefined) return;
    const row = at('assembly-table').querySelector(`[data-row="${target}"]`);
    at('assembly-table').querySelector('.aim')?.classList.remove('aim');
    row.classList.add('aim');
    row.scrollIntoView({ block: 'nearest' });
  });
}
