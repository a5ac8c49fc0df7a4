//! The stacks of all threads of a process at one time, without an agent.
//!
//! Each thread is stopped only while its registers and its stack are copied
//! ([`inject::capture()`]), and while its managed frames are read. Everything else happens while
//! the target runs. Its modules are opened and their tables compiled before the first stop, and
//! stacks are unwound and named after the last one.

mod activity;
mod frame_names;
mod java;
#[cfg(test)]
mod java_tests;
mod javascript;
mod managed;
mod named_frame;
#[cfg(test)]
mod v8_tests;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use traceprof_abi::layout;
use traceprof_abi::runtime::word::pcs;
use traceprof_abi::unwind::EndReason;

use crate::inject::{self, Capture, Captures, NotCaptured, ThreadSnapshot};
use crate::proc::{self, Mapping, TaskActivity};
use crate::record::contract::error::{RecordError, inject_error, refusal_error, target_error};
use crate::record::name::contexts::Contexts;
use crate::record::name::managed::mixed::is_cut;
use crate::record::store::outside_unwind::with_functions;
use crate::record::target::modules::{AddressMap, Modules};
use crate::record::target::namespace::check_proc;
use crate::record::target::shm::{SharedMemory, Use};
use crate::runtime::ManagedReader;
use crate::trace::FrameKind;
use crate::unwind::{RemoteStack, RemoteUnwinder, StackCopy, TableWriter};

pub use self::activity::{SleepingCall, ThreadActivity};
use self::java::JavaView;
use self::javascript::JsView;
use self::managed::{ManagedNames, SeenThread, StackView, thread_names};
pub use self::named_frame::NamedFrame;
pub use crate::record::name::contexts::ThreadWork;

/// All threads of a process at one time.
#[derive(Debug)]
pub struct ProcessStacks {
    /// The process id.
    pub pid: i32,
    /// The arguments of the process.
    pub command_line: Vec<OsString>,
    /// The threads in order of their ids.
    pub threads: Vec<ThreadStack>,
    /// Samples that a recording of the process lost to this inspection.
    pub withheld: u64,
    /// Messages for the user about files that could not be opened or read.
    pub notices: Vec<String>,
}

impl ProcessStacks {
    /// Returns the longest stop of a thread in nanoseconds.
    pub fn longest_stop_ns(&self) -> Option<u64> {
        self.threads.iter().filter_map(|thread| thread.stopped_ns).max()
    }

    /// Removes the native frames that only carry managed frames.
    pub fn remove_carriers(&mut self) {
        for thread in &mut self.threads {
            thread.frames.retain(|frame| frame.kind != FrameKind::Interpreter);
        }
    }
}

/// One thread at that time.
#[derive(Debug)]
pub struct ThreadStack {
    /// The thread id.
    pub tid: i32,
    /// The name, state and kernel functions.
    pub seen: ThreadActivity,
    /// The system call that it sleeps in.
    pub call: Option<SleepingCall>,
    /// The name that the program has given it in its language's runtime.
    pub runtime_name: Option<String>,
    /// The lock of a language's runtime that it holds, such as the GIL.
    pub lock: Option<&'static str>,
    /// The method that it compiles.
    pub compiles: Option<String>,
    /// What it worked on just before its stop.
    pub work: Option<ThreadWork>,
    /// The kernel function that the thread waits in, if it did not stop.
    pub wait_channel: Option<String>,
    /// The functions, innermost first.
    pub frames: Vec<NamedFrame>,
    /// The reason why the stack ends there.
    pub end: Option<EndReason>,
    /// The reason why there is no stack.
    pub missed: Option<String>,
    /// The longest time that it was stopped.
    pub stopped_ns: Option<u64>,
}

