//! Loads the children of a call.
//!
//! # Invariants
//! - A child that contains complete blocks is skipped, not decoded, unless its content is
//!   requested.
//! - Memory use is that of the requested nodes, plus one number per block of the call's content.

use std::ops::Range;

use super::call::{CallEnding, ContentPosition, LazyCall, LazyNode, Mark, Segment};
use super::fault::{LazyError, LazyResult};
use super::open_trace::OpenTrace;
use super::walk::{Step, StreamWalk};
use crate::trace::{LocationId, Loss, SIDE, TraceError};

/// The most children of a call.
const MAX_CHILDREN: u32 = i32::MAX as u32;

/// A request to load children.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The numbers of the children. If the number of children is unknown, the range may extend
    /// beyond the last one.
    pub(super) children: Range<u32>,
    /// The number of levels to load: 1 is the children alone.
    pub(super) levels: usize,
    /// The number of nodes from which on only the children themselves are loaded. A child that
    /// continues over the end of a block is also loaded without its content, unless this is
    /// `usize::MAX`.
    pub(super) deep_nodes: usize,
}

impl Wanted {
    /// Requests these children without their content.
    pub(super) fn children(children: Range<u32>) -> Self {
        Self { children, levels: 1, deep_nodes: 0 }
    }
}

/// Loads the children of `call` that are not loaded yet. Counts them if it reaches the end of the
/// call.
pub(super) fn load(trace: &OpenTrace, call: &mut LazyCall, wanted: Wanted) -> LazyResult<()> {
    let from = call.marks.partition_point(|mark| mark.children <= wanted.children.start);
    let from = from.checked_sub(1).map(|place| call.marks[place]);
    let mut gather = Gather {
        trace,
        next: from.map_or(0, |mark| mark.children),
        levels: wanted.levels,
        open: Vec::new(),
        nodes: 0,
        lost: 0,
        samples: 0,
        wanted,
        call,
    };
    let segments = gather.call.place.segments().enumerate();
    for (number, segment) in segments.skip(from.map_or(0, |mark| mark.segment)) {
        let from = from.filter(|mark| mark.segment == number);
        if !gather.segment(number, segment, from)? {
            return Ok(());
        }
    }
    if gather.call.times.is_some() {
        gather.call.count = Some(gather.next);
        return Ok(());
    }
    let (count, samples) = (Some(gather.next), gather.samples);
    let known = gather.call.count.is_none_or(|known| Some(known) == count)
        && (from.is_some() || gather.call.samples == samples);
    if !known && !trace.scanned {
        return Err(LazyError::Index("the content of a call differs from the index"));
    }
    // Corrects the values from a wrong index.
    gather.call.count = count;
    if from.is_none() {
        gather.call.samples = samples;
    }
    Ok(())
}

/// The position at which loading starts.
#[derive(Debug, Clone, Copy)]
struct Begin {
    block: u64,
    /// The offset at which the content of the first child starts, if the child is known.
    child: Option<u64>,
}

/// An open child, or an open call below a child.
#[derive(Debug)]
struct Open {
    /// The call; `None` if it is not requested.
    call: Option<Box<LazyCall>>,
    number: u32,
    /// The number of its children so far; `None` if the number stays unknown.
    count: Option<u32>,
    /// Whether it was skipped: the number of its children is known from the index.
    skipped: bool,
    samples_before: u64,
    lost_before: u64,
}

struct Gather<'a> {
    trace: &'a OpenTrace,
    call: &'a mut LazyCall,
    wanted: Wanted,
    /// The number of the next child.
    next: u32,
    /// The number of levels to load now.
    levels: usize,
    /// The open calls below the call, down to the loaded depth.
    open: Vec<Open>,
    nodes: usize,
    /// The number of lost samples so far.
    lost: u64,
    /// The number of samples of the call in the segments so far.
    samples: u64,
}

