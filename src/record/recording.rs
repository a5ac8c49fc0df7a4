//! A recording as a whole: what lasts while the target executes one program after the other.
//!
//! Each program is attached to and sampled by itself; the guardian, the trace and the thread that
//! writes it are those of all.
//!
//! # Invariants
//! - The files are created after the first attach, so that a refused one leaves nothing behind.
//! - Once they are there, what was sampled is told of, whatever becomes of the next program.

use std::os::fd::OwnedFd;

use super::aftermath::Footprint;
use super::attach::{Attached, Before};
use super::clock::Clock;
use super::collect::Collector;
use super::contexts::Contexts;
use super::ended::Ended;
use super::engine::Engine;
use super::executions::{Executions, Fate};
use super::ground::Ground;
use super::heaviest::Heaviest;
use super::jvm::JvmNames;
use super::liveness::LastOfThreads;
use super::names::Names;
use super::priority::Raised;
use super::scribe::{Answers, Scribe};
use super::session::{End, Parts, Session};
use super::stint::Stint;
use super::stop::Stop;
use super::{Event, Observer, Opened, Options, RecordError, Summary, prospect, report};
use crate::fault::{self, Point};
use crate::inject::Guardian;
use crate::symbol::DEBUGINFOD_SERVERS;
use crate::trace::Value;

mod follow;

use self::follow::Next;

/// The upper half of the ids of a recording's first traces: 0 is no table's.
const FIRST_INSTANCE: u32 = 1;
/// Why an option does nothing.
const NO_KERNEL: &str =
    "--no-kernel has no effect with timers, which count all of a thread's CPU time";

const NO_SERVERS: &str = "--debuginfod has no effect: DEBUGINFOD_URLS names no servers";

/// A recording that goes on.
pub(super) struct Recording<'a> {
    options: &'a Options,
    observer: &'a mut dyn Observer,
    stop: Stop,
    /// Readable when the target is gone.
    exit: OwnedFd,
    ground: Ground,
    // Before what was opened: what it holds there of a program could not be waited for.
    guardian: Guardian,
    opened: Opened,
    raised: Raised,
    /// Since there is a trace.
    scribe: Option<Scribe>,
    /// Asks for names while this lasts.
    jvm: JvmNames,
    contexts: Contexts,
    /// What was done up to now.
    done: Option<Stint>,
    executions: Executions,
    /// What the program was like before the last attach, if that is to be compared.
    footprint: Option<Footprint>,
}

/// What a recording is made of.
pub(super) struct Begun {
    /// Asks for the end.
    pub(super) stop: Stop,
    /// Does the tracing.
    pub(super) guardian: Guardian,
    /// The process.
    pub(super) opened: Opened,
    /// The calling thread's priority.
    pub(super) raised: Raised,
}

impl<'a> Recording<'a> {
    /// Of an opened process, in which nothing has been changed yet.
    pub(super) fn new(
        begun: Begun,
        options: &'a Options,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, RecordError> {
        let pid = begun.opened.pid;
        Ok(Self {
            options,
            observer,
            exit: super::exit_descriptor(pid)?,
            ground: Ground::new(pid)?,
            stop: begun.stop,
            guardian: begun.guardian,
            opened: begun.opened,
            raised: begun.raised,
            scribe: None,
            jvm: JvmNames::new(pid, options.jvm_names),
            contexts: Contexts::default(),
            done: None,
            executions: Executions::default(),
            footprint: None,
        })
    }

    /// Samples the program that there is, and with `--follow-exec` those that it executes.
    pub(super) fn run(mut self) -> Result<Summary, RecordError> {
        let before = prospect::before(self.opened.sampled(), self.options)?;
        self.footprint = self.opened.footprint(self.options)?;
        if self.options.debuginfod {
            self.ground.modules.fetch_debug_files();
            if std::env::var_os(DEBUGINFOD_SERVERS).is_none_or(|servers| servers.is_empty()) {
                self.observer.event(Event::Notice(NO_SERVERS.to_owned()));
            }
        }
        if !self.options.kernel && before.choice.engine == Engine::Timer {
            self.observer.event(Event::Notice(NO_KERNEL.to_owned()));
        }
        let Self { jvm, stop, .. } = &mut self;
        if let Some(text) = jvm.ask_first(|| stop.is_requested()) {
            self.observer.event(Event::Notice(text));
        }
        let mut end = match self.sample(before, None) {
            // Attached to in the very moment.
            Err(error) if self.options.follow_exec && error.is_executed() => End::Executed,
            outcome => outcome?,
        };
        if self.options.follow_exec && end == End::Executed {
            end = self.follow()?;
        }
        self.conclude(end)
    }

