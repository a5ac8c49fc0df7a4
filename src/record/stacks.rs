//! The stacks of all threads of a process at one time, without an agent.
//!
//! Every thread is stopped for as long as it takes to copy its registers and its stack
//! ([`inject::capture()`]). All else is done while the target runs: its modules are opened and their
//! tables compiled before the first stop, stacks are unwound and named after the last one.

mod asleep;
mod named;

use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use anyhow::Context;
use traceprof_abi::layout;
use traceprof_abi::unwind::EndReason;

use super::contexts::{Contexts, ThreadContext, Work};
use super::modules::{AddressMap, Modules};
use super::report::refusal_error;
use super::shm::Shared;
use super::{RecordError, check_proc, inject_error, target_error};
use crate::inject::{self, Capture, Captures, Missed, Portrait};
use crate::proc::{self, Mapping};
use crate::unwind::{OutsideStack, OutsideUnwinder, StackCopy, TableWriter};

pub use super::contexts::Work as ThreadWork;
pub use asleep::{Call, Seen};
pub use named::NamedFrame;

/// All threads of a process at one time.
#[derive(Debug)]
pub struct ProcessStacks {
    /// Its id.
    pub pid: i32,
    /// Its arguments.
    pub command_line: Vec<OsString>,
    /// Its threads, by their ids.
    pub threads: Vec<ThreadStack>,
    /// Samples that a recording of the process has lost to this look.
    pub withheld: u64,
    /// What could not be opened or read, for the user.
    pub notices: Vec<String>,
}

impl ProcessStacks {
    /// The longest time that a thread was stopped, in nanoseconds.
    pub fn longest_stop_ns(&self) -> Option<u64> {
        self.threads.iter().filter_map(|thread| thread.stopped_ns).max()
    }
}

/// A thread at that time.
#[derive(Debug)]
pub struct ThreadStack {
    /// Its id.
    pub tid: i32,
    /// Its name, state and kernel functions.
    pub seen: Seen,
    /// The system call that it sleeps in.
    pub call: Option<Call>,
    /// What it worked on just before it was stopped.
    pub work: Option<Work>,
    /// The kernel function that a thread waits in which would not stop.
    pub wait_channel: Option<String>,
    /// Its functions, innermost first.
    pub frames: Vec<NamedFrame>,
    /// Why there are no more of them.
    pub end: Option<EndReason>,
    /// Why there are none at all.
    pub missed: Option<String>,
    /// How long it was stopped at most.
    pub stopped_ns: Option<u64>,
}

/// Looks at every thread of a process. `kernel` asks for their kernel functions as well.
///
/// # Errors
/// [`RecordError`] tells by its kind which exit code fits; the target is as it was before.
pub fn stacks(pid: i32, kernel: bool) -> Result<ProcessStacks, RecordError> {
    check_proc()?;
    let facts = inject::preflight_to_look(pid).map_err(refusal_error)?;
    let gone = |error| target_error(pid, error);
    let command_line = proc::command_line(pid).unwrap_or_default();
    let mappings = proc::mappings(pid).map_err(gone)?;
    let mut process = Process::open(pid, &mappings)?;
    let mut contexts = Contexts::of_process(pid, &mappings, &process.modules.current());
    let outside = contexts.outside();
    let see = |tid| (Seen::look(pid, tid, kernel), outside.read(tid));
    let captured = inject::capture(pid, facts.start_time, &mappings, see).map_err(inject_error)?;
    let Captures { threads: captures, withheld } = captured;
    if captures.iter().all(|capture| capture.outcome == Err(Missed::Gone)) {
        return Err(inject_error(inject::InjectError::Gone));
    }
    process.follow();
    let threads = process.threads(captures, &mut contexts).map_err(gone)?;
    Ok(ProcessStacks { pid, command_line, threads, withheld, notices: process.modules.notices })
}

/// The process as far as its stacks need it.
struct Process {
    pid: i32,
    modules: Modules<'static>,
    tables: Shared,
}