impl Gather<'_> {
    /// Loads from one segment. Returns false if everything requested was found before its end.
    fn segment(&mut self, number: usize, segment: Segment, from: Option<Mark>) -> LazyResult<bool> {
        let Segment { stream, start, .. } = segment;
        let begin = match (from, self.call.times) {
            (Some(mark), _) => Some(Begin { block: mark.block, child: None }),
            (None, Some((from_ns, _))) => self.begin_at_time(segment, from_ns)?,
            (None, None) => Some(Begin { block: self.trace.block_at(stream, start)?, child: None }),
        };
        let Some(Begin { block, child }) = begin else { return Ok(true) };
        let Some(mut walk) = StreamWalk::new(self.trace, stream, block)? else { return Ok(true) };
        match child {
            None => self.go_to(&mut walk, segment)?,
            Some(child) => self.go_to_child(&mut walk, segment, child)?,
        }
        let (samples, lost) = (walk.state.samples, self.lost);
        let (mut outside, mut at_end) = (0, false);
        loop {
            if self.open.is_empty() && self.next >= self.wanted.children.end {
                return Ok(false);
            }
            let late = |(_, to_ns)| walk.state.last_ns > to_ns;
            if self.open.is_empty() && self.call.times.is_some_and(late) {
                return Ok(true);
            }
            let Some(step) = walk.step()? else {
                at_end = true;
                break;
            };
            if matches!(step, Step::BlockEnd) {
                let block = self.block_end(&mut walk, segment)?;
                self.mark(Mark { children: self.next, segment: number, block });
            } else {
                let losing = matches!(step, Step::Lost { .. });
                let known = self.lost;
                if !self.take(step, &walk, segment)? {
                    // A loss that ends the call does not belong to it.
                    outside = if losing { self.lost - known } else { 0 };
                    break;
                }
            }
        }
        let ending = match (self.trace.is_tail_lost(stream)?, self.trace.closed) {
            (false, _) => CallEnding::Unfinished,
            (true, true) => CallEnding::Lost,
            (true, false) => CallEnding::LostOrUnfinished,
        };
        self.close(0, StreamPosition::of(&walk), ending);
        let samples = walk.state.samples.saturating_sub(samples);
        self.samples += samples.saturating_sub(self.lost - lost);
        self.lost -= outside;
        if at_end
            && (segment.depth, stream & SIDE) == (0, 0)
            && let Some(Loss { from_ns, to_ns, samples, .. }) = self.trace.losses.tail(stream)
        {
            self.leaf(0, || LazyNode::Lost { from_ns, to_ns, samples })?;
        }
        Ok(true)
    }

    /// Returns where the first child that overlaps the times from `from_ns` on can start; `None` if
    /// the call ended before.
    fn begin_at_time(&self, segment: Segment, from_ns: u64) -> LazyResult<Option<Begin>> {
        let Segment { stream, depth, start } = segment;
        let first = self.trace.block_at(stream, start)?;
        let block = self.trace.block_at_time(stream, from_ns.saturating_sub(1))?;
        if block <= first {
            return Ok(Some(Begin { block: first, child: None }));
        }
        let found = self.trace.block(stream, block)?;
        let open = &found.entry()?.begin.calls;
        let own = depth.checked_sub(1).map(|own| open.get(own));
        if own.is_some_and(|own| own.is_none_or(|own| own.start != start)) {
            return Ok(None);
        }
        let Some(child) = open.get(depth).map(|child| child.start) else {
            return Ok(Some(Begin { block, child: None }));
        };
        // Its header ends where its content starts, possibly at the end of a block.
        let block = self.trace.block_at(stream, child.saturating_sub(1))?;
        Ok(Some(Begin { block, child: Some(child) }))
    }

    /// Moves to the start of the content of a child, and opens the child.
    fn go_to_child(
        &mut self,
        walk: &mut StreamWalk<'_>,
        segment: Segment,
        child: u64,
    ) -> LazyResult<()> {
        let mut last = None;
        while walk.state.logical < child {
            let Some(step) = walk.step()? else { break };
            last = Some(step);
        }
        let open = walk.state.calls.get(segment.depth);
        if open.is_none_or(|open| open.start != child) {
            return Err(LazyError::Index("a call is not where the index says"));
        }
        match last {
            Some(step @ Step::Call { .. }) => self.take(step, walk, segment).map(drop),
            _ => self.begin_lost(segment.depth, walk, segment),
        }
    }

    /// Moves to the start of the content, or records which child continues over the start of the
    /// block.
    fn go_to(&mut self, walk: &mut StreamWalk<'_>, segment: Segment) -> LazyResult<()> {
        let Segment { depth, start, .. } = segment;
        let mut lost = false;
        while walk.state.logical < start {
            match walk.step()? {
                Some(step) => lost = matches!(step, Step::Lost { .. }),
                None => break,
            }
        }
        let is_open = match depth.checked_sub(1) {
            Some(own) => walk.state.calls.get(own).is_some_and(|call| call.start == start),
            None => true,
        };
        if !is_open {
            return Err(LazyError::Index("a call is not where the index says"));
        }
        if lost {
            self.begin_lost(depth, walk, segment)?;
        } else if walk.state.depth() > depth {
            self.levels = 1;
            self.open.push(Open {
                call: None,
                number: self.next.saturating_sub(1),
                count: None,
                skipped: false,
                samples_before: 0,
                lost_before: 0,
            });
        }
        Ok(())
    }

    /// Processes a step. Returns false if it ends the call.
    fn take(&mut self, step: Step, walk: &StreamWalk<'_>, segment: Segment) -> LazyResult<bool> {
        let depth = segment.depth;
        match step {
            Step::Call { location } => {
                let level = walk.state.depth() - 1 - depth;
                if level == 0 {
                    let full = self.nodes >= self.wanted.deep_nodes;
                    self.levels = if full { 1 } else { self.wanted.levels };
                }
                self.begin(level, location, walk, segment)?;
            }
            Step::Footer { unfinished } => {
                let ending = if unfinished { CallEnding::Unfinished } else { CallEnding::Seen };
                let left = walk.state.depth().checked_sub(depth);
                self.close(left.unwrap_or(0), StreamPosition::of(walk), ending);
                return Ok(left.is_some());
            }
            Step::Sample { .. } => {
                let time_ns = walk.sample.time_ns;
                let calls = self.open.iter_mut().rev().map_while(|open| open.call.as_mut());
                let unseen = calls.take_while(|call| call.first_ns == u64::MAX);
                unseen.for_each(|call| call.first_ns = time_ns);
                let level = walk.state.depth() - depth;
                self.leaf(level, || LazyNode::Sample(Box::new(walk.sample.clone())))?;
            }
            Step::Leaf(node) => self.leaf(walk.state.depth() - depth, || node)?,
            Step::Lost { from_ns, to_ns, samples, common } => {
                self.lost = self.lost.saturating_add(samples.unwrap_or(0));
                // If a loss is skipped, the calls that start after it are not seen.
                self.call.marks.pop_if(|mark| mark.block == walk.block());
                let now = StreamPosition { samples: walk.state.samples, last_ns: from_ns };
                let level = common.checked_sub(depth);
                self.close(level.unwrap_or(0), now, CallEnding::Lost);
                let Some(level) = level else { return Ok(false) };
                self.leaf(level, || LazyNode::Lost { from_ns, to_ns, samples })?;
                self.begin_lost(common, walk, segment)?;
            }
            Step::Moved | Step::BlockEnd => {}
        }
        Ok(true)
    }

    /// Opens the calls from `outer` on, which are open after a loss and whose start was not seen.
    fn begin_lost(
        &mut self,
        outer: usize,
        walk: &StreamWalk<'_>,
        segment: Segment,
    ) -> LazyResult<()> {
        for place in outer..walk.state.depth() {
            let open = self.open.len();
            self.begin(place - segment.depth, walk.state.locations[place], walk, segment)?;
            let begun = self.open.get_mut(open).and_then(|open| open.call.as_mut());
            begun.into_iter().for_each(|call| call.begin_lost = true);
        }
        Ok(())
    }

    /// Opens a call whose parent is `level` calls below the loaded call.
    fn begin(
        &mut self,
        level: usize,
        location: LocationId,
        walk: &StreamWalk<'_>,
        segment: Segment,
    ) -> LazyResult<()> {
        if level > self.open.len() || level > self.levels {
            return Ok(());
        }
        let (number, wanted) = self.count(level)?;
        if level >= self.levels {
            return Ok(());
        }
        let state = &walk.state;
        let depth = segment.depth + level;
        let (stream, start) = (segment.stream, state.calls[depth].start);
        let call_site = depth.checked_sub(1).map(|outer| state.locations[outer]);
        let place = ContentPosition::Call { stream, depth: depth + 1, start };
        self.open.push(Open {
            call: wanted.then(|| Box::new(LazyCall::new(place, Some(location), call_site))),
            number,
            count: Some(0),
            skipped: false,
            samples_before: state.samples,
            lost_before: self.lost,
        });
        Ok(())
    }

    /// Adds a node without children whose parent is `level` calls below the loaded call.
    fn leaf(&mut self, level: usize, node: impl FnOnce() -> LazyNode) -> LazyResult<()> {
        if level <= self.open.len() && level <= self.levels {
            let (number, wanted) = self.count(level)?;
            if wanted && level < self.levels {
                self.attach(level, number, node());
            }
        }
        Ok(())
    }

    /// Returns the number of a new child of a call, and whether it is requested.
    fn count(&mut self, level: usize) -> LazyResult<(u32, bool)> {
        let Some(place) = level.checked_sub(1) else {
            let number = self.next;
            if number == MAX_CHILDREN {
                let what = "the number of children";
                let limit = MAX_CHILDREN.into();
                return Err(LazyError::Trace(TraceError::LimitExceeded { what, limit }));
            }
            if self.call.times.is_some() {
                // Whether it is a child of the limited call is known only at its end.
                return Ok((number, number < self.wanted.children.end));
            }
            self.next += 1;
            let missing = self.wanted.levels > 1 || !self.call.children.contains_key(&number);
            return Ok((number, missing && self.wanted.children.contains(&number)));
        };
        let open = &mut self.open[place];
        let number = open.count.unwrap_or(0);
        if let (Some(count), false) = (&mut open.count, open.skipped) {
            *count = count.saturating_add(1);
        }
        Ok((number, open.call.is_some()))
    }

    fn attach(&mut self, level: usize, number: u32, node: LazyNode) {
        if let (0, Some((from_ns, to_ns))) = (level, self.call.times) {
            let (first_ns, last_ns) = node.times();
            if last_ns < from_ns || first_ns > to_ns {
                return;
            }
            self.next += 1;
            if !self.wanted.children.contains(&number) {
                return;
            }
        }
        self.nodes += 1;
        let parent = match level.checked_sub(1) {
            None => Some(&mut *self.call),
            Some(place) => self.open[place].call.as_deref_mut(),
        };
        if let Some(parent) = parent {
            parent.children.insert(number, node);
        }
    }

    /// Closes open calls until `left` remain.
    fn close(&mut self, left: usize, now: StreamPosition, ending: CallEnding) {
        while self.open.len() > left {
            let Some(open) = self.open.pop() else { break };
            let samples = now.samples.saturating_sub(open.samples_before);
            let Some(mut call) = open.call else { continue };
            call.ending = ending;
            call.count = open.count;
            call.samples = samples.saturating_sub(self.lost - open.lost_before);
            call.numbers = Some((open.samples_before, now.samples));
            if !open.skipped {
                call.last_ns = now.last_ns;
            }
            if call.first_ns == u64::MAX {
                call.first_ns = call.last_ns;
            }
            self.attach(self.open.len(), open.number, LazyNode::Call(call));
        }
    }

    /// At the end of a block: skips the blocks that contain only the inside of one child. Returns
    /// the number of the next block.
    fn block_end(&mut self, walk: &mut StreamWalk<'_>, segment: Segment) -> LazyResult<u64> {
        let next = walk.block() + 1;
        let Some(inside) = walk.state.calls.get(segment.depth) else { return Ok(next) };
        let start = inside.start;
        if self.wanted.deep_nodes == usize::MAX {
            return Ok(next);
        }
        // The child is large: its content is left out.
        self.open.truncate(1);
        self.levels = 1;
        let Some(open) = self.open.first_mut() else { return Ok(next) };
        if let Some(call) = &mut open.call {
            call.children.clear();
            if call.first_ns == u64::MAX {
                return Ok(next);
            }
        }
        // The index does not state what is lost inside a call.
        let row = if self.trace.losses.any() {
            None
        } else {
            self.trace.index.call(segment.stream, start)?
        };
        let Some(row) = row else { return Ok(next) };
        let target = self.trace.block_at(segment.stream, row.end)?;
        if target <= next {
            return Ok(next);
        }
        walk.jump(target)?;
        if walk.state.calls.get(segment.depth).is_none_or(|call| call.start != start) {
            return Err(LazyError::Index("a call does not end where the index says"));
        }
        (open.skipped, open.count) = (true, Some(row.children));
        if let Some(call) = &mut open.call {
            call.last_ns = row.last_ns;
        }
        Ok(target)
    }

    /// Records at the start of a block which child comes next.
    fn mark(&mut self, mark: Mark) {
        // An open child of a limited call may turn out not to be one.
        if self.call.times.is_some() && !self.open.is_empty() {
            return;
        }
        let later = |last: &Mark| (last.segment, last.block) < (mark.segment, mark.block);
        if self.call.marks.last().is_none_or(later) {
            self.call.marks.push(mark);
        }
    }
}

/// The position in a stream.
#[derive(Debug, Clone, Copy)]
struct StreamPosition {
    samples: u64,
    last_ns: u64,
}

impl StreamPosition {
    fn of(walk: &StreamWalk<'_>) -> Self {
        Self { samples: walk.state.samples, last_ns: walk.state.last_ns }
    }
}
