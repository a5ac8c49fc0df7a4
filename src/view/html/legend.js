// The legend: the states and the languages of the selected samples, in their colours.

/** Returns an element of the legend: a colour, and a share with its data. */
function legendItem(color, text, weight, kind, name) {
  const spot = element('i');
  spot.style.background = color;
  const share = element('span', { textContent: text });
  share.dataset.weight = weight;
  share.dataset[kind] = name;
  return element('span', {}, spot, share);
}

function showLegend(page) {
  at('states')?.remove();
  at('languages')?.remove();
  if (page.mode.isWall) {
    at('chosen').append(element('span', { id: 'states', className: 'states' }, ...states(page)));
  }
  if (page.trace.hasLanguages) {
    at('chosen').append(element('span', { id: 'languages', className: 'states' },
      ...languages(page)));
  }
}

function states({ sum, colors }) {
  const shown = STATES.map((name, state) => [name, state]).filter(([, state]) =>
    sum.states[state] > 0);
  return shown.map(([name, state]) => {
    const meaning = MEANINGS[name] ? ` (${MEANINGS[name]})` : '';
    return legendItem(colors.states[state],
      `${name}${meaning} ${shareText(sum.states[state], sum.weight)}`, sum.states[state], 'state',
      name);
  });
}

/** Returns the languages with the weights of the innermost functions. */
function languages({ sum, tree, trace, colors }) {
  const weights = LANGUAGES.map(() => 0);
  sum.nodeOwn.forEach((own, node) => {
    if (own === 0) return;
    while (node !== 0 && trace.kinds[tree.name[node]] > 0) node = tree.parent[node];
    if (node !== 0) weights[trace.languages[tree.name[node]]] += own;
  });
  const present = new Set(trace.languages.filter((_, name) => trace.kinds[name] === 0));
  const shown = LANGUAGES.map((name, language) => [name, language]).filter(([, language]) =>
    present.has(language));
  return shown.map(([name, language]) => legendItem(colors.ofLanguage(language),
    `${name} ${shareText(weights[language], sum.weight)}`, weights[language], 'language', name));
}