impl Process {
    /// Opens its files and compiles their tables.
    fn open(pid: i32, mappings: &[Mapping]) -> Result<Self, RecordError> {
        let tables = Shared::create(layout::TABLES_LEN)
            .context("creating a segment for the unwind tables")
            .map_err(RecordError::Other)?;
        let writer = TableWriter::new(tables.words());
        // The agent of a recording is looked at as any other code.
        let mut modules = Modules::new(pid, writer, 0..0);
        modules.refresh(mappings).map_err(|error| RecordError::Other(error.into()))?;
        Ok(Self { pid, modules, tables })
    }

    /// What was mapped meanwhile. If the process has ended, what is known of it has to do.
    fn follow(&mut self) {
        let mappings = proc::mappings(self.pid).unwrap_or_default();
        if !mappings.is_empty()
            && let Err(error) = self.modules.refresh(&mappings)
        {
            self.modules.notices.push(error.to_string());
        }
    }

    fn threads(
        &self,
        captures: Vec<Capture<(Seen, ThreadContext)>>,
        contexts: &mut Contexts,
    ) -> io::Result<Vec<ThreadStack>> {
        let addresses = self.modules.current();
        let mut unwinder = OutsideUnwinder::default();
        let mut unwound = Vec::new();
        for Capture { tid, seen: (seen, context), outcome } in captures {
            let stack = match &outcome {
                Ok(portrait) => Some(self.unwind(&mut unwinder, tid, portrait)),
                Err(_) => None,
            };
            let work = contexts.in_words(context);
            let thread = ThreadStack { work, ..self.thread(tid, seen, &outcome) };
            unwound.push((thread, stack));
        }
        name(unwound, &addresses)
    }

    fn unwind(
        &self,
        unwinder: &mut OutsideUnwinder,
        tid: i32,
        portrait: &Portrait,
    ) -> OutsideStack {
        let tables = self.tables.as_tables();
        let Some(snapshot) = tables.snapshot() else {
            // Published when the modules were opened.
            return OutsideStack { frames: Vec::new(), end: EndReason::NoModule, late: None };
        };
        let copy = StackCopy { avma: portrait.stack_avma, bytes: &portrait.stack };
        let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
        unwinder.unwind(&snapshot, &portrait.registers, copy, &mut read)
    }

    /// All of a thread but its frames.
    fn thread(&self, tid: i32, seen: Seen, outcome: &Result<Portrait, Missed>) -> ThreadStack {
        let seen = match outcome {
            Ok(portrait) => seen.at_stop(portrait),
            Err(_) => seen,
        };
        let missed = outcome.as_ref().err();
        ThreadStack {
            tid,
            call: seen.call(self.pid),
            wait_channel: missed.and_then(|_| proc::wait_channel(self.pid, tid)),
            work: None,
            frames: Vec::new(),
            end: None,
            missed: missed.map(|missed| why(missed, seen.state)),
            stopped_ns: outcome.as_ref().ok().map(|portrait| portrait.stopped_ns),
            seen,
        }
    }
}

fn name(
    unwound: Vec<(ThreadStack, Option<OutsideStack>)>,
    addresses: &Arc<AddressMap>,
) -> io::Result<Vec<ThreadStack>> {
    let frames = unwound.iter().filter_map(|(_, stack)| stack.as_ref());
    let names = named::Naming::of(frames.flat_map(|stack| &stack.frames), addresses)?;
    let named = unwound.into_iter().map(|(thread, stack)| match stack {
        Some(stack) => ThreadStack { frames: names.stack(&stack), end: Some(stack.end), ..thread },
        None => thread,
    });
    Ok(named.collect())
}

/// Why a thread has no stack.
fn why(missed: &Missed, state: char) -> String {
    match missed {
        Missed::Gone => "it has ended".to_owned(),
        Missed::Late if state == 'R' => {
            "it did not stop: it waits for a processor; try again when it runs".to_owned()
        }
        Missed::Late => {
            "it did not stop: it waits inside the kernel, where no stop reaches it".to_owned()
        }
        Missed::Foreign => "it runs 32-bit code, which is not supported".to_owned(),
        Missed::Failed(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
