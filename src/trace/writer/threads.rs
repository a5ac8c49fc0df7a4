//! The threads that have not exited, and the number of bytes that wait in their blocks.
//!
//! # Invariants
//! - The number of waiting bytes is updated at each change of a thread, so nobody iterates over all
//!   threads to compute it.

use std::collections::BTreeMap;

use crate::trace::index::Cell;
use crate::trace::infer::Site;
use crate::trace::intern::next_id;
use crate::trace::object::Neutral;
use crate::trace::state::{ThreadState, WriteContext};
use crate::trace::stream::{Block, Stream};
use crate::trace::{Thread, ThreadId, TraceError};

/// The threads that have not exited.
#[derive(Debug, Default)]
pub(super) struct LiveThreads {
    /// The threads by id; exited threads take no memory.
    by_id: BTreeMap<u32, ThreadState>,
    /// The number of threads so far, including exited ones.
    ever: u32,
    waiting: usize,
    /// The sampling period, or 0.
    pub(super) period_ns: u64,
    /// The interval between checks of threads that do not run, or 0.
    pub(super) wall_interval_ns: u64,
}

/// The remaining data of a thread that exited.
pub(super) struct EndedThread {
    pub(super) object: Neutral,
    pub(super) blocks: Vec<Block>,
    /// The cells of its streams without an open block.
    pub(super) cells: Vec<Cell>,
}

impl LiveThreads {
    /// Returns the id of the next new thread.
    pub(super) fn next_id(&self) -> Result<ThreadId, TraceError> {
        next_id(self.ever as usize).map(ThreadId)
    }

    /// Adds the thread with this id, and returns it as an object. The names are the ids of its name
    /// and of its name in its language's runtime.
    pub(super) fn add(
        &mut self,
        id: ThreadId,
        thread: &Thread,
        (name, runtime_name): (u32, Option<u32>),
    ) -> Neutral {
        let mut state = ThreadState::new(id.0, thread, name);
        runtime_name.into_iter().for_each(|name| state.set_runtime_name(name));
        let object = state.object(None);
        self.by_id.insert(id.0, state);
        self.ever += 1;
        object
    }

    /// Returns the current state of a thread.
    pub(super) fn get(&self, thread: ThreadId) -> Result<&ThreadState, TraceError> {
        self.by_id.get(&thread.0).ok_or(unknown(thread))
    }

    /// Renames a thread, and returns it as an object.
    pub(super) fn rename(&mut self, thread: ThreadId, name: u32) -> Result<Neutral, TraceError> {
        let state = self.by_id.get_mut(&thread.0).ok_or(unknown(thread))?;
        state.rename(name);
        Ok(state.object(None))
    }

    /// Sets the name of a thread in its language's runtime, and returns the thread as an object.
    pub(super) fn set_runtime_name(
        &mut self,
        thread: ThreadId,
        name: u32,
    ) -> Result<Neutral, TraceError> {
        let state = self.by_id.get_mut(&thread.0).ok_or(unknown(thread))?;
        state.set_runtime_name(name);
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

    /// Returns the context that all threads share, with the sites of all locations.
    pub(super) fn common<'a>(&self, sites: &'a [Site]) -> WriteContext<'a> {
        let Self { period_ns, wall_interval_ns, .. } = *self;
        WriteContext { sites, period_ns, wall_interval_ns }
    }

    /// Ends a thread; its id is invalid from now on.
    pub(super) fn exit(
        &mut self,
        thread: ThreadId,
        time_ns: u64,
    ) -> Result<EndedThread, TraceError> {
        let period_ns = self.period_ns;
        self.change(thread, |state| state.exit(period_ns, time_ns))?;
        let mut state = self.by_id.remove(&thread.0).ok_or(unknown(thread))?;
        let object = state.object(Some(time_ns));
        let blocks = self.taken(state.end_blocks().collect());
        let cells = state.streams().flat_map(Stream::take_cells).collect();
        Ok(EndedThread { object, blocks, cells })
    }

    /// Ends the open calls of all threads, marked as unfinished.
    pub(super) fn finish(&mut self) {
        for state in self.by_id.values_mut() {
            let before = state.pending();
            state.finish(self.period_ns);
            self.waiting += state.pending() - before;
        }
    }

    /// Returns the number of bytes that wait in the blocks of all threads.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Ends the blocks of a thread that have at least `block_bytes` bytes.
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

    /// Takes the cells of the streams that have no open block.
    pub(super) fn take_cells(&mut self) -> Vec<Cell> {
        let states = self.by_id.values_mut();
        let cells = states.flat_map(|state| state.streams().flat_map(Stream::take_cells));
        cells.collect()
    }

    /// Subtracts the bytes of blocks from the waiting ones.
    fn taken(&mut self, blocks: Vec<Block>) -> Vec<Block> {
        self.waiting -= blocks.iter().map(|block| block.content.len()).sum::<usize>();
        blocks
    }
}

fn unknown(thread: ThreadId) -> TraceError {
    TraceError::UnknownId { kind: "thread", id: thread.0 }
}
