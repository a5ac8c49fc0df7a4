//! The trace points of one stream in their order, from the begin of some block on.
//!
//! # Invariants
//! - `state` is the stream's state behind the last step.
//! - A block that does not go on where the one before it ended is a loss, which is a step of its
//!   own.

use std::sync::Arc;

use super::call::LazyNode;
use super::fault::{Fault, Found};
use super::reading::Reading;
use super::source::Directory;
use crate::trace::bytes::{Cursor, Malformed};
use crate::trace::checkpoint::{BlockEntry, Checkpoint};
use crate::trace::forest::gap;
use crate::trace::frame::FrameHeader;
use crate::trace::kind::Kind;
use crate::trace::loss::{Resumption, resume};
use crate::trace::object::{Point, Record, SampleFields};
use crate::trace::sample::Context;
use crate::trace::{LocationId, MAX_DEPTH, Sample, TraceError};

/// What comes next in a stream.
#[derive(Debug)]
pub(super) enum Step {
    /// A call begins.
    Call { location: LocationId },
    /// Calls end.
    Footer { unfinished: bool },
    /// An open call is elsewhere.
    Moved,
    /// A sample, which is [`Walk::sample`]. `outer` calls are not its own; `main_before` samples of
    /// the main stream come before it, if the stream is a side stream.
    Sample { outer: usize, main_before: u64 },
    /// Another point without children.
    Leaf(LazyNode),
    /// The block is at its end; the next step is of the next one.
    BlockEnd,
    /// Samples are missing here: of the calls that were open before, the outer `common` ones are
    /// open behind it.
    Lost { from_ns: u64, to_ns: u64, samples: Option<u64>, common: usize },
}

/// Walks through a stream.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    reading: &'a Reading,
    stream: u32,
    /// Number of the block.
    number: u64,
    blocks: u64,
    header: FrameHeader,
    payload: Arc<Vec<u8>>,
    /// Offset in the frame's payload of the first byte of `payload`.
    base: usize,
    /// Rest of the block's data, in `payload`.
    at: usize,
    end: usize,
    /// The end of the block was told.
    ended: bool,
    tick_ns: u64,
    context: Context,
    pub(super) state: Checkpoint,
    /// The last sample.
    pub(super) sample: Sample,
    /// What is lost before the first block.
    lost_first: Option<Step>,
}

impl<'a> Walk<'a> {
    /// From the begin of a block on; `None` if the stream has no such block.
    pub(super) fn new(reading: &'a Reading, stream: u32, number: u64) -> Found<Option<Self>> {
        let blocks = reading.index.block_count(stream)?;
        if number >= blocks {
            return Ok(None);
        }
        let found = reading.block(stream, number)?;
        let entry = found.entry()?;
        let mut walk = Self::of_block(reading, &found.directory, found.at, entry)?;
        (walk.number, walk.blocks) = (number, blocks);
        if number == 0 && entry.begin != Checkpoint::default() {
            walk.state = Checkpoint::default();
            walk.lost_first = Some(walk.lost(entry)?);
        }
        Ok(Some(walk))
    }

    /// Through one block, which is at `at` in its frame, to its end.
    pub(super) fn of_block(
        reading: &'a Reading,
        directory: &Directory,
        at: usize,
        entry: &BlockEntry,
    ) -> Found<Self> {
        let (payload, base) = reading.source.payload(directory, at)?;
        let mut walk = Self {
            reading,
            stream: entry.stream,
            number: 0,
            // None follows.
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

    /// The number of the block that the next step is of.
    pub(super) fn block(&self) -> u64 {
        self.number
    }

    fn enter(&mut self, at: usize, entry: &BlockEntry) -> Found<()> {
        let bytes = entry.bytes as usize;
        let trailing = usize::from(entry.ends.last);
        let begin = (at - self.base) + entry.head_bytes();
        let end = (at - self.base + bytes).checked_sub(trailing).filter(|end| *end >= begin);
        let end = end.filter(|end| *end <= self.payload.len());
        let Some(end) = end else { return self.corrupt(begin, "a block has no room for its ends") };
        (self.at, self.end, self.ended) = (begin, end, false);
        self.tick_ns = entry.tick_ns;
        self.context = Context::default();
        Ok(())
    }

    /// Leaves out the blocks up to the one with this number, which is in front.
    pub(super) fn jump(&mut self, number: u64) -> Found<()> {
        if let Some(walk) = Self::new(self.reading, self.stream, number)? {
            *self = walk;
        }
        Ok(())
    }

    /// The next step, `None` at the end of the stream.
    pub(super) fn step(&mut self) -> Found<Option<Step>> {
        if let Some(lost) = self.lost_first.take() {
            let found = self.reading.block(self.stream, self.number)?;
            self.state.clone_from(&found.entry()?.begin);
            return Ok(Some(lost));
        }
        while self.at == self.end {
            if self.number + 1 >= self.blocks {
                return Ok(None);
            }
            // One step for the end of the block, so that others can look where to go on.
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

    fn point(&mut self) -> Found<Step> {
        let start = self.at;
        let mut cursor = Cursor::new(&self.payload[..self.end]);
        cursor.skip_to(start);
        // Most points are one of these two; a record is large, and would be moved around for each.
        let step = if let Some(location) = cursor.short_behind(Kind::Call as u8) {
            self.pass(cursor.at());
            self.call(location)
        } else if let Some(word) = cursor.short_behind(Kind::Footer as u8) {
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
                _ => Err("an object lies where it may not"),
            }
        };
        step.or_else(|what| self.corrupt(start, what))
    }

    /// Goes on behind an object, which ends at `at`.
    fn pass(&mut self, at: usize) {
        self.state.logical = self.state.logical.saturating_add((at - self.at) as u64);
        self.at = at;
    }

    /// Goes on with the next block, there is one; gives what is lost before it.
    fn next_block(&mut self) -> Found<Option<Step>> {
        let found = self.reading.block(self.stream, self.number + 1)?;
        (self.payload, self.base) = self.reading.source.payload(&found.directory, found.at)?;
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

    /// What lies between the state and the begin of a later block.
    fn lost(&self, entry: &BlockEntry) -> Found<Step> {
        match resume(&self.state, entry, self.reading.losses.any()) {
            Ok(Some(Resumption { survivors, from_ns, to_ns, samples })) => {
                Ok(Step::Lost { from_ns, to_ns, samples: Some(samples), common: survivors })
            }
            Ok(None) => Ok(Step::Moved),
            Err(what) => Err(Fault::Index(what)),
        }
    }

    fn apply(&mut self, point: Point) -> Result<Step, &'static str> {
        match point {
            Point::Call { location } => self.call(location),
            Point::Footer { run, unfinished } => self.footer(run, unfinished),
            Point::Site { location } => self.moved(0, location),
            Point::OuterSite { up, location } => self.moved(up as usize, location),
            Point::Sample(fields) => self.sample(&fields),
            leaf => {
                if let Point::Gap { before, length } = leaf {
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
        let place = place.ok_or("a call that is not open moves")?;
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
        self.sample = sample.ok_or("the time of a sample lies before that of the last one")?;
        state.last_ns = self.sample.time_ns;
        state.samples += 1;
        let before = state.main_before.checked_add(fields.main_before.unwrap_or(0));
        state.main_before = before.ok_or("a count overflows")?;
        Ok(Step::Sample { outer, main_before: state.main_before })
    }

    fn corrupt<T>(&self, at: usize, what: &'static str) -> Found<T> {
        let offset = self.header.position(self.base + at);
        Err(Fault::Trace(TraceError::Corrupt { offset, what }))
    }
}
