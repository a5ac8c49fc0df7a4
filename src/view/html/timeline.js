// The timeline: a row per thread or pool of threads. Dragging over it selects a window.

const LANE = 20;
/** Width in pixels of one cell of time. */
const CELL = 2;
/** Maximum number of rows of an expanded pool. The other threads share one row. */
const UNFOLDED_MAX = 100;

/** Returns the common name of the threads of a pool, without the number at its end. */
function stemOf(name) {
  return name.replace(/[-_:#/. ]*\d+$/, '') || name;
}

/** Returns the pool of a thread: threads of one process whose names differ by a number. */
function poolOf(thread) {
  return [thread.pid, Number.parseInt(thread.id, 10) === thread.pid, stemOf(thread.name)].join(' ');
}

/** Returns the rows: pools, heaviest first, then idle threads. */
function lanesOf(trace, mode, unfolded) {
  const weights = mode.weightOf;
  const heaviestFirst = (one, other) => weights[other] - weights[one] || one - other;
  const sumOf = threads => threads.reduce((sum, thread) => sum + weights[thread], 0);
  const pools = new Map(), idle = [];
  trace.threads.forEach((thread, at) => {
    if (weights[at] <= 0) return;
    if (thread.idle) {
      idle.push(at);
      return;
    }
    const pool = poolOf(thread);
    if (!pools.has(pool)) pools.set(pool, []);
    pools.get(pool).push(at);
  });
  const lanes = [];
  const areSeveral = new Set(trace.threads.map(thread => thread.pid)).size > 1;
  // Threads of two processes may have the same names.
  const inProcess = (text, thread, before) => areSeveral ? `${text}${before}${thread.pid}` : text;
  const single = (thread, inner) => ({
    key: 'thread ' + thread, threads: [thread], inner,
    label: inProcess(trace.threads[thread].name, trace.threads[thread], ', pid '),
    detail: inProcess(`${trace.threads[thread].name}, thread ${trace.threads[thread].id}`,
      trace.threads[thread], ' of process '),
  });
  const group = (key, label, detail, threads) => {
    threads.sort(heaviestFirst);
    const isUnfolded = unfolded.has(key);
    lanes.push({ key, label, detail, threads, folds: true, isUnfolded });
    if (!isUnfolded) return;
    const shown = threads.length > UNFOLDED_MAX ? threads.slice(0, UNFOLDED_MAX - 1) : threads;
    lanes.push(...shown.map(thread => single(thread, true)));
    const rest = threads.slice(shown.length);
    if (rest.length) lanes.push({ key: key + ' rest', label: `${rest.length} others`,
      detail: `${rest.length} other threads`, threads: rest, inner: true });
  };
  const all = [...pools].sort(([, one], [, other]) => sumOf(other) - sumOf(one));
  for (const [pool, threads] of all) {
    if (threads.length === 1) {
      lanes.push(single(threads[0], false));
      continue;
    }
    const first = trace.threads[threads[0]];
    const isOneName = threads.every(thread => trace.threads[thread].name === first.name);
    const name = isOneName ? first.name : stemOf(first.name);
    const detail = `${threads.length} threads called ${name}${isOneName ? '' : '…'}`;
    group('pool ' + pool, inProcess(`${name} ×${threads.length}`, first, ', pid '),
      inProcess(detail, first, ' of process '), threads);
  }
  if (idle.length) group('idle', `${idle.length} idle`,
    `${idle.length} threads that only wait for work`, idle);
  return lanes;
}

/** Returns one row of all threads. */
function laneOfAll(trace, mode) {
  const threads = trace.threads.map((_, thread) => thread).filter(thread =>
    mode.weightOf[thread] > 0 && !trace.threads[thread].idle);
  const label = `${threads.length} thread${threads.length === 1 ? '' : 's'}`;
  return [{ key: 'all', threads, label, detail: `${label} together`, isScaled: true }];
}

class Timeline {
  constructor(page) {
    this.page = page;
    this.unfolded = new Set();
    this.listen();
  }

  /** Builds the rows of the current mode. */
  layout() {
    const { trace, mode, choice } = this.page;
    this.lanes = choice.folded ? laneOfAll(trace, mode) : lanesOf(trace, mode, this.unfolded);
    at('fold').setAttribute('aria-expanded', String(!choice.folded));
    at('labels').replaceChildren(...this.lanes.map(lane => this.label(lane)));
    at('strip').style.height = this.lanes.length * LANE + 'px';
    // The scroll bar reduces the width of the rows.
    this.width = Math.max(at('strip').clientWidth, 40);
    this.mark();
  }

  /** Sums the time in each state by cell of each row. It yields as other sums do. */
  *measure() {
    const cells = [];
    for (const lane of this.lanes) cells.push(yield* this.cellsOf(lane));
    return cells;
  }

  label(lane) {
    const fold = lane.folds
      ? element('button', {
        type: 'button', className: 'fold', textContent: lane.isUnfolded ? '▾' : '▸',
          'aria-expanded': String(lane.isUnfolded),
        'aria-label': `Threads of ${lane.label}`, onclick: () => this.toggle(lane.key),
      })
      : element('span', { className: 'blank' });
    const pick = element('button', {
      type: 'button', className: 'pick', textContent: lane.label,
        title: `${lane.detail}. With Ctrl it is added to what is chosen.`,
      onclick: event => this.pick(lane, event.ctrlKey || event.metaKey || event.shiftKey),
    });
    lane.button = pick;
    return element('li', { className: lane.inner ? 'inner' : '' }, fold, pick);
  }

  toggle(key) {
    if (!this.unfolded.delete(key)) this.unfolded.add(key);
    this.page.relayout();
    const same = this.lanes.find(lane => lane.key === key);
    if (same) same.button.previousSibling.focus();
  }

  pick(lane, isAdded) {
    const { threads } = this.page.choice;
    const isChosen = threads && lane.threads.every(thread => threads.has(thread));
    const chosen = new Set(isAdded && threads ? threads : []);
    for (const thread of lane.threads) {
      if (isChosen) chosen.delete(thread);
      else chosen.add(thread);
    }
    this.page.change({ threads: chosen.size ? chosen : null });
  }

  /** Marks the selection without drawing the rows again. */
  mark() {
    const { choice } = this.page;
    for (const lane of this.lanes) {
      const isChosen = Boolean(choice.threads)
        && lane.threads.every(thread => choice.threads.has(thread));
      lane.button.setAttribute('aria-pressed', String(isChosen));
    }
    const brush = at('brush');
    brush.hidden = !choice.window;
    if (choice.window) {
      const [from, to] = [choice.window.from, choice.window.to].map(us => this.pixelOf(us));
      brush.style.left = from + 'px';
      brush.style.width = Math.max(to - from, 1) + 'px';
    }
  }

  pixelOf(us) {
    const { from, to } = this.page.choice.range;
    return (us - from) / Math.max(to - from, 1) * this.width;
  }

  timeOf(pixel) {
    const { from, to } = this.page.choice.range;
    return from + Math.min(Math.max(pixel / this.width, 0), 1) * (to - from);
  }

  /** Draws the rows. The cells are those of the rows at the last measurement. */
  draw(cells) {
    this.drawAxis();
    const pen = fit(at('heat'), this.width, this.lanes.length * LANE);
    const { colors } = this.page;
    this.lanes.forEach((lane, index) => {
      const top = index * LANE;
      pen.fillStyle = index % 2 ? colors.back : colors.panel;
      pen.fillRect(0, top, this.width, LANE);
      this.drawLane(pen, lane, top, cells[index]);
    });
    this.mark();
  }

  drawAxis() {
    const { colors } = this.page;
    const { from, to } = this.page.choice.range;
    const canvas = at('axis');
    const pen = fit(canvas,
      Math.max(canvas.parentElement.clientWidth - at('legend').offsetWidth, 40), 24);
    const room = this.width;
    const length = Math.max(to - from, 1);
    const step = niceStep(length / Math.max(room / 90, 1));
    pen.fillStyle = colors.soft;
    pen.strokeStyle = colors.line;
    pen.font = '11px system-ui, sans-serif';
    for (let us = Math.ceil(from / step) * step; us <= to; us += step) {
      const x = Math.round(this.pixelOf(us)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, 14);
      pen.lineTo(x, 24);
      pen.stroke();
      const text = axisText(us, step);
      const width = pen.measureText(text).width;
      pen.fillText(text, Math.min(Math.max(x - width / 2, 1), room - width - 1), 11);
    }
  }

  /** Returns the time in each state by cell, of all threads of a row together. */
  *cellsOf(lane) {
    const { trace, mode, fits, kept, choice } = this.page;
    const { from, to } = choice.range;
    const count = Math.ceil(this.width / CELL);
    const cells = { count, used: new Float64Array(count * STATES.length), from,
      us: Math.max(to - from, 1) / count };
    let portion = 0;
    for (const thread of lane.threads) {
      const { low, high } = rowsIn(mode, thread, choice.range);
      for (let row = low; row < high; row++) {
        if (++portion % PORTION === 0) yield;
        if (fits && !fits[mode.context[row]] || kept && !kept[mode.call[row]]) continue;
        const state = mode.isWall ? trace.stateOfCall[mode.call[row]] : 0;
        use(cells, state, mode.since[row], mode.time[row]);
      }
    }
    return cells.used;
  }

  drawLane(pen, lane, top, used) {
    const { colors, mode } = this.page;
    const room = LANE - 2;
    // Of all threads, few run at a time.
    const most = lane.isScaled ? highest(used) : lane.threads.length;
    // Running is at the bottom.
    const order = [0, 1, 3, 4, 5, 2];
    for (let cell = 0; cell * STATES.length < used.length; cell++) {
      let bottom = top + LANE - 1;
      for (const state of order) {
        const share = Math.min(used[cell * STATES.length + state] / most, 1);
        if (share <= 0) continue;
        const height = Math.min(Math.max(share * room, mode.isWall ? 0 : 2), bottom - top - 1);
        pen.fillStyle = mode.isWall ? colors.states[state] : colors.heat(share);
        pen.fillRect(cell * CELL, bottom - height, CELL, height);
        bottom -= height;
      }
    }
  }

  listen() {
    const strip = at('strip');
    let begun = null;
    const pixel = event => event.clientX - strip.getBoundingClientRect().left;
    strip.addEventListener('pointerdown', event => {
      if (event.button !== 0) return;
      begun = pixel(event);
      strip.setPointerCapture(event.pointerId);
    });
    strip.addEventListener('pointermove', event => {
      const x = pixel(event);
      this.hint(event, x);
      if (begun === null || Math.abs(x - begun) < 3) return;
      this.page.isDragging = true;
      this.page.choice.setWindow(this.timeOf(begun), this.timeOf(x));
      this.page.refreshSoon();
    });
    const end = event => {
      if (begun === null) return;
      const x = pixel(event);
      // A click without dragging shows everything again.
      if (Math.abs(x - begun) < 3) {
        this.clicked = this.page.choice.window || this.clicked;
        this.page.choice.window = null;
      } else {
        this.clicked = null;
        this.page.choice.setWindow(this.timeOf(begun), this.timeOf(x));
      }
      begun = null;
      this.page.isDragging = false;
      this.page.refresh();
    };
    strip.addEventListener('pointerup', end);
    strip.addEventListener('pointercancel', end);
    strip.addEventListener('pointerleave', hideTooltip);
    // Its first click has removed the window.
    strip.addEventListener('dblclick', event => {
      const us = this.timeOf(pixel(event)), window = this.clicked;
      this.clicked = null;
      if (window && us >= window.from && us <= window.to) this.page.zoomTo(window.from, window.to);
    });
    strip.addEventListener('wheel', event => this.wheel(event, pixel(event) / this.width),
      { passive: false });
    strip.addEventListener('keydown', event => this.key(event));
    at('fold').onclick = () => this.page.change({ folded: !this.page.choice.folded });
  }

  /** Zooms with Ctrl about a place between 0 and 1, or moves sideways. */
  wheel(event, share) {
    const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !isSideways) return;
    event.preventDefault();
    if (event.ctrlKey) {
      this.page.scale(Math.exp(Math.max(Math.min(event.deltaY, 200), -200) / 300), share);
    } else {
      this.page.pan((event.deltaX || event.deltaY) / 1000);
    }
  }

  hint(event, x) {
    const y = event.clientY - at('heat').getBoundingClientRect().top;
    const lane = this.lanes[Math.floor(y / LANE)];
    if (!lane) return hideTooltip();
    showTooltip([lane.detail, timeText(this.timeOf(x))], event.clientX, event.clientY);
  }

  key(event) {
    if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
    event.preventDefault();
    const { choice } = this.page;
    const { from: first, to: last } = choice.range;
    const length = last - first, step = length / 50 * (event.key === 'ArrowLeft' ? -1 : 1);
    if (!choice.window) {
      const tenth = length / 10;
      if (event.key === 'ArrowRight') choice.setWindow(first, first + tenth);
      else choice.setWindow(last - tenth, last);
    } else {
      const { from, to } = choice.window;
      const moved = Math.min(Math.max(step, first - from), last - to);
      if (event.shiftKey) choice.setWindow(from, Math.max(to + step, from + length / 500));
      else choice.setWindow(from + moved, to + moved);
    }
    this.page.refresh();
  }
}

/** Adds the time of a sample to its cells. */
function use({ count, used, from, us }, state, since, time) {
  const begin = (since - from) / us, end = (time - from) / us;
  if (end < 0 || begin > count) return;
  const last = Math.min(Math.floor(end), count - 1);
  if (end <= begin) {
    // The length of a period is unknown, so one sample fills its cell.
    used[last * STATES.length + state] += 1;
    return;
  }
  for (let cell = Math.min(Math.max(Math.floor(begin), 0), last); cell <= last; cell++) {
    const part = Math.min(end, cell + 1) - Math.max(begin, cell);
    if (part > 0) used[cell * STATES.length + state] += part;
  }
}

/** Returns the most that the states of a cell add up to. */
function highest(used) {
  let most = 1;
  for (let cell = 0; cell < used.length; cell += STATES.length) {
    most = Math.max(most, used.subarray(cell, cell + STATES.length).reduce((sum, it) => sum + it));
  }
  return most;
}

/** Returns the next larger step of 1, 2 or 5 times a power of ten. */
function niceStep(us) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(us, 1)));
  return unit * [1, 2, 5, 10].find(factor => factor * unit >= us);
}

function axisText(us, step) {
  if (step >= 1e6) return `${us / 1e6} s`;
  if (step >= 1e3) return us >= 1e6 ? `${+(us / 1e6).toFixed(3)} s` : `${us / 1e3} ms`;
  return `${us} µs`;
}
