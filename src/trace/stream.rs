//! The writing end of a stream: the open block.
//!
//! # Invariants
//! - `state` is the state of a reader after the bytes of `block`.
//! - A block ends between two objects, never inside one.

use super::checkpoint::{BlockEntry, Checkpoint, Ends, OpenCall};
use super::index::Cell;
use super::infer::{self, Site};
use super::kind::Kind;
use super::object::{SampleFields, TracePoint};
use super::sample::Context;
use super::{LocationId, Sample};

/// The capacity in bytes that an idle stream keeps.
const IDLE_BYTES: usize = 256;

/// The placement of a sample's stack.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlacedStack<'a> {
    /// Its own frames, root first.
    pub(super) stack: &'a [LocationId],
    /// The number of outer calls that stay open.
    pub(super) outer: usize,
    /// Whether calls inside `outer` may continue.
    pub(super) proven: bool,
}

/// A stream that is being written.
#[derive(Debug)]
pub(super) struct Stream {
    stream_id: u32,
    state: Checkpoint,
    begin: Checkpoint,
    context: Context,
    /// The logical offset of the block before the open one.
    earlier: Option<u64>,
    tick_ns: u64,
    first_ns: u64,
    block: Vec<u8>,
    cells: Vec<Cell>,
    /// The number of children so far: roots, then of each open call.
    children: Vec<u32>,
}

/// A complete block without its BLOCK_START and BLOCK_END.
#[derive(Debug)]
pub(super) struct Block {
    /// Its directory entry, as for a block in one frame; `bytes` is not set yet.
    pub(super) entry: BlockEntry,
    /// Its objects.
    pub(super) content: Vec<u8>,
    /// The cells of calls that ended in this block and started before the previous one, each
    /// followed by its summary. Cells of shorter calls would be most of an index, and a reader
    /// finds their ends in the same block or the next.
    pub(super) cells: Vec<Cell>,
}

impl Block {
    /// Returns the number of bytes of memory that it occupies.
    pub(super) fn memory(&self) -> usize {
        let calls = self.entry.begin.locations.capacity() * size_of::<LocationId>()
            + self.entry.begin.calls.capacity() * size_of::<OpenCall>();
        let cells = self.cells.capacity() * size_of::<Cell>();
        size_of::<Self>() + self.content.capacity() + calls + cells
    }
}

impl Stream {
    pub(super) fn new(stream_id: u32) -> Self {
        Self {
            stream_id,
            state: Checkpoint::default(),
            begin: Checkpoint::default(),
            context: Context::default(),
            earlier: None,
            tick_ns: 0,
            first_ns: 0,
            block: Vec::new(),
            cells: Vec::new(),
            children: vec![0],
        }
    }

    /// Returns the number of bytes in the open block.
    pub(super) fn pending(&self) -> usize {
        self.block.len()
    }

    /// Returns the open calls, root first.
    pub(super) fn open(&self) -> &[LocationId] {
        &self.state.locations
    }

    /// Returns the thread id, with [`super::SIDE`] for a side stream.
    pub(super) fn stream_id(&self) -> u32 {
        self.stream_id
    }

    /// Returns the number of samples so far.
    pub(super) fn samples(&self) -> u64 {
        self.state.samples
    }

    /// Starts a block if none is open.
    pub(super) fn begin(&mut self, tick_ns: u64) {
        if self.block.is_empty() {
            self.begin.clone_from(&self.state);
            self.tick_ns = tick_ns;
            self.first_ns = self.state.last_ns;
        }
    }

    /// Writes a child of the innermost call. The child has no children itself.
    pub(super) fn leaf(&mut self, point: TracePoint) {
        self.count_child();
        self.point(point);
    }

    fn count_child(&mut self) {
        if let Some(children) = self.children.last_mut() {
            *children = children.saturating_add(1);
        }
    }

    /// Writes an object.
    fn point(&mut self, point: TracePoint) {
        let before = self.block.len();
        point.encode(&mut self.block);
        self.state.logical += (self.block.len() - before) as u64;
    }

    /// Writes a gap.
    pub(super) fn gap(&mut self, from_ns: u64, to_ns: u64) {
        let before = from_ns.wrapping_sub(self.state.last_ns) as i64;
        self.leaf(TracePoint::Gap { before, length: to_ns - from_ns });
        self.context.gap(to_ns);
    }

