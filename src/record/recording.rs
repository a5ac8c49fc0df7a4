//! The recording of a process: what lasts while it executes one program after the other.
//!
//! Each program is attached to and sampled by itself; the guardian, the trace and the thread that
//! writes it are those of all.
//!
//! # Invariants
//! - Once there are files, what was sampled is told of, whatever becomes of the next program.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::aftermath::Footprint;
use super::attach::{Attached, Before};
use super::clock::{Clock, monotonic_now_ns};
use super::collect::Collector;
use super::common::Common;
use super::contexts::Contexts;
use super::ended::Ended;
use super::engine::Engine;
use super::executions::{Executions, Fate};
use super::ground::Ground;
use super::heaviest::Heaviest;
use super::jvm::JvmNames;
use super::liveness::LastOfThreads;
use super::overhead::Overhead;
use super::priority::Raised;
use super::scribe::{Answers, Number, Scribe};
use super::session::{End, Parts, Saving, Session};
use super::stint::Stint;
use super::{Event, Observer, Opened, RecordError, prospect, roll};
use crate::fault::{self, Point};
use crate::inject::Guardian;
use crate::symbol::DEBUGINFOD_SERVERS;
use crate::trace::Value;

mod follow;

use self::follow::Next;
pub(super) use self::follow::is_settled;

/// Why an option does nothing.
const NO_KERNEL: &str =
    "--no-kernel has no effect with timers, which count all of a thread's CPU time";

const NO_SERVERS: &str = "--debuginfod has no effect: DEBUGINFOD_URLS names no servers";

/// A process that is recorded.
pub(super) struct Recording<'a> {
    common: &'a Common<'a>,
    number: Number,
    observer: &'a mut dyn Observer,
    /// Readable when the target is gone.
    exit: OwnedFd,
    ground: Ground,
    // Before what was opened: what it holds there of a program could not be waited for.
    guardian: Guardian,
    opened: Opened,
    raised: Raised,
    /// Since it was attached to first.
    scribe: Option<Scribe>,
    /// Asks for names while this lasts.
    jvm: JvmNames,
    contexts: Contexts,
    saving: Saving,
    /// What was done up to now.
    done: Option<Stint>,
    executions: Executions,
    /// What the program was like before the last attach, if that is to be compared.
    footprint: Option<Footprint>,
}

/// What the recording of a process is made of.
pub(super) struct Begun {
    /// Its number.
    pub(super) number: Number,
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
        common: &'a Common<'a>,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, RecordError> {
        let pid = begun.opened.pid;
        Ok(Self {
            common,
            number: begun.number,
            observer,
            exit: super::exit_descriptor(pid)?,
            ground: Ground::new(pid)?,
            guardian: begun.guardian,
            opened: begun.opened,
            raised: begun.raised,
            scribe: None,
            jvm: JvmNames::new(pid, common.options.jvm_names),
            contexts: Contexts::named(Arc::clone(&common.tags)),
            saving: Saving::new(common.options, Arc::clone(&common.triggers)),
            done: None,
            executions: Executions::default(),
            footprint: None,
        })
    }

    /// Samples the program that there is, and with `--follow-exec` those that it executes.
    pub(super) fn run(mut self) -> Result<Ended, RecordError> {
        let options = self.common.options;
        let before = prospect::before(self.opened.sampled(), options)?;
        self.footprint = self.opened.footprint(options)?;
        if options.debuginfod {
            self.ground.modules.fetch_debug_files();
            if std::env::var_os(DEBUGINFOD_SERVERS).is_none_or(|servers| servers.is_empty()) {
                self.observer.event(Event::Notice(NO_SERVERS.to_owned()));
            }
        }
        if !options.kernel && before.choice.engine == Engine::Timer {
            self.observer.event(Event::Notice(NO_KERNEL.to_owned()));
        }
        let Self { jvm, common, .. } = &mut self;
        if let Some(text) = jvm.ask_first(|| common.stop.is_requested()) {
            self.observer.event(Event::Notice(text));
        }
        let is_followed = self.opened.is_followed;
        let mut end = match self.sample(before, None) {
            // Attached to in the very moment.
            Err(error) if is_followed && error.is_executed() => End::Executed,
            outcome => outcome?,
        };
        if is_followed && end == End::Executed {
            end = self.follow()?;
        }
        self.conclude(end)
    }

