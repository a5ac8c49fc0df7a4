// The colours of functions and states, for light and dark styles.

const dark = matchMedia('(prefers-color-scheme: dark)');

/** The hues of languages. Green, blue and red are states. */
const HUES = [22, 270, 56, 178, 330, 245, 350, 300];

class Colors {
  constructor(trace) {
    this.trace = trace;
    this.hues = new Map();
    // Functions get colours in their own order, so that colours do not depend on what is drawn
    // first.
    trace.texts.modules.forEach(module => this.hueOf(module));
    this.update();
  }

  /** Reads the colours of the current style. */
  update() {
    const style = getComputedStyle(document.documentElement);
    const value = name => style.getPropertyValue('--' + name).trim();
    this.states = STATES.map(value);
    const names = ['back', 'panel', 'line', 'text', 'soft', 'accent', 'found', 'found-text', 'veil',
      'other', 'stripe'];
    for (const name of names) {
      this[name.replace('-t', 'T')] = value(name);
    }
    this.isDark = dark.matches && !document.documentElement.dataset.printed;
    this.stripes = null;
    this.fills = new Array(this.trace.texts.functions.length);
  }

  /** Returns the colour of a function: one hue per module, or per language if there are several;
      for a wait that of its state. */
  fill(name) {
    const known = this.fills[name];
    if (known) return known;
    const kind = this.trace.kinds[name];
    let made;
    if (kind === MARK) made = this.other;
    else if (kind >= WAIT) made = this.states[Math.min(kind - WAIT, STATES.length - 1)];
    else made = this.ofCode(name);
    this.fills[name] = made;
    return made;
  }

  ofCode(name) {
    const hue = this.trace.hasLanguages ? HUES[this.trace.languages[name]]
      : this.hueOf(this.trace.texts.modules[name]);
    const spread = hashOf(this.trace.texts.functions[name]);
    const turned = hue + spread % 11 - 5;
    // Functions are pale, because states have strong colours.
    return this.pale(turned, this.isDark ? 25 + (spread >> 4) % 8 : 80 + (spread >> 4) % 9);
  }

  pale(hue, light) {
    // Teal and violet stand out more than orange of the same strength.
    const strength = (this.isDark ? 42 : 72) * (hue >= 100 ? 0.6 : 1);
    return `hsl(${hue}, ${strength}%, ${light}%)`;
  }

  /** Returns the colour of a language in the legend: the middle of those of its functions. */
  ofLanguage(language) {
    return this.pale(HUES[language], this.isDark ? 29 : 84);
  }

  hueOf(text) {
    const module = text.replace(/\+0x[0-9a-f]+$/, '');
    let hue = this.hues.get(module);
    if (hue === undefined) {
      // Functions are in warm colours, teal and violet. Green, blue and red are states.
      hue = [30, 56, 16, 178, 330, 270, 68, 300, 22, 44][this.hues.size % 10];
      this.hues.set(module, hue);
    }
    return hue;
  }

  /** Returns the colour of text on a function's colour: dark on light. */
  ink(name) {
    const kind = this.trace.kinds[name];
    if (kind >= WAIT) {
      const state = STATES[Math.min(kind - WAIT, STATES.length - 1)];
      if (this.isDark) return state === 'sleeping' || state === 'other' ? '#ffffff' : '#10151b';
      return state === 'disk' ? '#ffffff' : '#14181d';
    }
    return this.isDark ? '#ffffff' : '#14181d';
  }

  /** The pattern over states, which distinguishes them from functions when there are no colours. */
  stripesFor(pen) {
    if (!this.stripes) {
      const tile = document.createElement('canvas');
      tile.width = tile.height = 8;
      const brush = tile.getContext('2d');
      brush.strokeStyle = this.stripe;
      brush.lineWidth = 2.5;
      for (const x of [-8, 0, 8]) {
        brush.moveTo(x - 1, 9);
        brush.lineTo(x + 9, -1);
      }
      brush.stroke();
      this.stripes = pen.createPattern(tile, 'repeat');
    }
    return this.stripes;
  }

  isState(name) {
    return this.trace.kinds[name] >= WAIT;
  }

  /** Returns the colour of CPU time, that of the running state: the more time, the stronger. */
  heat(share) {
    const light = this.isDark ? 24 + 28 * share : 72 - 41 * share;
    return `hsl(164, ${this.isDark ? 60 : 55 + 45 * share}%, ${light}%)`;
  }
}

function hashOf(text) {
  let hash = 2166136261;
  for (let place = 0; place < text.length; place++) {
    hash = Math.imul(hash ^ text.charCodeAt(place), 16777619);
  }
  return hash >>> 1;
}

/** Makes a canvas as sharp as the screen. Drawing uses pixels of the page. */
function fit(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [across, down] = [width, height].map(it => Math.max(1, Math.round(it * ratio)));
  // A new size costs a new buffer.
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
  }
  canvas.style.width = width + 'px';
  canvas.style.height = height + 'px';
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}