    /// Moves the stack to that of a sample: closes, moves and opens calls.
    pub(super) fn move_to(&mut self, placed: PlacedStack<'_>, sites: &[Site]) {
        let PlacedStack { stack, outer, proven } = placed;
        let open = &self.state.locations[outer..];
        let continued = if proven { infer::continuing(open, stack, sites) } else { 0 };
        self.close(outer + continued, false);
        for (depth, new) in stack[..continued].iter().enumerate() {
            if self.state.locations[outer + depth] != *new {
                self.move_call(outer + depth, *new);
            }
        }
        for location in &stack[continued..] {
            self.open_call(*location);
        }
    }

    /// Moves the open call at depth `place`, counted from the root, to another location of its
    /// method.
    pub(super) fn move_call(&mut self, place: usize, location: LocationId) {
        let up = (self.state.depth() - 1 - place) as u32;
        self.state.locations[place] = location;
        let location = location.0;
        self.point(match up {
            0 => TracePoint::Site { location },
            up => TracePoint::OuterSite { up, location },
        });
    }

    /// Opens a call inside the innermost one.
    pub(super) fn open_call(&mut self, location: LocationId) {
        self.leaf(TracePoint::Call { location: location.0 });
        self.children.push(0);
        self.state.push(location, self.state.logical);
    }

    /// Closes calls until `depth` remain.
    pub(super) fn close(&mut self, depth: usize, unfinished: bool) {
        let run = self.state.depth() - depth;
        if run == 0 {
            return;
        }
        let extents = self.state.calls[depth..].iter().zip(&self.children[depth + 1..]);
        for (call, children) in extents.rev() {
            // Content starts after the header, so a call of a block starts later than the block.
            if self.earlier.is_some_and(|earlier| call.start <= earlier) {
                let samples = self.state.samples - call.samples_before;
                let (id, start, end) = (self.stream_id, call.start, self.state.logical);
                self.cells.push(Cell { kind: Kind::Call, id, start, end });
                self.cells.push(summary(*children, samples, self.state.last_ns));
            }
        }
        self.point(TracePoint::Footer { run: run as u32, unfinished });
        self.state.truncate(depth);
        self.children.truncate(depth + 1);
    }

    /// Records the extent of the complete stream. Nothing may follow.
    pub(super) fn complete(&mut self) {
        let (id, end) = (self.stream_id, self.state.logical);
        if end > 0 {
            self.cells.push(Cell { kind: Kind::Call, id, start: 0, end });
            self.cells.push(summary(self.children[0], self.state.samples, self.state.last_ns));
        }
    }

    /// Takes the cells of a complete stream that has no open block.
    pub(super) fn take_cells(&mut self) -> Vec<Cell> {
        std::mem::take(&mut self.cells)
    }

    /// Writes a sample. The caller has moved the stream to its stack.
    pub(super) fn sample(&mut self, sample: &Sample, outer: usize, main_before: Option<u64>) {
        let fields = self.context.encode(sample, &self.state, self.tick_ns, outer);
        let delta = main_before.map(|count| count - self.state.main_before).filter(|n| *n != 0);
        self.leaf(TracePoint::Sample(SampleFields { main_before: delta, ..fields }));
        if self.state.samples == self.begin.samples {
            self.first_ns = sample.time_ns;
        }
        self.state.last_ns = sample.time_ns;
        self.state.samples += 1;
        self.state.main_before = main_before.unwrap_or(0);
    }

    /// Ends the open block.
    pub(super) fn end_block(&mut self) -> Option<Block> {
        if self.block.is_empty() {
            return None;
        }
        let content = std::mem::take(&mut self.block);
        self.context = Context::default();
        self.earlier = Some(self.begin.logical);
        self.block.reserve(content.len().min(IDLE_BYTES));
        let entry = BlockEntry {
            stream: self.stream_id,
            ends: Ends::BOTH,
            bytes: 0,
            tick_ns: self.tick_ns,
            first_ns: self.first_ns,
            last_ns: self.state.last_ns,
            samples: self.state.samples - self.begin.samples,
            begin: std::mem::take(&mut self.begin),
        };
        Some(Block { entry, content, cells: std::mem::take(&mut self.cells) })
    }
}

/// Returns the cell after that of a call or of a complete stream: its number of children and
/// samples, and the time of its last sample.
fn summary(children: u32, samples: u64, last_ns: u64) -> Cell {
    Cell { kind: Kind::CallSummary, id: children, start: samples, end: last_ns }
}
