//! The recording of a process across all the programs that it executes.
//!
//! The recorder attaches to each program and samples it separately. The guardian, the trace and the
//! writer thread stay the same.
//!
//! # Invariants
//! - Once the files exist, all samples are reported, whatever happens to the next program.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::fault::{self, FaultPoint};
use crate::inject::Guardian;
use crate::proc;
use crate::record::batch::process::ProcessNumber;
use crate::record::contract::clock::{Clock, monotonic_now_ns};
use crate::record::contract::error::RecordError;
use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::name::contexts::Contexts;
use crate::record::run::common_state::CommonState;
use crate::record::run::ended_process::{EndedProcess, is_listed, suspect};
use crate::record::run::executions::{Executions, Fate};
use crate::record::run::opened::{NEVER_SAMPLED, OpenedProcess, exit_descriptor};
use crate::record::run::plan::Plan;
use crate::record::run::priority::Raised;
use crate::record::run::process_list;
use crate::record::session::program_run::ProgramRun;
use crate::record::session::{Session, SessionEnd, SessionParts};
use crate::record::store::collector::Collector;
use crate::record::store::heaviest::Heaviest;
use crate::record::store::liveness::LastOfThreads;
use crate::record::target::attach::Attached;
use crate::record::target::residue::Footprint;
use crate::record::target::segments::Segments;
use crate::record::target::stop_turns::Preparation;
use crate::record::weigh::overhead::Overhead;
use crate::record::write::saving::Saving;
use crate::record::write::writer::{AnswerSender, Writer};
use crate::trace::Value;

mod follow;

use self::follow::NextProgram;

/// A process that is recorded.
pub(crate) struct Recording<'a> {
    common: &'a CommonState<'a>,
    number: ProcessNumber,
    observer: &'a mut dyn Observer,
    /// Readable once the target has exited.
    exit: OwnedFd,
    /// The signal that ended the target while it was sampled, if one did.
    ended_by: Option<i32>,
    segments: Segments,
    // Dropped before `opened`: a program that the guardian still holds could not be waited for.
    guardian: Guardian,
    opened: OpenedProcess,
    raised: Raised,
    preparation: Option<Preparation>,
    /// The writer, from the first attach on.
    writer: Option<Writer>,
    contexts: Contexts,
    saving: Saving,
    /// The sum of the program runs so far.
    done: Option<ProgramRun>,
    executions: Executions,
    /// The state of the program before the last attach, for `--verify-detach`.
    footprint: Option<Footprint>,
}

/// The parts that a recording of a process starts with.
pub(crate) struct RecordingParts {
    /// The number of the process within the recording.
    pub(crate) number: ProcessNumber,
    /// The guardian, which does the tracing.
    pub(crate) guardian: Guardian,
    /// The process.
    pub(crate) opened: OpenedProcess,
    /// The raised priority of the calling thread.
    pub(crate) raised: Raised,
    /// The work before the first stop, for which other processes wait.
    pub(crate) preparation: Option<Preparation>,
}

