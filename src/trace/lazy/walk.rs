//! Walks over the trace points of one stream in order, from the start of any block.
//!
//! # Invariants
//! - `state` is the stream's state after the last step.
//! - If a block does not continue where the previous one ended, that is a loss, which is a step of
//!   its own.

use std::sync::Arc;

use super::call::LazyNode;
use super::fault::{LazyError, LazyResult};
use super::open_trace::OpenTrace;
use super::source::Directory;
use crate::trace::bytes::{Cursor, Malformed};
use crate::trace::checkpoint::{BlockEntry, Checkpoint};
use crate::trace::forest::gap;
use crate::trace::frame::FrameHeader;
use crate::trace::kind::Kind;
use crate::trace::loss::{Resumption, resume};
use crate::trace::object::{Record, SampleFields, TracePoint};
use crate::trace::sample::Context;
use crate::trace::{LocationId, MAX_DEPTH, Sample, TraceError};

/// A step in a stream.
#[derive(Debug)]
pub(super) enum Step {
    /// A call starts.
    Call { location: LocationId },
    /// Calls end.
    Footer { unfinished: bool },
    /// An open call moved to another location.
    Moved,
    /// A sample, which is in [`StreamWalk::sample`]. `outer` is the number of outer calls that are
    /// not its own. In a side stream, `main_before` is the number of samples of the main stream
    /// before it.
    Sample { outer: usize, main_before: u64 },
    /// Another trace point without children.
    Leaf(LazyNode),
    /// The end of the block; the next step belongs to the next block.
    BlockEnd,
    /// Samples are lost here. Of the calls that were open before, the outermost `common` are still
    /// open.
    Lost { from_ns: u64, to_ns: u64, samples: Option<u64>, common: usize },
}

/// A walk over a stream.
#[derive(Debug)]
pub(super) struct StreamWalk<'a> {
    trace: &'a OpenTrace,
    stream: u32,
    /// The number of the block.
    number: u64,
    blocks: u64,
    header: FrameHeader,
    payload: Arc<Vec<u8>>,
    /// The offset in the frame's payload of the first byte of `payload`.
    base: usize,
    /// The remaining range of the block's data in `payload`.
    at: usize,
    end: usize,
    /// Whether the step for the end of the block was returned.
    ended: bool,
    tick_ns: u64,
    context: Context,
    pub(super) state: Checkpoint,
    /// The last sample.
    pub(super) sample: Sample,
    /// The loss before the first block.
    lost_first: Option<Step>,
}

impl<'a> StreamWalk<'a> {
    /// Starts at a block; returns `None` if the stream has no such block.
    pub(super) fn new(trace: &'a OpenTrace, stream: u32, number: u64) -> LazyResult<Option<Self>> {
        let blocks = trace.index.block_count(stream)?;
        if number >= blocks {
            return Ok(None);
        }
        let found = trace.block(stream, number)?;
        let entry = found.entry()?;
        let mut walk = Self::for_block(trace, &found.directory, found.at, entry)?;
        (walk.number, walk.blocks) = (number, blocks);
        if number == 0 && entry.begin != Checkpoint::default() {
            walk.state = Checkpoint::default();
            walk.lost_first = Some(walk.lost(entry)?);
        }
        Ok(Some(walk))
    }

    /// Walks over one block only, which is at offset `at` in its frame.
    pub(super) fn for_block(
        trace: &'a OpenTrace,
        directory: &Directory,
        at: usize,
        entry: &BlockEntry,
    ) -> LazyResult<Self> {
        let (payload, base) = trace.source.payload(directory, at)?;
        let mut walk = Self {
            trace,
            stream: entry.stream,
            number: 0,
            // No block follows.
            blocks: 0,
            header: directory.header,
            payload,
            base,
            at: 0,
            end: 0,
            ended: false,
            tick_ns: 0,
            context: Context::default(),
            state: entry.begin.clone(),
            sample: Sample::default(),
            lost_first: None,
        };
        walk.enter(at, entry)?;
        Ok(walk)
    }

    /// Returns the number of the block of the next step.
    pub(super) fn block(&self) -> u64 {
        self.number
    }

    fn enter(&mut self, at: usize, entry: &BlockEntry) -> LazyResult<()> {
        let bytes = entry.bytes as usize;
        let trailing = usize::from(entry.ends.last);
        let begin = (at - self.base) + entry.head_bytes();
        let end = (at - self.base + bytes).checked_sub(trailing).filter(|end| *end >= begin);
        let end = end.filter(|end| *end <= self.payload.len());
        let Some(end) = end else {
            return self.corrupt(begin, "a block is too short for its ends");
        };
        (self.at, self.end, self.ended) = (begin, end, false);
        self.tick_ns = entry.tick_ns;
        self.context = Context::default();
        Ok(())
    }

    /// Skips the blocks before the later block with this number.
    pub(super) fn jump(&mut self, number: u64) -> LazyResult<()> {
        if let Some(walk) = Self::new(self.trace, self.stream, number)? {
            *self = walk;
        }
        Ok(())
    }

