// The canvas of the flame graph and the stack chart: painting, pointer, keys.

const ROW = 19;
const INSET = 14;
/** Frames up to this width have no space beside them, which would make all of them pale. */
const NARROW = 4;

class Graph {
  constructor(page) {
    this.page = page;
    this.canvas = at('graph');
    this.focus = null;
    this.hovered = null;
    this.listen();
  }

  /** The part that says where frames are: the flame graph, or the stack chart. */
  get drawing() {
    return this.page.choice.order === 'time' ? this.page.chart : this.page.flame;
  }

  /** Lays out the selected samples. */
  layout() {
    this.width = Math.max(at('scroll').clientWidth, 80);
    this.hovered = null;
    const focus = this.focus?.key;
    this.drawing.layout(this.width);
    this.focus = focus === undefined ? null
      : this.drawing.boxes.find(box => box.key === focus) || null;
    this.draw();
  }

  /** Draws the visible part. */
  draw() {
    const scroll = at('scroll'), { drawing, width } = this;
    const all = drawing.rows * ROW + 8;
    // A printed page does not scroll.
    const height = document.documentElement.dataset.printed ? all
      : Math.max(scroll.clientHeight, 40);
    at('height').style.height = all + 'px';
    drawing.show?.(scroll.scrollTop, height);
    const pen = fit(this.canvas, width, height);
    const { colors } = this.page;
    pen.fillStyle = colors.back;
    pen.fillRect(0, 0, width, height);
    pen.font = '12px ' + getComputedStyle(document.documentElement).getPropertyValue('--mono');
    pen.textBaseline = 'middle';
    const letter = pen.measureText('M').width;
    const narrow = new Map();
    for (const box of drawing.boxes) {
      const place = drawing.place(box);
      if (place.y + ROW < 0 || place.y > height) continue;
      if (place.width > NARROW || box === this.focus || box === this.hovered) {
        this.paint(pen, box, place, letter);
      } else {
        const fill = this.fillOf(box);
        if (!narrow.has(fill)) narrow.set(fill, []);
        narrow.get(fill).push(place);
      }
    }
    this.paintNarrow(pen, narrow);
    if (!(this.page.sum.weight > 0)) {
      pen.fillStyle = colors.text;
      pen.fillText('No samples are in what is chosen.', INSET, ROW * 2);
    }
  }

  /** Paints the narrow frames of each colour: another colour costs more than a frame. */
  paintNarrow(pen, narrow) {
    const { matches, colors } = this.page;
    for (const [fill, places] of narrow) {
      pen.globalAlpha = matches && fill !== colors.found ? 0.5 : 1;
      pen.fillStyle = fill;
      for (const { x, y, width } of places) pen.fillRect(x, y, Math.max(width, 0.4), ROW - 1);
    }
    pen.globalAlpha = 1;
  }

  fillOf(box) {
    const { colors, matches } = this.page;
    if (box.name < 0) return box.isTitle ? colors.panel : colors.other;
    return matches?.[box.name] ? colors.found : colors.fill(box.name);
  }

  paint(pen, box, { x, y, width }, letter) {
    const { colors, matches } = this.page;
    const { name } = box;
    const found = name >= 0 && matches && matches[name];
    pen.globalAlpha = box.isAbove ? 0.55 : matches && !found ? 0.5 : 1;
    pen.fillStyle = this.fillOf(box);
    const filled = width > NARROW ? width - 0.6 : Math.max(width, 0.4);
    pen.fillRect(x, y, filled, ROW - 1);
    if (name >= 0 && !found && width > NARROW && colors.isState(name)) {
      pen.fillStyle = colors.stripesFor(pen);
      pen.fillRect(x, y, filled, ROW - 1);
    }
    pen.globalAlpha = 1;
    if (box.marks) {
      pen.fillStyle = colors.soft;
      for (const mark of box.marks) pen.fillRect(mark, y + ROW - 6, 1, 5);
    }
    const letters = Math.floor((width - 8) / letter);
    if (letters >= 2) {
      const text = this.drawing.nameOf(box);
      pen.fillStyle = found ? colors.foundText : name < 0 ? colors.text : matches || box.isAbove
        ? colors.text : colors.ink(name);
      pen.fillText(text.length > letters ? text.slice(0, letters - 1) + '…' : text, x + 4,
        y + ROW / 2);
    }
    if (box === this.focus || box === this.hovered) {
      pen.strokeStyle = box === this.focus ? colors.accent : colors.text;
      pen.lineWidth = box === this.focus ? 2 : 1;
      pen.strokeRect(x + 1, y + 0.5, Math.max(width - 2, 1), ROW - 2);
    }
  }

