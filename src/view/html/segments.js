// The samples of a thread as pieces of time that do not overlap, for the stack chart.

/** The states in the order in which a thread leaves them, the last one first. */
const LEFT_LAST = [0, 1, 3, 4, 5, 2];

/**
 * Returns the pieces of time of a thread's samples, in time order. A sample takes the time before
 * its end that no other one has: a wait may be reported after a sample that was taken later, and
 * several samples may end at once. So a sample may have several pieces, or less than its weight.
 */
function segmentsOf(trace, mode, thread) {
  const { first, time, since, call } = mode;
  // Waits are counted by the kernel and reported with a delay.
  const reach = mode.isWall ? 4 : 1;
  const free = { from: [], to: [] }, pieces = { from: [], to: [], row: [] };
  const rankOf = row => LEFT_LAST.indexOf(trace.stateOfCall[call[row]]);
  let begin = first[thread], last = trace.fromUs;
  while (begin < first[thread + 1]) {
    const group = [];
    const now = time[begin];
    let length = 0;
    for (; begin < first[thread + 1] && time[begin] === now; begin++) {
      group.push(begin);
      length += now - since[begin];
    }
    if (now > last) {
      free.from.push(last);
      free.to.push(now);
      last = now;
    }
    if (group.length > 1) group.sort((one, other) => rankOf(one) - rankOf(other) || one - other);
    for (const row of group) take(free, pieces, row, now - since[row], now - reach * length);
  }
  const order = Uint32Array.from(pieces.row.keys());
  const isSorted = pieces.from.every((from, piece) => !(from < pieces.from[piece - 1]));
  if (!isSorted) order.sort((one, other) => pieces.from[one] - pieces.from[other]);
  const sorted = (values, Kind) => Kind.from(order, piece => values[piece]);
  return { from: sorted(pieces.from, Float64Array), to: sorted(pieces.to, Float64Array),
    row: sorted(pieces.row, Uint32Array), count: order.length };
}

/** Gives the latest free time, up to a length and not before a limit, to a sample. */
function take(free, pieces, row, length, limit) {
  if (length <= 0) {
    pieces.from.push(limit);
    pieces.to.push(limit);
    pieces.row.push(row);
    return;
  }
  let rest = length;
  while (rest > 0.5 && free.to.length) {
    const at = free.to.length - 1;
    const to = free.to[at], from = Math.max(free.from[at], to - rest, limit);
    if (to <= limit) return;
    pieces.from.push(from);
    pieces.to.push(to);
    pieces.row.push(row);
    rest -= to - from;
    free.to[at] = from;
    if (from <= free.from[at]) {
      free.from.pop();
      free.to.pop();
    }
  }
}
