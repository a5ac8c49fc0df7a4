//! The managed frames of sleeping threads.

use traceprof_abi::runtime::RuntimeBlock;
use traceprof_abi::unwind::Snapshot;

use crate::inject::{self, StoppedThread, ThreadView};
use crate::proc::{self, ProcessMemory, TaskActivity};
use crate::record::batch::contexts::{ReadContext, ThreadContext};
use crate::record::source::wall::kernel_frames::KernelFrameReader;
use crate::runtime::{ManagedInputs, ManagedReader, ManagedStack, ManagedThread};
use crate::unwind::{RemoteStack, RemoteUnwinder, StackCopy, StackFingerprint};

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

    /// Returns the frames of a thread that sleeps with this stack pointer. `block` is the thread's
    /// block, if it is known from before.
    pub(super) fn find(
        &mut self,
        runtimes: &[RuntimeBlock],
        (tid, stack): (i32, u64),
        block: &mut Option<ManagedThread>,
    ) -> KnownFrames {
        if runtimes.is_empty() {
            return KnownFrames { is_searched: true, ..KnownFrames::default() };
        }
        let found = self.block_of(tid, block);
        let found =
            found.and_then(|block| self.reader.read(runtimes, (block, stack), &self.memory));
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
    /// The words of the kernel's frames.
    pub(super) kernel_words: Vec<u64>,
    pub(super) frames: KnownFrames,
    /// The thread's block.
    pub(super) block: Option<ManagedThread>,
    /// Whether the thread holds the lock of a runtime.
    pub(super) holds_lock: bool,
    /// The stack, if its frames refer to objects that are read during the stop.
    pub(super) stack: Option<(RemoteStack, StackFingerprint)>,
    inner_tid: Option<u32>,
}

/// Reads threads around their stops.
pub(super) struct SleeperView<'a> {
    pub(super) contexts: &'a dyn ReadContext,
    pub(super) snapshot: &'a Snapshot<'a>,
    pub(super) unwinder: &'a mut RemoteUnwinder,
    pub(super) search: &'a mut FrameSearch,
    pub(super) kernel: &'a mut KernelFrameReader,
}

impl ThreadView for SleeperView<'_> {
    type Seen = SeenSleeper;

    fn before_stop(&mut self, tid: i32) -> SeenSleeper {
        SeenSleeper {
            activity: proc::task_activity(self.search.pid, tid).ok(),
            context: self.contexts.read(tid),
            kernel_words: self.kernel.read(tid),
            frames: KnownFrames { is_searched: true, ..KnownFrames::default() },
            block: None,
            holds_lock: false,
            stack: None,
            inner_tid: self.search.inner_tid(tid),
        }
    }

    fn while_stopped(&mut self, stopped: StoppedThread<'_>, seen: &mut SeenSleeper) {
        let (runtimes, pointer) = (self.snapshot.runtimes(), stopped.pointer);
        if runtimes.is_empty() {
            return;
        }
        if runtimes.iter().any(|block| block.v8().is_some() || block.lua().is_some()) {
            let StoppedThread { tid, registers, stack_avma, stack, .. } = stopped;
            let copy = StackCopy { avma: stack_avma, bytes: stack };
            let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
            let unwound =
                self.unwinder.unwind_with_fingerprint(self.snapshot, registers, copy, &mut read);
            seen.stack = Some(unwound);
        }
        seen.block = seen.inner_tid.map(|inner_tid| thread((pointer, inner_tid)));
        let FrameSearch { memory, reader, .. } = &mut *self.search;
        let found = seen
            .block
            .and_then(|block| reader.read(runtimes, (block, stopped.registers.sp), memory));
        seen.block = seen.block.filter(|_| found.is_some());
        seen.frames = KnownFrames::of(runtimes, found);
        seen.holds_lock = self.search.holds_lock(runtimes, seen.block);
    }
}
