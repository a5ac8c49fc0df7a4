// Unpacks the trace, a block of text in the page, into columns.
'use strict';

/** A wait is a function of this kind plus the number of its state. */
const MARK = 1, WAIT = 2;
const STATES = ['running', 'runnable', 'sleeping', 'disk', 'stopped', 'other'];
/** The languages of functions, in the order of their numbers. */
const LANGUAGES = ['native', 'kernel', 'python', 'java', 'javascript', 'php', 'ruby', 'perl',
  'lua', 'other'];
/** Explanations of the states whose names need one. */
const MEANINGS = { running: 'on a CPU', runnable: 'waits for a CPU', disk: 'waits for a device',
  other: 'not known' };

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Decodes numbers of seven bits per byte, the lowest first. The last byte of each is below 128. */
function unpack(bytes, make) {
  let count = 0;
  for (let at = 0; at < bytes.length; at++) if (bytes[at] < 128) count++;
  const numbers = make(count);
  let value = 0, scale = 1, row = 0;
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at];
    if (byte < 128) {
      numbers[row++] = value + byte * scale;
      value = 0;
      scale = 1;
    } else {
      value += (byte & 127) * scale;
      scale *= 128;
    }
  }
  return numbers;
}

const small = count => new Uint32Array(count);
const large = count => new Float64Array(count);

async function readTrace() {
  const packed = fromBase64(document.getElementById('trace').textContent.trim());
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const columns = new Map();
  let at = 4 + length;
  for (const [name, size] of head.columns) {
    columns.set(name, bytes.subarray(at, at + size));
    at += size;
  }
  const column = (name, make) => unpack(columns.get(name), make);
  const trace = {
    ...head,
    kinds: column('function.kind', small),
    languages: column('function.language', small),
    frames: {
      function: column('frame.function', small),
      file: column('frame.file', small),
      line: column('frame.line', small),
    },
    calls: { caller: column('call.caller', small), frame: column('call.frame', small) },
  };
  if (head.assembly) {
    trace.frames.listing = column('frame.listing', small);
    trace.frames.row = column('frame.row', small);
    trace.whys = column('function.why', small);
  }
  joinProcesses(trace);
  // Without any other language, colours show modules.
  trace.hasLanguages = trace.languages.some(language => language > 0);
  const { caller, frame } = trace.calls;
  for (let call = 0; call < caller.length; call++) caller[call] = call - caller[call];
  // The innermost step of a stack has the state of the thread.
  trace.stateOfCall = Uint8Array.from(frame, it => {
    const kind = trace.kinds[trace.frames.function[it]];
    return kind < WAIT ? 0 : Math.min(kind - WAIT, STATES.length - 1);
  });
  trace.modes = head.modes.map(mode =>
    readMode(mode, name => columns.get(mode.name + '.' + name), trace));
  return trace;
}

/**
 * Adds a function for each program that several processes run. `joined` has the function that
 * stands for each function where processes are joined, or is null.
 */
function joinProcesses(trace) {
  const { texts } = trace;
  const labels = new Map();
  texts.functions.forEach((text, name) => {
    // What a process calls itself follows its program: `nginx: worker`.
    const program = trace.kinds[name] === MARK && trace.programs?.[text]?.split(': ')[0];
    if (program) labels.set(program, [...labels.get(program) || [], name]);
  });
  const joined = Uint32Array.from(texts.functions, (_, name) => name);
  const added = [];
  for (const [program, names] of labels) {
    if (names.length < 2) continue;
    for (const name of names) joined[name] = texts.functions.length + added.length;
    added.push(`${program} ×${names.length}`);
  }
  trace.joined = null;
  if (!added.length) return;
  trace.joined = extended(joined, added.map((_, at) => texts.functions.length + at));
  trace.kinds = extended(trace.kinds, added.map(() => MARK));
  trace.languages = extended(trace.languages, added.map(() => 0));
  texts.functions.push(...added);
  texts.modules.push(...added.map(() => ''));
}

function extended(numbers, added) {
  const all = new Uint32Array(numbers.length + added.length);
  all.set(numbers);
  all.set(added, numbers.length);
  return all;
}

/** The samples of a mode by thread: those of `t` are from `first[t]` to `first[t + 1]`. */
function readMode(mode, bytes, trace) {
  const first = new Uint32Array(mode.entries.length + 1);
  mode.entries.forEach((count, thread) => { first[thread + 1] = first[thread] + count; });
  const time = unpack(bytes('time'), large);
  const weight = unpack(bytes('weight'), large);
  // A sample is taken at the end of its time.
  const unitUs = (mode.unitNs || 0) / 1000;
  const since = new Float64Array(time.length);
  const longest = new Float64Array(mode.entries.length);
  const weightOf = new Float64Array(mode.entries.length);
  for (let thread = 0; thread < mode.entries.length; thread++) {
    let now = 0;
    for (let row = first[thread]; row < first[thread + 1]; row++) {
      now += time[row];
      time[row] = now;
      weightOf[thread] += weight[row];
      since[row] = Math.max(now - weight[row] * unitUs, Math.min(trace.fromUs, now));
      longest[thread] = Math.max(longest[thread], now - since[row]);
    }
  }
  const context = unpack(bytes('context'), small);
  // The number of all other contexts is above the rest.
  const others = trace.contexts.length;
  for (let row = 0; row < context.length; row++) if (context[row] > others) context[row] = others;
  return {
    ...mode, isWall: mode.name === 'wall', unitUs, first, time, since, longest, weight, weightOf,
    context, call: unpack(bytes('call'), small), samplesOf: unpack(bytes('samples'), small),
  };
}
