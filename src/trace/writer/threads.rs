//! The threads that have not ended, and the bytes that wait in their blocks.
//!
//! # Invariants
//! - What waits is counted as a whole, at each change of a thread: nobody goes through all threads
//!   to know it.

use std::collections::BTreeMap;

use crate::trace::index::Cell;
use crate::trace::infer::Site;
use crate::trace::object::Neutral;
use crate::trace::state::{Common, ThreadState};
use crate::trace::stream::{Block, Stream};
use crate::trace::tables::next_id;
use crate::trace::{Thread, ThreadId, TraceError};

/// Threads that have not ended.
#[derive(Debug, Default)]
pub(super) struct LiveThreads {
    /// By id: what ended costs no memory.
    by_id: BTreeMap<u32, ThreadState>,
    /// How many there were, those that ended included.
    ever: u32,
    waiting: usize,
    /// The sampling period, or 0.
    pub(super) period_ns: u64,
    /// How often time that threads do not run is looked at, or 0.
    pub(super) wall_interval_ns: u64,
}

/// What is left to write of a thread that ended.
pub(super) struct Ended {
    pub(super) object: Neutral,
    pub(super) blocks: Vec<Block>,
    /// Of a stream of which nothing waits.
    pub(super) cells: Vec<Cell>,
}

impl LiveThreads {
    /// The id of the next new thread.
    pub(super) fn next_id(&self) -> Result<ThreadId, TraceError> {
        next_id(self.ever as usize).map(ThreadId)
    }

    /// Adds the thread with that id, and returns it as an object; `name` is the id of its name.
    pub(super) fn add(&mut self, id: ThreadId, thread: &Thread, name: u32) -> Neutral {
        let state = ThreadState::new(id.0, thread, name);
        let object = state.object(None);
        self.by_id.insert(id.0, state);
        self.ever += 1;
        object
    }

    /// A thread as it is now.
    pub(super) fn get(&self, thread: ThreadId) -> Result<&ThreadState, TraceError> {
        self.by_id.get(&thread.0).ok_or(unknown(thread))
    }

    /// Gives a thread another name, and returns it as an object.
    pub(super) fn rename(&mut self, thread: ThreadId, name: u32) -> Result<Neutral, TraceError> {
        let state = self.by_id.get_mut(&thread.0).ok_or(unknown(thread))?;
        state.rename(name);
        Ok(state.object(None))
    }

    /// Changes the streams of a thread.
    pub(super) fn change(
        &mut self,
        thread: ThreadId,
        change: impl FnOnce(&mut ThreadState),
    ) -> Result<(), TraceError> {
        let state = self.by_id.get_mut(&thread.0).ok_or(unknown(thread))?;
        let before = state.pending();
        change(state);
        let after = state.pending();
        self.waiting += after - before;
        Ok(())
    }

    /// What all of them share, with the sites of all locations.
    pub(super) fn common<'a>(&self, sites: &'a [Site]) -> Common<'a> {
        let Self { period_ns, wall_interval_ns, .. } = *self;
        Common { sites, period_ns, wall_interval_ns }
    }

    /// Ends a thread; its id is unknown from now on.
    pub(super) fn exit(&mut self, thread: ThreadId, time_ns: u64) -> Result<Ended, TraceError> {
        let period_ns = self.period_ns;
        self.change(thread, |state| state.exit(period_ns, time_ns))?;
        let mut state = self.by_id.remove(&thread.0).ok_or(unknown(thread))?;
        let object = state.object(Some(time_ns));
        let blocks = self.taken(state.end_blocks().collect());
        let cells = state.streams().flat_map(Stream::take_cells).collect();
        Ok(Ended { object, blocks, cells })
    }

    /// Ends the open calls of all threads, marked as unfinished.
    pub(super) fn finish(&mut self) {
        for state in self.by_id.values_mut() {
            let before = state.pending();
            state.finish(self.period_ns);
            self.waiting += state.pending() - before;
        }
    }

    /// Bytes that wait in the blocks of all threads.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Ends the blocks of a thread that have so many bytes.
    pub(super) fn end_full(
        &mut self,
        thread: ThreadId,
        block_bytes: usize,
    ) -> Result<Vec<Block>, TraceError> {
        let state = self.by_id.get_mut(&thread.0).ok_or(unknown(thread))?;
        if state.pending() < block_bytes {
            return Ok(Vec::new());
        }
        let full = state.streams().filter(|stream| stream.pending() >= block_bytes);
        let ended = full.filter_map(Stream::end_block).collect();
        Ok(self.taken(ended))
    }

    /// Ends all blocks.
    pub(super) fn end_all(&mut self) -> Vec<Block> {
        let ended = self.by_id.values_mut().flat_map(ThreadState::end_blocks).collect();
        self.taken(ended)
    }

    /// What the streams have to say of which nothing waits.
    pub(super) fn take_cells(&mut self) -> Vec<Cell> {
        let states = self.by_id.values_mut();
        let cells = states.flat_map(|state| state.streams().flat_map(Stream::take_cells));
        cells.collect()
    }

    /// Counts the bytes of blocks no more.
    fn taken(&mut self, blocks: Vec<Block>) -> Vec<Block> {
        self.waiting -= blocks.iter().map(|block| block.content.len()).sum::<usize>();
        blocks
    }
}

fn unknown(thread: ThreadId) -> TraceError {
    TraceError::UnknownId { kind: "thread", id: thread.0 }
}