    /// Samples one program until its end, or that of the recording: the first one, or this.
    fn sample(&mut self, before: Before, next: Option<&Next>) -> Result<End, RecordError> {
        let common = self.common;
        let options = common.options;
        if common.instances.is_ending() {
            return Ok(End::OutOfIds);
        }
        let clock = Clock::start(before.clock_mode);
        let budget = options.max_overhead_percent;
        let (setup, engine) = (before.setup, before.choice.engine);
        let (number, guardian) = (self.number, self.guardian.pid());
        let charge = common.ledger.account(number, guardian);
        let overhead = Overhead::new(budget, setup, engine, charge);
        let attached = Attached::attach(&mut self.guardian, &mut self.ground, before)?;
        fault::at(Point::RecordAttached);
        if next.is_some() {
            // What it was when it began is nothing that anybody knows it by.
            self.opened.name_again();
        }
        if self.scribe.is_none() {
            let process = (self.number, &self.opened, &attached);
            self.scribe = Some(join(self.common, process, (&self.raised, &self.jvm))?);
        }
        let Some(scribe) = &self.scribe else { return Ok(End::Output) };
        let collector = Collector::start(attached.data(), Arc::clone(&common.instances));
        let Some(mut collector) = collector else { return Ok(End::OutOfIds) };
        collector.register(Box::new(LastOfThreads::new(attached.data())));
        if options.preserve > 0 {
            collector.register(Box::new(Heaviest::new(options.preserve)));
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
            before: self.done.as_ref(),
            jvm: &mut self.jvm,
            contexts: &mut self.contexts,
            overhead,
            saving: &mut self.saving,
            wall_interval: options.measure.wall_interval(),
        };
        let mut session = Session::start(parts, options.duration, &mut *self.observer)?;
        fault::at(Point::RecordSampling);
        self.opened.go_on();
        fault::at(Point::RecordReleased);
        session.note_release();
        common.stop.start(options.duration);
        let told = Told::new(scribe, common, self.number);
        if let Some(next) = next.filter(|next| next.is_gone()) {
            // It was gone before it was attached to, and another one had taken its place.
            told.note(self.executions.settle(Fate::Missed));
            self.executions.begin(next.name(), session.started_ns());
        }
        let started = self.opened.command_pid().filter(|_| self.done.is_none());
        session.announce(started, self.executions.last().map(str::to_owned));
        told.note(self.executions.settle(Fate::Sampled(session.started_ns())));
        let end = session.run(&common.stop);
        let stint = session.finish(end, options.preserve);
        match &mut self.done {
            Some(done) => done.add(stint),
            none => *none = Some(stint),
        }
        Ok(end)
    }

    /// What came of it. The way into the trace is closed, and the guardian has ended.
    fn conclude(self, end: End) -> Result<Ended, RecordError> {
        let (Some(scribe), Some(stint)) = (self.scribe, self.done) else {
            // Only after a stint there is an end.
            return Err(RecordError::TargetGone(anyhow::anyhow!(super::NEVER_SAMPLED)));
        };
        self.jvm.hurry();
        let tally = scribe.tally();
        drop(scribe);
        // Nothing is left for it to do, and the program may go on for long.
        drop((self.guardian, self.ground));
        Ok(Ended {
            number: self.number,
            opened: self.opened,
            end,
            stint,
            executions: self.executions,
            footprint: self.footprint,
            jvm: self.jvm,
            tally,
        })
    }
}

/// Tells the trace what became of a program.
struct Told<'a> {
    scribe: &'a Scribe,
    /// Of which process, if there are several.
    number: Option<Number>,
}

impl<'a> Told<'a> {
    fn new(scribe: &'a Scribe, common: &Common<'_>, number: Number) -> Self {
        Self { scribe, number: common.is_several.then_some(number) }
    }

    fn note(&self, entry: Option<(String, Value)>) {
        let Some((key, value)) = entry else { return };
        let key = match self.number {
            Some(number) if !roll::is_listed(number) => return,
            Some(number) => format!("process.{number}.{key}"),
            None => key,
        };
        self.scribe.note(key, value);
    }
}

/// The way into the trace of a process that has just been attached to.
fn join(
    common: &Common<'_>,
    (number, opened, attached): (Number, &Opened, &Attached<'_>),
    (raised, jvm): (&Raised, &JvmNames),
) -> Result<Scribe, RecordError> {
    // Reading symbols is long work, which the target's goes before. The scribe has little to
    // do, and without its turns the tables are not emptied either.
    let (pid, writings) = (opened.pid, jvm.writings());
    let names = |answers: Answers| raised.as_before(|| answers.names(pid, writings));
    let scribe = common.join(number, (opened, attached), names)?;
    if common.is_several && roll::is_listed(number) {
        let Opened { pid, start_time, command_line, .. } = opened;
        let begun = roll::begun(*pid, *start_time, command_line, monotonic_now_ns());
        scribe.note(format!("process.{number}"), begun);
    }
    Ok(scribe)
}
