// Colours of functions and states, for light and for dark.

const dark = matchMedia('(prefers-color-scheme: dark)');

class Colors {
  constructor(trace) {
    this.trace = trace;
    this.hues = new Map();
    // In the order of the functions: the same whatever is drawn first.
    trace.texts.modules.forEach(module => this.hueOf(module));
    this.update();
  }

  /** Takes over what the style says now. */
  update() {
    const style = getComputedStyle(document.documentElement);
    const value = name => style.getPropertyValue('--' + name).trim();
    this.states = STATES.map(value);
    for (const name of ['back', 'panel', 'line', 'text', 'soft', 'accent', 'found', 'found-text', 'veil', 'other']) {
      this[name.replace('-t', 'T')] = value(name);
    }
    this.isDark = dark.matches;
    this.fills = new Array(this.trace.texts.functions.length);
  }

  /** The colour of a function: of one hue with others of its module, a wait that of its state. */
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
    const hue = this.hueOf(this.trace.texts.modules[name]);
    const spread = hashOf(this.trace.texts.functions[name]);
    const turned = hue + spread % 11 - 5;
    const light = this.isDark ? 27 + (spread >> 4) % 8 : 71 + (spread >> 4) % 10;
    // Teal shouts where orange of the same strength does not.
    const strength = (this.isDark ? 46 : 78) * (hue === 178 ? 0.6 : 1);
    return `hsl(${turned}, ${strength}%, ${light}%)`;
  }

  hueOf(text) {
    const module = text.replace(/\+0x[0-9a-f]+$/, '');
    let hue = this.hues.get(module);
    if (hue === undefined) {
      // Warm ones and teal; green, blue and violet are states.
      hue = [28, 50, 8, 178, 338, 64, 18, 40, 326, 354][this.hues.size % 10];
      this.hues.set(module, hue);
    }
    return hue;
  }

  /** The colour of text on a function's: dark on what is light. */
  ink(name) {
    const kind = this.trace.kinds[name];
    if (kind >= WAIT) {
      const state = STATES[Math.min(kind - WAIT, STATES.length - 1)];
      if (this.isDark) return state === 'sleeping' || state === 'other' ? '#ffffff' : '#10151b';
      return state === 'disk' ? '#ffffff' : '#14181d';
    }
    return this.isDark ? '#ffffff' : '#14181d';
  }

  /** Of CPU time: the more, the stronger. */
  heat(share) {
    const light = this.isDark ? 30 + 34 * share : 80 - 32 * share;
    return `hsl(${36 - 18 * share}, 82%, ${light}%)`;
  }
}

function hashOf(text) {
  let hash = 2166136261;
  for (let place = 0; place < text.length; place++) {
    hash = Math.imul(hash ^ text.charCodeAt(place), 16777619);
  }
  return hash >>> 1;
}

/** Makes a canvas as sharp as the screen; what is drawn on it counts in pixels of the page. */
function fit(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = width + 'px';
  canvas.style.height = height + 'px';
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}