    /// Samples one program until its end, or that of the recording: the first one, or this.
    fn sample(&mut self, before: Before, next: Option<&Next>) -> Result<End, RecordError> {
        let done = self.done.as_ref();
        let first = done.map_or(Some(FIRST_INSTANCE), |done| done.next_instance);
        let Some(instance) = first else { return Ok(End::OutOfIds) };
        let clock = Clock::start(before.clock_mode);
        let attached = Attached::attach(&mut self.guardian, &mut self.ground, before)?;
        fault::at(Point::RecordAttached);
        if self.scribe.is_none() {
            let pid = self.opened.pid;
            // Reading symbols is long work, which the target's goes before. The scribe has little to
            // do, and without its turns the tables are not emptied either.
            let (raised, writings) = (&self.raised, self.jvm.writings());
            let names = |answers: Answers| raised.as_before(|| answers.names(pid, writings));
            self.scribe = Some(begin_trace(self.options, &self.opened, names, &attached)?);
        }
        let Some(scribe) = &self.scribe else { return Ok(End::Output) };
        let mut collector = Collector::start(attached.data(), instance);
        collector.register(Box::new(LastOfThreads::new(attached.data())));
        if self.options.preserve > 0 {
            collector.register(Box::new(Heaviest::new(self.options.preserve)));
        }
        collector.register(Box::new(scribe.open_samples()));
        let (pid, exit) = (self.opened.pid, &self.exit);
        self.contexts.begin(pid, attached.data());
        let parts = Parts {
            pid,
            attached,
            clock,
            collector,
            scribe,
            exit,
            before: done,
            jvm: &mut self.jvm,
            contexts: &mut self.contexts,
            wall_interval: self.options.measure.wall_interval(),
        };
        let mut session = Session::start(parts, self.options.duration, &mut *self.observer)?;
        fault::at(Point::RecordSampling);
        self.opened.go_on();
        fault::at(Point::RecordReleased);
        session.note_release();
        self.stop.start(self.options.duration);
        if let Some(next) = next.filter(|next| next.is_gone()) {
            // It was gone before it was attached to, and another one had taken its place.
            note(scribe, self.executions.settle(Fate::Missed));
            self.executions.begin(next.name(), session.started_ns());
        }
        let started = self.opened.command_pid().filter(|_| done.is_none());
        session.announce(started, self.executions.last().map(str::to_owned));
        note(scribe, self.executions.settle(Fate::Sampled(session.started_ns())));
        let end = session.run(&self.stop);
        let stint = session.finish(end, self.options.preserve);
        match &mut self.done {
            Some(done) => done.add(stint),
            none => *none = Some(stint),
        }
        Ok(end)
    }

    /// Writes the end, waits for a started program, and sums up.
    fn conclude(mut self, end: End) -> Result<Summary, RecordError> {
        let (Some(scribe), Some(stint)) = (self.scribe, self.done) else {
            // Only after a stint there is an end.
            return Err(RecordError::TargetGone(anyhow::anyhow!("the target was never sampled")));
        };
        self.jvm.hurry();
        let finished = scribe.finish();
        if let Some(text) = self.jvm.end() {
            self.observer.event(Event::Notice(text));
        }
        // Nothing is left for it to do, and the program may go on for long.
        drop((self.guardian, self.ground));
        let pid = self.opened.pid;
        let ended = Ended { pid, end, finished, stint, executions: self.executions };
        fault::at(Point::RecordWritten);
        let footprint = self.footprint;
        let aftermath = footprint.and_then(|before| ended.aftermath(&before));
        report::conclude(ended, aftermath, self.options, self.opened.command)
    }
}

/// Tells the trace what became of a program.
fn note(scribe: &Scribe, entry: Option<(String, Value)>) {
    if let Some((key, value)) = entry {
        scribe.note(key, value);
    }
}

fn other(error: std::io::Error) -> RecordError {
    RecordError::Other(error.into())
}

/// Creates the files and starts the thread that writes them.
fn begin_trace(
    options: &Options,
    opened: &Opened,
    names: impl FnOnce(Answers) -> std::io::Result<Names>,
    attached: &Attached<'_>,
) -> Result<Scribe, RecordError> {
    let writer = super::create(options, opened, attached)?;
    fault::at(Point::RecordWriting);
    Scribe::start(writer, opened.pid, names).map_err(other)
}