    /// Returns the next step, or `None` at the end of the stream.
    pub(super) fn step(&mut self) -> LazyResult<Option<Step>> {
        if let Some(lost) = self.lost_first.take() {
            let found = self.trace.block(self.stream, self.number)?;
            self.state.clone_from(&found.entry()?.begin);
            return Ok(Some(lost));
        }
        while self.at == self.end {
            if self.number + 1 >= self.blocks {
                return Ok(None);
            }
            // A step for the end of the block, so that the caller can decide where to continue.
            if !self.ended {
                self.ended = true;
                return Ok(Some(Step::BlockEnd));
            }
            if let Some(lost) = self.next_block()? {
                return Ok(Some(lost));
            }
        }
        self.point().map(Some)
    }

    fn point(&mut self) -> LazyResult<Step> {
        let start = self.at;
        let mut cursor = Cursor::new(&self.payload[..self.end]);
        cursor.skip_to(start);
        // Most points are one of these two; a `Record` is large, and decoding one would move it
        // around.
        let step = if let Some(location) = cursor.short_varint_after(Kind::Call as u8) {
            self.pass(cursor.at());
            self.call(location)
        } else if let Some(word) = cursor.short_varint_after(Kind::Footer as u8) {
            self.pass(cursor.at());
            self.footer(word >> 1, word & 1 == 1)
        } else {
            let record = match Record::decode(&mut cursor) {
                Ok(record) => record,
                Err(Malformed { at, what }) => return self.corrupt(at, what),
            };
            self.pass(cursor.at());
            match record {
                Record::Point(point) => self.apply(point),
                Record::Neutral(_) | Record::Unknown { .. } => Ok(Step::Moved),
                _ => Err("an object is in a block that may not contain it"),
            }
        };
        step.or_else(|what| self.corrupt(start, what))
    }

    /// Moves past an object, which ends at `at`.
    fn pass(&mut self, at: usize) {
        self.state.logical = self.state.logical.saturating_add((at - self.at) as u64);
        self.at = at;
    }

    /// Moves to the next block, which must exist; returns what is lost before it.
    fn next_block(&mut self) -> LazyResult<Option<Step>> {
        let found = self.trace.block(self.stream, self.number + 1)?;
        (self.payload, self.base) = self.trace.source.payload(&found.directory, found.at)?;
        self.header = found.directory.header;
        self.number += 1;
        let entry = found.entry()?;
        self.enter(found.at, entry)?;
        if self.state == entry.begin {
            return Ok(None);
        }
        let lost = self.lost(entry)?;
        self.state.clone_from(&entry.begin);
        Ok(Some(lost))
    }

    /// Returns the loss between the current state and the start of a later block.
    fn lost(&self, entry: &BlockEntry) -> LazyResult<Step> {
        match resume(&self.state, entry, self.trace.losses.any()) {
            Ok(Some(Resumption { survivors, from_ns, to_ns, samples })) => {
                Ok(Step::Lost { from_ns, to_ns, samples: Some(samples), common: survivors })
            }
            Ok(None) => Ok(Step::Moved),
            Err(what) => Err(LazyError::Index(what)),
        }
    }

    fn apply(&mut self, point: TracePoint) -> Result<Step, &'static str> {
        match point {
            TracePoint::Call { location } => self.call(location),
            TracePoint::Footer { run, unfinished } => self.footer(run, unfinished),
            TracePoint::Site { location } => self.moved(0, location),
            TracePoint::OuterSite { up, location } => self.moved(up as usize, location),
            TracePoint::Sample(fields) => self.sample(&fields),
            leaf => {
                if let TracePoint::Gap { before, length } = leaf {
                    let (_, to_ns) = gap(before, length, self.state.last_ns)?;
                    self.context.gap(to_ns);
                }
                Ok(LazyNode::of_point(leaf, self.state.last_ns).map_or(Step::Moved, Step::Leaf))
            }
        }
    }

    fn call(&mut self, location: u32) -> Result<Step, &'static str> {
        let state = &mut self.state;
        if state.depth() == MAX_DEPTH {
            return Err("too many calls are open");
        }
        let location = LocationId(location);
        state.push(location, state.logical);
        Ok(Step::Call { location })
    }

    fn footer(&mut self, run: u32, unfinished: bool) -> Result<Step, &'static str> {
        let depth = self.state.depth().checked_sub(run as usize);
        self.state.truncate(depth.ok_or("a footer closes more calls than are open")?);
        Ok(Step::Footer { unfinished })
    }

    fn moved(&mut self, up: usize, location: u32) -> Result<Step, &'static str> {
        let place = self.state.depth().checked_sub(up + 1);
        let place = place.ok_or("a trace point moves a call that is not open")?;
        self.state.locations[place] = LocationId(location);
        Ok(Step::Moved)
    }

    fn sample(&mut self, fields: &SampleFields) -> Result<Step, &'static str> {
        let state = &mut self.state;
        let outer = fields.outer.unwrap_or(0) as usize;
        if outer > state.depth() {
            return Err("a sample leaves out more calls than are open");
        }
        let sample = self.context.decode(fields, state, self.tick_ns);
        self.sample = sample.ok_or("the time of a sample is before that of the last one")?;
        state.last_ns = self.sample.time_ns;
        state.samples += 1;
        let before = state.main_before.checked_add(fields.main_before.unwrap_or(0));
        state.main_before = before.ok_or("a count overflows")?;
        Ok(Step::Sample { outer, main_before: state.main_before })
    }

    fn corrupt<T>(&self, at: usize, what: &'static str) -> LazyResult<T> {
        let offset = self.header.position(self.base + at);
        Err(LazyError::Trace(TraceError::Corrupt { offset, what }))
    }
}
