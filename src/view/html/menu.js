// The menu of a frame, and what it does; the list of keys.

/** Returns the entries of the menu of a frame: titles and actions. */
function entriesOf(page, { name, text, stack, zoom }) {
  const { functions } = page.trace.texts;
  const entries = [['Zoom to it', zoom]];
  if (name >= 0) {
    const { hidden } = page.choice;
    entries.push(
      ['Focus: only stacks with it', () => page.change({ focus: name, zoom: [] })],
      ['Hide: no stacks with it', () => page.change({ hidden: [...new Set([...hidden, name])],
        zoom: [] })],
      ['Callers and callees', () => page.change({ tab: 'functions', function: name })],
      ['Source', sourceOf(page, name) === undefined ? null
        : () => page.change({ tab: 'source', function: name })],
      ['Assembly', !page.tabs.includes('assembly') || page.trace.kinds[name] !== 0 ? null
        : () => page.change({ tab: 'assembly', function: name })],
      ['Search for it', () => page.change({ search: '^' + literally(text) + '$' })]);
  }
  entries.push(['Copy the name', () => copy(page, text)]);
  if (stack.length) {
    const lines = stack.map(it => functions[it]).reverse();
    entries.push(['Copy the stack', () => copy(page, lines.join('\n'))]);
  }
  return entries;
}

function openMenu(page, actions, x, y) {
  const menu = at('menu');
  const before = document.activeElement;
  const close = () => {
    menu.hidden = true;
    before?.focus({ preventScroll: true });
  };
  const items = entriesOf(page, actions).filter(([, act]) => act).map(([title, act]) =>
    element('button', {
      type: 'button', role: 'menuitem', textContent: title, onclick: () => {
        close();
        act();
      },
    }));
  menu.replaceChildren(element('b', { textContent: actions.text }), ...items);
  menu.hidden = false;
  menu.style.left = Math.max(Math.min(x, innerWidth - menu.offsetWidth - 6), 4) + 'px';
  menu.style.top = Math.max(Math.min(y, innerHeight - menu.offsetHeight - 6), 4) + 'px';
  items[0].focus({ preventScroll: true });
  menu.onkeydown = event => {
    const step = { ArrowDown: 1, ArrowUp: items.length - 1 }[event.key];
    if (step) items[(items.indexOf(document.activeElement) + step) % items.length].focus();
    else if (event.key === 'Enter') document.activeElement.click();
    else if (event.key === 'Escape' || event.key === 'Tab') close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
}

function menuIsOpen() {
  return !at('menu').hidden;
}

/** Copies a text. Older browsers let no page in a file use the clipboard, but the selection. */
async function copy(page, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const before = document.activeElement;
    const field = element('textarea', { value: text, className: 'unseen' });
    document.body.append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
    before?.focus({ preventScroll: true });
  }
  page.say(`copied: ${text.split('\n')[0]}`);
}

/** Shows or hides the list of keys. */
function toggleHelp() {
  const help = at('help');
  if (help.open) help.close();
  else help.showModal();
}