impl<'a> Recording<'a> {
    /// Creates the recording of an opened process, in which nothing has been changed yet.
    pub(crate) fn new(
        begun: RecordingParts,
        common: &'a CommonState<'a>,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, RecordError> {
        let pid = begun.opened.pid;
        Ok(Self {
            common,
            number: begun.number,
            observer,
            exit: exit_descriptor(pid)?,
            segments: Segments::new(pid, Arc::clone(&common.files))?,
            guardian: begun.guardian,
            opened: begun.opened,
            raised: begun.raised,
            preparation: begun.preparation,
            writer: None,
            contexts: Contexts::named(Arc::clone(&common.tags)),
            saving: Saving::new(common.options, Arc::clone(&common.triggers)),
            done: None,
            executions: Executions::default(),
            footprint: None,
            ended_by: None,
        })
    }

    /// Samples the current program, and with `--follow-exec` the programs that it executes.
    pub(crate) fn run(mut self) -> Result<EndedProcess, RecordError> {
        let options = self.common.options;
        let plan = Plan::new(&self.opened.candidate, options)?;
        self.footprint = self.opened.footprint(options)?;
        if plan.fetches_debug_files {
            self.segments.modules.fetch_debug_files();
        }
        for text in &plan.notices {
            self.observer.event(Event::Notice((*text).to_owned()));
        }
        let is_followed = self.opened.is_followed;
        let mut end = match self.sample(plan, None) {
            // The exec happened during the attach.
            Err(error) if is_followed && error.is_executed() => SessionEnd::Executed,
            outcome => outcome?,
        };
        if is_followed && end == SessionEnd::Executed {
            end = self.follow()?;
        }
        self.conclude(end)
    }

    /// Samples one program until it or the recording ends. `next` is `None` for the first program.
    fn sample(
        &mut self,
        plan: Plan,
        next: Option<&NextProgram>,
    ) -> Result<SessionEnd, RecordError> {
        let common = self.common;
        let Plan { attach, max_overhead_percent, wall_interval, duration, preserve, .. } = plan;
        if common.instances.is_ending() {
            return Ok(SessionEnd::OutOfIds);
        }
        let clock = Clock::start(attach.clock_mode);
        let charge = common.ledger.account(self.number, self.guardian.pid());
        let (setup, engine) = (attach.setup, attach.choice.engine);
        let overhead = Overhead::new(max_overhead_percent, setup, engine, charge);
        let signals = attach.signals;
        let turn = (&common.turns, self.preparation.take());
        let attached = Attached::attach(&mut self.guardian, &mut self.segments, attach, turn);
        let attached = attached
            .map_err(|error| explain_exit(error, (self.exit.as_fd(), self.opened.pid), &signals))?;
        fault::at(FaultPoint::RecordAttached);
        if next.is_some() {
            // The name from before the exec is no longer current.
            self.opened.name_again();
        }
        if self.writer.is_none() {
            let process = (self.number, &self.opened, &attached);
            self.writer = Some(join(self.common, process, &self.raised)?);
        }
        let Some(writer) = &self.writer else { return Ok(SessionEnd::Output) };
        let Some(collector) = collector(common, &attached, preserve) else {
            return Ok(SessionEnd::OutOfIds);
        };
        let (pid, exit) = (self.opened.pid, &self.exit);
        self.contexts.begin(pid, attached.data());
        let parts = SessionParts {
            attached,
            clock,
            collector,
            tasks: &common.tasks,
            writer,
            exit,
            before: self.done.as_ref(),
            is_followed: self.opened.is_followed,
            contexts: &mut self.contexts,
            overhead,
            saving: &mut self.saving,
            wall_interval,
        };
        common.unattached.attaching(pid);
        let mut session = Session::start(parts, duration, &mut *self.observer)?;
        fault::at(FaultPoint::RecordSampling);
        self.opened.go_on();
        fault::at(FaultPoint::RecordReleased);
        session.note_release();
        common.stop.start(duration);
        let notes = ExecutionNotes::new(writer, common, self.number);
        if let Some(next) = next.filter(|next| next.is_gone()) {
            // The program had executed another one before the attach.
            notes.note(self.executions.settle(Fate::Missed));
            self.executions.begin(next.name(), session.started_ns());
        }
        let started = self.opened.command_pid().filter(|_| self.done.is_none());
        common.unattached.attached(pid, session.started_ns());
        session.announce(started, self.executions.last().map(str::to_owned));
        notes.note(self.executions.settle(Fate::Sampled(session.started_ns())));
        let end = session.run(&common.stop);
        self.ended_by = ended_by(end, self.exit.as_fd(), &mut self.opened);
        let program_run = session.finish(end, preserve);
        if self.ended_by.is_none() {
            // The last signals arrive during the detach.
            self.ended_by = proc::exit_signal(self.exit.as_fd(), pid);
        }
        match &mut self.done {
            Some(done) => done.add(program_run),
            none => *none = Some(program_run),
        }
        Ok(end)
    }

    /// Returns the result. The writer is closed, and the guardian has exited.
    fn conclude(self, end: SessionEnd) -> Result<EndedProcess, RecordError> {
        let (Some(writer), Some(program_run)) = (self.writer, self.done) else {
            // Without a program run nothing was sampled.
            return Err(RecordError::TargetGone(anyhow::anyhow!(NEVER_SAMPLED)));
        };
        let tally = writer.tally();
        drop(writer);
        // The guardian has nothing left to do, and the program may run on for long.
        drop((self.guardian, self.segments));
        Ok(EndedProcess {
            number: self.number,
            before: None,
            opened: self.opened,
            end,
            ended_by: self.ended_by,
            program_run,
            executions: self.executions,
            footprint: self.footprint,
            tally,
        })
    }
}

/// Returns the signal that ended the process, if it has exited by one. Names a process that lives
/// on again: a server writes its title into its command line after it has started.
fn ended_by(end: SessionEnd, exit: BorrowedFd<'_>, opened: &mut OpenedProcess) -> Option<i32> {
    match end {
        // At once: on an older kernel it is known only until the parent has waited.
        SessionEnd::Exited => proc::exit_signal(exit, opened.pid),
        SessionEnd::Executed => None,
        _ => {
            opened.name_again();
            None
        }
    }
}

/// Returns the collector of an agent's storage, which keeps this number of the heaviest traces;
/// `None` if no ids are left for traces.
fn collector(
    common: &CommonState<'_>,
    attached: &Attached<'_>,
    preserve: usize,
) -> Option<Collector> {
    let mut collector = Collector::start(attached.data(), Arc::clone(&common.instances))?;
    collector.register(Box::new(LastOfThreads::new(attached.data())));
    if preserve > 0 {
        collector.register(Box::new(Heaviest::new(preserve)));
    }
    Some(collector)
}

/// Returns the error of an attach to a process. Timers run from the agent's first call on, so the
/// first signal can end the target before the attach does.
fn explain_exit(
    error: RecordError,
    (exit, pid): (BorrowedFd<'_>, i32),
    signals: &[i32],
) -> RecordError {
    let RecordError::TargetGone(_) = &error else { return error };
    let signal = proc::exit_signal(exit, pid);
    let Some(name) = signal.and_then(|signal| suspect(signal, signals)) else { return error };
    RecordError::TargetDied(anyhow::anyhow!(
        "{name} ended process {pid} during the attach, and nothing was recorded"
    ))
}

/// Writes the outcomes of executed programs to the trace.
struct ExecutionNotes<'a> {
    writer: &'a Writer,
    /// The number of the process, if the recording may have several.
    number: Option<ProcessNumber>,
}

impl<'a> ExecutionNotes<'a> {
    fn new(writer: &'a Writer, common: &CommonState<'_>, number: ProcessNumber) -> Self {
        Self { writer, number: common.is_several.then_some(number) }
    }

    fn note(&self, entry: Option<(String, Value)>) {
        let Some((key, value)) = entry else { return };
        let key = match self.number {
            Some(number) if !is_listed(number) => return,
            Some(number) => format!("process.{number}.{key}"),
            None => key,
        };
        self.writer.note(key, value);
    }
}

/// Returns the writer for a process that has just been attached to.
fn join(
    common: &CommonState<'_>,
    (number, opened, attached): (ProcessNumber, &OpenedProcess, &Attached<'_>),
    raised: &Raised,
) -> Result<Writer, RecordError> {
    // Reading symbols takes long, so these threads run at the earlier priority: the target's work
    // comes first. The writer thread keeps the raised priority. It has little to do, and the tables
    // fill up if it does not run.
    let names = |answers: AnswerSender| raised.as_before(|| answers.names(opened.pid));
    let writer = common.join(number, (opened, attached), names)?;
    if common.is_several && is_listed(number) {
        let OpenedProcess { pid, start_time, command_line, .. } = opened;
        let begun = process_list::begun(*pid, *start_time, command_line, monotonic_now_ns());
        writer.note(format!("process.{number}"), begun);
    }
    Ok(writer)
}
