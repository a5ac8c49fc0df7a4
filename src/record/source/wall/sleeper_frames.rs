//! The managed frames of sleeping threads.

use traceprof_abi::runtime::RuntimeBlock;

use crate::inject::ThreadView;
use crate::proc::{self, ProcessMemory, TaskActivity};
use crate::record::batch::contexts::{ReadContext, ThreadContext};
use crate::runtime::{ManagedInputs, ManagedReader, ManagedStack, ManagedThread};

/// The managed frames at a location, and how to recognise them.
#[derive(Debug, Default)]
pub(super) struct KnownFrames {
    /// The frame words.
    pub(super) words: Vec<u64>,
    inputs: ManagedInputs,
    /// The number of runtimes that were searched.
    runtimes: usize,
    /// Whether the thread could be searched.
    pub(super) is_searched: bool,
}

/// Reads the managed frames of one process's threads.
pub(super) struct FrameSearch {
    pid: i32,
    memory: ProcessMemory,
    reader: ManagedReader,
    /// Whether the process has another pid in its own namespace.
    has_inner_ids: bool,
}

impl FrameSearch {
    pub(super) fn new(pid: i32) -> Self {
        let has_inner_ids = proc::task_status(pid, pid).is_ok_and(|it| it.inner_pid != pid);
        let memory = ProcessMemory::of(pid);
        Self { pid, memory, reader: ManagedReader::default(), has_inner_ids }
    }

    /// Returns whether a thread that sleeps has these frames now.
    pub(super) fn has(&self, runtimes: &[RuntimeBlock], known: &KnownFrames) -> bool {
        known.runtimes == runtimes.len() && known.inputs.hold(&self.memory)
    }

    /// Returns the frames of a thread that sleeps. `block` is the thread's block, if it is known
    /// from before.
    pub(super) fn find(
        &mut self,
        runtimes: &[RuntimeBlock],
        tid: i32,
        block: &mut Option<ManagedThread>,
    ) -> KnownFrames {
        if runtimes.is_empty() {
            return KnownFrames { is_searched: true, ..KnownFrames::default() };
        }
        let found = self.block_of(tid, block);
        let found = found.and_then(|block| self.reader.read(runtimes, block, &self.memory));
        if found.is_none() {
            *block = None;
        }
        KnownFrames::of(runtimes, found)
    }

    /// Returns the block of a thread that does not run. `known` is the block, if it is known from
    /// before.
    pub(super) fn block_of(
        &self,
        tid: i32,
        known: &mut Option<ManagedThread>,
    ) -> Option<ManagedThread> {
        if known.is_none() {
            let pointer = proc::thread_pointer(tid, |avma, into| self.memory.read(avma, into));
            let block = pointer.zip(self.inner_tid(tid)).map(thread);
            *known = block.filter(|block| block.is_own(&self.memory));
        }
        *known
    }

    /// Returns whether a thread that sleeps holds the lock of a runtime. `block` is the thread's
    /// block.
    pub(super) fn holds_lock(
        &self,
        runtimes: &[RuntimeBlock],
        block: Option<ManagedThread>,
    ) -> bool {
        block.is_some_and(|block| block.holds_lock(runtimes, &self.memory))
    }

    /// Returns a thread's id in its own namespace.
    pub(super) fn inner_tid(&self, tid: i32) -> Option<u32> {
        match self.has_inner_ids {
            true => proc::task_status(self.pid, tid).ok()?.inner_pid.try_into().ok(),
            false => u32::try_from(tid).ok(),
        }
    }
}

fn thread((pointer, inner_tid): (u64, u32)) -> ManagedThread {
    ManagedThread { pointer, inner_tid }
}

impl KnownFrames {
    /// Returns whether these are the same frames. Those of a thread that could not be searched are
    /// not known.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.is_searched && other.is_searched && self.words == other.words
    }

    fn of(runtimes: &[RuntimeBlock], found: Option<ManagedStack>) -> Self {
        let is_searched = found.is_some();
        let ManagedStack { words, inputs } = found.unwrap_or_default();
        Self { words, inputs, runtimes: runtimes.len(), is_searched }
    }
}

/// What is read of a thread besides its registers and its stack.
pub(super) struct SeenSleeper {
    pub(super) activity: Option<TaskActivity>,
    pub(super) context: ThreadContext,
    pub(super) frames: KnownFrames,
    /// The thread's block.
    pub(super) block: Option<ManagedThread>,
    /// Whether the thread holds the lock of a runtime.
    pub(super) holds_lock: bool,
    inner_tid: Option<u32>,
}

/// Reads threads around their stops.
pub(super) struct SleeperView<'a> {
    pub(super) contexts: &'a dyn ReadContext,
    pub(super) runtimes: &'a [RuntimeBlock],
    pub(super) search: &'a mut FrameSearch,
}

impl ThreadView for SleeperView<'_> {
    type Seen = SeenSleeper;

    fn before_stop(&mut self, tid: i32) -> SeenSleeper {
        SeenSleeper {
            activity: proc::task_activity(self.search.pid, tid).ok(),
            context: self.contexts.read(tid),
            frames: KnownFrames { is_searched: true, ..KnownFrames::default() },
            block: None,
            holds_lock: false,
            inner_tid: self.search.inner_tid(tid),
        }
    }

    fn while_stopped(&mut self, _tid: i32, pointer: u64, seen: &mut SeenSleeper) {
        if self.runtimes.is_empty() {
            return;
        }
        seen.block = seen.inner_tid.map(|inner_tid| thread((pointer, inner_tid)));
        let FrameSearch { memory, reader, .. } = &mut *self.search;
        let found = seen.block.and_then(|block| reader.read(self.runtimes, block, memory));
        seen.block = seen.block.filter(|_| found.is_some());
        seen.frames = KnownFrames::of(self.runtimes, found);
        seen.holds_lock = self.search.holds_lock(self.runtimes, seen.block);
    }
}