  boxAt(x, y) {
    const { boxes } = this.drawing;
    for (let index = boxes.length - 1; index >= 0; index--) {
      const box = boxes[index], place = this.drawing.place(box);
      if (y >= place.y && y < place.y + ROW && x >= place.x
        && x < place.x + Math.max(place.width, 1)) return box;
    }
    return null;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener('click', event => {
      const box = this.boxAt(event.offsetX, event.offsetY);
      if (box) this.drawing.open(box);
    });
    canvas.addEventListener('contextmenu', event => {
      const isPointed = event.button === 2;
      const box = isPointed ? this.boxAt(event.offsetX, event.offsetY) : this.focus;
      if (!box) return;
      event.preventDefault();
      hideTooltip();
      const corner = canvas.getBoundingClientRect(), place = this.drawing.place(box);
      openMenu(this.page, this.drawing.actionsOf(box), isPointed ? event.clientX
        : corner.left + place.x, isPointed ? event.clientY : corner.top + place.y + ROW);
    });
    canvas.addEventListener('mousemove', event => this.hover(event));
    canvas.addEventListener('mouseleave', () => this.hover(null));
    canvas.addEventListener('keydown', event => this.key(event));
    canvas.addEventListener('blur', () => {
      this.focus = null;
      hideTooltip();
      this.draw();
    });
    canvas.addEventListener('wheel', event => {
      if (this.page.choice.order === 'time') {
        this.page.timeline.wheel(event, (event.offsetX - INSET) / (this.width - 2 * INSET));
      }
    }, { passive: false });
    at('scroll').addEventListener('scroll', () => this.draw());
  }

  hover(event) {
    const box = event && !menuIsOpen() && this.boxAt(event.offsetX, event.offsetY);
    if (box !== this.hovered) {
      this.hovered = box;
      this.draw();
      this.lines = box && this.drawing.describe(box);
    }
    if (box) showTooltip(this.lines, event.clientX, event.clientY);
    else hideTooltip();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { drawing } = this;
    const moves = { ArrowLeft: 'before', ArrowRight: 'after',
      ArrowUp: drawing.isFlipped ? 'in' : 'out', ArrowDown: drawing.isFlipped ? 'out' : 'in' };
    if (event.key === 'Enter' || event.key === ' ') {
      if (this.focus) drawing.open(this.focus);
    } else if (moves[event.key]) {
      this.move(moves[event.key]);
    } else if (event.key === 'c' && (this.focus || this.hovered)) {
      copy(this.page, drawing.nameOf(this.focus || this.hovered));
    } else {
      return;
    }
    event.preventDefault();
  }

  move(way) {
    const { drawing } = this;
    const next = this.focus ? drawing.beside(this.focus, way) : drawing.firstBox();
    if (!next) return;
    this.focus = next;
    const { y, x } = drawing.place(next);
    const scroll = at('scroll');
    if (y < 0) scroll.scrollTop += y - 4;
    if (y + ROW > scroll.clientHeight) scroll.scrollTop += y + ROW + 4 - scroll.clientHeight;
    this.draw();
    const lines = drawing.describe(next);
    at('focused').textContent = lines.join(', ');
    const corner = this.canvas.getBoundingClientRect();
    showTooltip(lines, corner.left + x, corner.top + drawing.place(next).y + ROW);
  }
}

/** Returns the module and the language of a function. */
function originOf(trace, name) {
  const isCode = trace.hasLanguages && trace.kinds[name] === 0;
  const language = isCode ? LANGUAGES[trace.languages[name]] : '';
  return [trace.texts.modules[name], language].filter(text => text).join(', ');
}

function showTooltip(lines, x, y) {
  const box = at('tooltip');
  box.replaceChildren(element('b', { textContent: lines[0] }),
    ...lines.slice(1).map(text => element('div', { textContent: text })));
  box.hidden = false;
  const { offsetWidth, offsetHeight } = box;
  const left = Math.min(x + 14, innerWidth - offsetWidth - 6);
  const top = y + 16 + offsetHeight > innerHeight ? y - offsetHeight - 10 : y + 16;
  box.style.left = Math.max(left, 4) + 'px';
  box.style.top = Math.max(top, 4) + 'px';
}

function hideTooltip() {
  at('tooltip').hidden = true;
}
