//! The managed frames of stopped threads, and the functions of these frames.

use std::collections::{HashMap, HashSet};

use traceprof_abi::runtime::word::{FOREIGN, ManagedFrame, sections};
use traceprof_abi::unwind::Snapshot;

use super::ThreadActivity;
use super::named_frame::NamedFrame;
use crate::inject::{self, StoppedThread, ThreadView};
use crate::proc::{self, ProcessMemory};
use crate::record::batch::contexts::{ReadContext, ThreadContext};
use crate::record::batch::functions::FunctionKey;
use crate::record::name::managed::locations::{gone_name, kind_of};
use crate::record::target::modules::AddressMap;
use crate::runtime::{Function, Gone, ManagedReader, ManagedThread, ThreadNameMemo, WantedNames};
use crate::unwind::{RemoteStack, RemoteUnwinder, StackCopy};

/// What is read of a thread besides its registers and its stack.
pub(super) struct SeenThread {
    pub(super) activity: ThreadActivity,
    pub(super) context: ThreadContext,
    /// The native stack, if its frames refer to objects that are read during the stop.
    pub(super) stack: Option<RemoteStack>,
    /// The frame words of the managed frames.
    pub(super) managed: Vec<u64>,
    /// Whether the thread holds the lock of a runtime.
    pub(super) holds_lock: bool,
    /// The thread's id in its own namespace, in a process that has a runtime.
    pub(super) inner_tid: Option<u32>,
}

/// Reads threads around their stops.
pub(super) struct StackView<'a> {
    pub(super) pid: i32,
    /// Whether to read the kernel's functions.
    pub(super) kernel: bool,
    pub(super) contexts: &'a (dyn ReadContext + Sync),
    /// The tables of the process.
    pub(super) snapshot: &'a Snapshot<'a>,
    pub(super) unwinder: RemoteUnwinder,
    /// Whether there is a runtime that names threads by their ids.
    pub(super) has_thread_names: bool,
    pub(super) frames: ManagedReader,
}

impl ThreadView for StackView<'_> {
    type Seen = SeenThread;

    fn before_stop(&mut self, tid: i32) -> SeenThread {
        let runtimes = self.snapshot.runtimes();
        let inner_tid = || proc::task_status(self.pid, tid).ok()?.inner_pid.try_into().ok();
        SeenThread {
            activity: ThreadActivity::read(self.pid, tid, self.kernel),
            context: self.contexts.read(tid),
            stack: None,
            managed: Vec::new(),
            holds_lock: false,
            inner_tid: if runtimes.is_empty() && !self.has_thread_names {
                None
            } else {
                inner_tid()
            },
        }
    }

    fn while_stopped(&mut self, stopped: StoppedThread<'_>, seen: &mut SeenThread) {
        let (runtimes, pointer) = (self.snapshot.runtimes(), stopped.pointer);
        if runtimes.iter().any(|block| block.v8().is_some() || block.lua().is_some()) {
            let StoppedThread { tid, registers, stack_avma, stack, .. } = stopped;
            let copy = StackCopy { avma: stack_avma, bytes: stack };
            let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
            seen.stack = Some(self.unwinder.unwind(self.snapshot, registers, copy, &mut read));
        }
        let Some(inner_tid) = seen.inner_tid else { return };
        let (thread, memory) = (ManagedThread { pointer, inner_tid }, ProcessMemory::of(self.pid));
        let stack = self.frames.read_stopped(runtimes, thread, stopped.registers, &memory);
        seen.holds_lock = stack.is_some() && thread.holds_lock(runtimes, &memory);
        seen.managed = stack.map(|stack| stack.words).unwrap_or_default();
        // Before the stop, the thread may have run another task than that of these frames.
        seen.context.task = self.contexts.read_task((pointer, inner_tid));
    }
}

/// Returns the names of threads in the runtimes of a process, by the threads' ids in their own
/// namespace.
pub(super) fn thread_names<'s>(
    seen: impl Iterator<Item = &'s SeenThread>,
    addresses: &AddressMap,
    pid: i32,
) -> HashMap<u32, String> {
    let tids: HashSet<u32> = seen.filter_map(|it| it.inner_tid).collect();
    let first = proc::task_status(pid, pid).map_or(0, |status| status.inner_pid as u32);
    let (memory, wanted) = (ProcessMemory::of(pid), WantedNames { tids: &tids, first });
    let mut names = HashMap::new();
    for runtime in addresses.with_thread_names() {
        names.extend(runtime.thread_names(&mut ThreadNameMemo::default(), &memory, wanted));
    }
    names
}

/// The functions of managed frames, each read once.
#[derive(Default)]
pub(super) struct ManagedNames(HashMap<FunctionKey, Result<Function, Gone>>);

impl ManagedNames {
    /// Reads the functions of these stacks of a process.
    pub(super) fn of<'w>(
        stacks: impl Iterator<Item = &'w [u64]>,
        addresses: &AddressMap,
        pid: i32,
    ) -> Self {
        let wanted: HashSet<FunctionKey> = stacks
            .flat_map(sections)
            .flat_map(|section| section.frames().map(move |frame| (section.runtime, frame)))
            .filter(|(_, frame)| frame.is_named())
            .map(|(runtime, frame)| FunctionKey::of(runtime, &frame))
            .collect();
        let memory = ProcessMemory::of(pid);
        let read = addresses.runtimes.iter().enumerate().flat_map(|(number, runtime)| {
            let keys = wanted.iter().filter(|key| usize::from(key.runtime) == number);
            let keys: Vec<FunctionKey> = keys.copied().collect();
            let objects: Vec<(u64, u32)> = keys.iter().map(|it| (it.object, it.cookie)).collect();
            keys.into_iter().zip(runtime.functions(&memory, &objects)).collect::<Vec<_>>()
        });
        Self(read.collect())
    }

    /// Returns a frame with its name. `None` for a frame that is not part of the program.
    pub(super) fn frame(
        &self,
        addresses: &AddressMap,
        number: u8,
        frame: &ManagedFrame,
    ) -> Option<NamedFrame> {
        let runtime = addresses.runtimes.get(usize::from(number))?;
        let function = self.0.get(&FunctionKey::of(number, frame));
        let function =
            function.filter(|_| frame.flags & FOREIGN == 0).and_then(|it| it.as_ref().ok());
        let (name, source) = match function {
            Some(function) if function.is_pseudo => return None,
            Some(function) => {
                let line = function.line_at(frame.position);
                let source = function.source_file().map(|file| (file.to_owned(), line));
                (function.name.clone(), source)
            }
            None => (gone_name(runtime), None),
        };
        Some(NamedFrame {
            avma: None,
            function: name,
            module: None,
            source,
            kind: kind_of(runtime.language),
            inlined: false,
            late: false,
        })
    }
}