/// Reads the stacks of every thread of a process, with their kernel functions if `kernel` is true.
///
/// # Errors
/// The kind of [`RecordError`] determines the exit code; the target is restored in any case.
pub fn stacks(pid: i32, kernel: bool) -> Result<ProcessStacks, RecordError> {
    check_proc()?;
    let facts = inject::preflight_to_capture(pid).map_err(refusal_error)?;
    let gone = |error| target_error(pid, error);
    let command_line = proc::command_line(pid).unwrap_or_default();
    let mappings = proc::mappings(pid).map_err(gone)?;
    let mut process = InspectedProcess::open(pid, &mappings)?;
    let mut contexts = Contexts::of_process(pid, &mappings, &process.modules.current());
    let tables = process.tables.as_tables();
    let snapshot = tables.snapshot().context("reading the unwind tables");
    let snapshot = snapshot.map_err(RecordError::Other)?;
    let view = StackView {
        pid,
        kernel,
        contexts: contexts.outside(),
        snapshot: &snapshot,
        unwinder: RemoteUnwinder::with_objects(),
        has_thread_names: !process.modules.current().with_thread_names().is_empty(),
        frames: ManagedReader::default(),
    };
    let captured = inject::capture(pid, facts.start_time, &mappings, view).map_err(inject_error)?;
    let Captures { threads: captures, withheld } = captured;
    if captures.iter().all(|capture| capture.outcome == Err(NotCaptured::Gone)) {
        return Err(inject_error(inject::InjectError::Gone));
    }
    // First of all, since the target may free code at any time.
    let words = captures.iter().map(|capture| capture.seen.managed.as_slice());
    let functions = ManagedNames::of(words, &process.modules.current(), pid);
    let stacks = captures.iter().filter_map(|capture| capture.seen.stack.as_ref());
    let javascript = JsView::of(stacks, &process.modules.current(), pid);
    let seen = captures.iter().map(|capture| &capture.seen);
    let names = thread_names(seen, &process.modules.current(), pid);
    let java = JavaView::of(&process.modules.current(), pid);
    process.follow();
    let names = StackNames { functions: &functions, threads: &names, java, javascript };
    let threads = process.threads(captures, names, &mut contexts).map_err(gone)?;
    Ok(ProcessStacks { pid, command_line, threads, withheld, notices: process.modules.notices })
}

/// Returns whether a thread sleeps where it was stopped.
fn has_stayed(pid: i32, tid: i32, stopped: &ThreadSnapshot) -> bool {
    for _ in 0..20 {
        match proc::task_activity(pid, tid) {
            Ok(TaskActivity::Syscall { sp, .. }) => return sp == stopped.registers.sp,
            // On its way back into the call.
            Ok(TaskActivity::Running) => std::thread::sleep(Duration::from_millis(1)),
            Ok(TaskActivity::Blocked { .. }) | Err(_) => return false,
        }
    }
    false
}

/// The names of what stacks contain.
struct StackNames<'n> {
    functions: &'n ManagedNames,
    threads: &'n HashMap<u32, String>,
    java: JavaView,
    javascript: JsView,
}

/// The parts of a process that its stacks need.
struct InspectedProcess {
    pid: i32,
    modules: Modules<'static>,
    tables: SharedMemory,
}

impl InspectedProcess {
    /// Opens its files and compiles their tables.
    fn open(pid: i32, mappings: &[Mapping]) -> Result<Self, RecordError> {
        let tables = SharedMemory::create(Use::Tables, layout::TABLES_LEN)
            .context("creating a segment for the unwind tables")
            .map_err(RecordError::Other)?;
        let writer = TableWriter::new(tables.words());
        // A recording's agent is treated like any other code.
        let mut modules = Modules::new(pid, Arc::default(), writer, 0..0);
        modules.refresh(mappings).map_err(|error| RecordError::Other(error.into()))?;
        Ok(Self { pid, modules, tables })
    }

    /// Reads new mappings. If the process has exited, the earlier mappings stay.
    fn follow(&mut self) {
        let mappings = proc::mappings(self.pid).unwrap_or_default();
        if !mappings.is_empty()
            && let Err(error) = self.modules.refresh(&mappings)
        {
            self.modules.notices.push(error.to_string());
        }
        self.modules.follow_all_code();
    }

    fn threads(
        &self,
        captures: Vec<Capture<SeenThread>>,
        StackNames { functions, threads: names, mut java, javascript }: StackNames<'_>,
        contexts: &mut Contexts,
    ) -> io::Result<Vec<ThreadStack>> {
        let addresses = self.modules.current();
        let mut unwinder = RemoteUnwinder::default();
        let mut unwound = Vec::new();
        for Capture { tid, seen, outcome } in captures {
            let inner_tid = seen.inner_tid;
            let stack = outcome.as_ref().ok().map(|stopped| {
                let of_stop = seen.stack;
                if let Some(stack) = of_stop.as_ref().filter(|it| it.end == EndReason::Root) {
                    return (stack.clone(), seen.managed);
                }
                // The code may have become known since.
                let mut stack = self.unwind(&mut unwinder, tid, stopped);
                if let Some(of_stop) = of_stop {
                    stack.frames = with_functions(&of_stop.frames, &stack.frames);
                }
                (stack, seen.managed)
            });
            let work = contexts.describe(seen.context);
            let lock = addresses.runtimes.first().filter(|_| seen.holds_lock);
            let lock = lock.and_then(|runtime| runtime.language.lock_name());
            let runtime_name = seen.inner_tid.and_then(|tid| names.get(&tid).cloned());
            let mut thread = ThreadStack {
                work,
                lock,
                runtime_name,
                ..self.thread(tid, seen.activity, &outcome)
            };
            let has_stayed = || outcome.is_ok_and(|it| has_stayed(self.pid, tid, &it));
            java.describe(inner_tid, has_stayed, &mut thread);
            unwound.push((thread, stack));
        }
        let words = unwound.iter().filter_map(|(_, stack)| stack.as_ref());
        java.read_code(words.map(|(stack, _)| &*stack.frames), &addresses, self.pid);
        name(unwound, functions, (&java, &javascript), &addresses)
    }

    fn unwind(
        &self,
        unwinder: &mut RemoteUnwinder,
        tid: i32,
        stopped: &ThreadSnapshot,
    ) -> RemoteStack {
        let tables = self.tables.as_tables();
        let Some(snapshot) = tables.snapshot() else {
            // Published when the modules were opened.
            return RemoteStack { frames: Vec::new(), end: EndReason::NoModule, late: None };
        };
        let copy = StackCopy { avma: stopped.stack_avma, bytes: &stopped.stack };
        let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
        unwinder.unwind(&snapshot, &stopped.registers, copy, &mut read)
    }

    /// Returns everything about a thread except its frames.
    fn thread(
        &self,
        tid: i32,
        seen: ThreadActivity,
        outcome: &Result<ThreadSnapshot, NotCaptured>,
    ) -> ThreadStack {
        let seen = match outcome {
            Ok(stopped) => seen.at_stop(stopped),
            Err(_) => seen,
        };
        let missed = outcome.as_ref().err();
        ThreadStack {
            tid,
            call: seen.call(self.pid, |avma| self.modules.current().lock_at(avma)),
            wait_channel: missed.and_then(|_| proc::wait_channel(self.pid, tid)),
            runtime_name: None,
            lock: None,
            compiles: None,
            work: None,
            frames: Vec::new(),
            end: None,
            missed: missed.map(|missed| why(missed, seen.state)),
            stopped_ns: outcome.as_ref().ok().map(|stopped| stopped.stopped_ns),
            seen,
        }
    }
}

/// A thread without its frames, and the words of its native and of its managed frames.
type UnwoundThread = (ThreadStack, Option<(RemoteStack, Vec<u64>)>);

fn name(
    unwound: Vec<UnwoundThread>,
    functions: &ManagedNames,
    generated: (&JavaView, &JsView),
    addresses: &Arc<AddressMap>,
) -> io::Result<Vec<ThreadStack>> {
    let frames = unwound.iter().filter_map(|(_, stack)| stack.as_ref());
    let words = frames.flat_map(|(stack, _)| pcs(&stack.frames)).map(|(_, pc)| pc);
    let names = frame_names::FrameNaming::of(words, addresses, generated)?;
    let named = unwound.into_iter().map(|(thread, stack)| match stack {
        Some((stack, managed)) => {
            let frames = names.stack(&stack, &managed, functions);
            let is_short = stack.end == EndReason::Root && is_cut(&managed);
            let end = if is_short { EndReason::Depth } else { stack.end };
            ThreadStack { frames, end: Some(end), ..thread }
        }
        None => thread,
    });
    Ok(named.collect())
}

/// Says why a thread has no stack.
fn why(missed: &NotCaptured, state: char) -> String {
    match missed {
        NotCaptured::Gone => "it has exited".to_owned(),
        NotCaptured::Late if state == 'R' => {
            "it did not stop: it waits for a processor; try again when it runs".to_owned()
        }
        NotCaptured::Late => {
            "it did not stop: it waits inside the kernel, where no stop reaches it".to_owned()
        }
        NotCaptured::Foreign => "it runs 32-bit code, which is not supported".to_owned(),
        NotCaptured::Failed(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
