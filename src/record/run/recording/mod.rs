//! The recording of a process: what lasts while it executes one program after the other.
//!
//! Each program is attached to and sampled by itself; the guardian, the trace and the thread that
//! writes it are those of all.
//!
//! # Invariants
//! - Once there are files, what was sampled is told of, whatever becomes of the next program.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::fault::{self, Point};
use crate::inject::Guardian;
use crate::record::batch::process::Number;
use crate::record::contract::clock::{Clock, monotonic_now_ns};
use crate::record::contract::error::RecordError;
use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::name::contexts::Contexts;
use crate::record::name::jvm::JvmNames;
use crate::record::run::common::Common;
use crate::record::run::ended::{Ended, is_listed};
use crate::record::run::executions::{Executions, Fate};
use crate::record::run::opened::{NEVER_SAMPLED, Opened, exit_descriptor};
use crate::record::run::plan::Plan;
use crate::record::run::priority::Raised;
use crate::record::run::process_list;
use crate::record::session::program_run::ProgramRun;
use crate::record::session::{End, Parts, Session};
use crate::record::store::collector::Collector;
use crate::record::store::heaviest::Heaviest;
use crate::record::store::liveness::LastOfThreads;
use crate::record::target::attach::Attached;
use crate::record::target::residue::Footprint;
use crate::record::target::segments::Segments;
use crate::record::weigh::overhead::Overhead;
use crate::record::write::saving::Saving;
use crate::record::write::writer::{Answers, Writer};
use crate::trace::Value;

mod follow;

use self::follow::Next;

/// A process that is recorded.
pub(crate) struct Recording<'a> {
    common: &'a Common<'a>,
    number: Number,
    observer: &'a mut dyn Observer,
    /// Readable when the target is gone.
    exit: OwnedFd,
    segments: Segments,
    // Before what was opened: what it holds there of a program could not be waited for.
    guardian: Guardian,
    opened: Opened,
    raised: Raised,
    /// Since it was attached to first.
    writer: Option<Writer>,
    /// Asks for names while this lasts.
    jvm: JvmNames,
    contexts: Contexts,
    saving: Saving,
    /// What was done up to now.
    done: Option<ProgramRun>,
    executions: Executions,
    /// What the program was like before the last attach, if that is to be compared.
    footprint: Option<Footprint>,
}

/// What the recording of a process is made of.
pub(crate) struct Begun {
    /// Its number.
    pub(crate) number: Number,
    /// Does the tracing.
    pub(crate) guardian: Guardian,
    /// The process.
    pub(crate) opened: Opened,
    /// The calling thread's priority.
    pub(crate) raised: Raised,
}

impl<'a> Recording<'a> {
    /// Of an opened process, in which nothing has been changed yet.
    pub(crate) fn new(
        begun: Begun,
        common: &'a Common<'a>,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, RecordError> {
        let pid = begun.opened.pid;
        Ok(Self {
            common,
            number: begun.number,
            observer,
            exit: exit_descriptor(pid)?,
            segments: Segments::new(pid)?,
            guardian: begun.guardian,
            opened: begun.opened,
            raised: begun.raised,
            writer: None,
            jvm: JvmNames::new(pid, common.options.jvm_names),
            contexts: Contexts::named(Arc::clone(&common.tags)),
            saving: Saving::new(common.options, Arc::clone(&common.triggers)),
            done: None,
            executions: Executions::default(),
            footprint: None,
        })
    }

    /// Samples the program that there is, and with `--follow-exec` those that it executes.
    pub(crate) fn run(mut self) -> Result<Ended, RecordError> {
        let options = self.common.options;
        let plan = Plan::new(&self.opened.candidate, options)?;
        self.footprint = self.opened.footprint(options)?;
        if plan.fetches_debug_files {
            self.segments.modules.fetch_debug_files();
        }
        for text in &plan.notices {
            self.observer.event(Event::Notice((*text).to_owned()));
        }
        let Self { jvm, common, .. } = &mut self;
        if let Some(text) = jvm.ask_first(|| common.stop.is_requested()) {
            self.observer.event(Event::Notice(text));
        }
        let is_followed = self.opened.is_followed;
        let mut end = match self.sample(plan, None) {
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
    fn sample(&mut self, plan: Plan, next: Option<&Next>) -> Result<End, RecordError> {
        let common = self.common;
        let Plan { attach, max_overhead_percent, wall_interval, duration, preserve, .. } = plan;
        if common.instances.is_ending() {
            return Ok(End::OutOfIds);
        }
        let clock = Clock::start(attach.clock_mode);
        let (setup, engine) = (attach.setup, attach.choice.engine);
        let (number, guardian) = (self.number, self.guardian.pid());
        let charge = common.ledger.account(number, guardian);
        let overhead = Overhead::new(max_overhead_percent, setup, engine, charge);
        let attached = Attached::attach(&mut self.guardian, &mut self.segments, attach)?;
        fault::at(Point::RecordAttached);
        if next.is_some() {
            // What it was when it began is nothing that anybody knows it by.
            self.opened.name_again();
        }
        if self.writer.is_none() {
            let process = (self.number, &self.opened, &attached);
            self.writer = Some(join(self.common, process, (&self.raised, &self.jvm))?);
        }
        let Some(writer) = &self.writer else { return Ok(End::Output) };
        let collector = Collector::start(attached.data(), Arc::clone(&common.instances));
        let Some(mut collector) = collector else { return Ok(End::OutOfIds) };
        collector.register(Box::new(LastOfThreads::new(attached.data())));
        if preserve > 0 {
            collector.register(Box::new(Heaviest::new(preserve)));
        }
        let (pid, exit) = (self.opened.pid, &self.exit);
        self.contexts.begin(pid, attached.data());
        let parts = Parts {
            attached,
            clock,
            collector,
            writer,
            exit,
            before: self.done.as_ref(),
            jvm: &mut self.jvm,
            contexts: &mut self.contexts,
            overhead,
            saving: &mut self.saving,
            wall_interval,
        };
        let mut session = Session::start(parts, duration, &mut *self.observer)?;
        fault::at(Point::RecordSampling);
        self.opened.go_on();
        fault::at(Point::RecordReleased);
        session.note_release();
        common.stop.start(duration);
        let told = Told::new(writer, common, self.number);
        if let Some(next) = next.filter(|next| next.is_gone()) {
            // It was gone before it was attached to, and another one had taken its place.
            told.note(self.executions.settle(Fate::Missed));
            self.executions.begin(next.name(), session.started_ns());
        }
        let started = self.opened.command_pid().filter(|_| self.done.is_none());
        session.announce(started, self.executions.last().map(str::to_owned));
        told.note(self.executions.settle(Fate::Sampled(session.started_ns())));
        let end = session.run(&common.stop);
        let program_run = session.finish(end, preserve);
        match &mut self.done {
            Some(done) => done.add(program_run),
            none => *none = Some(program_run),
        }
        Ok(end)
    }

    /// What came of it. The way into the trace is closed, and the guardian has ended.
    fn conclude(self, end: End) -> Result<Ended, RecordError> {
        let (Some(writer), Some(program_run)) = (self.writer, self.done) else {
            // Only after a program run there is an end.
            return Err(RecordError::TargetGone(anyhow::anyhow!(NEVER_SAMPLED)));
        };
        self.jvm.hurry();
        let tally = writer.tally();
        drop(writer);
        // Nothing is left for it to do, and the program may go on for long.
        drop((self.guardian, self.segments));
        Ok(Ended {
            number: self.number,
            opened: self.opened,
            end,
            program_run,
            executions: self.executions,
            footprint: self.footprint,
            jvm: self.jvm,
            tally,
        })
    }
}

/// Tells the trace what became of a program.
struct Told<'a> {
    writer: &'a Writer,
    /// Of which process, if there are several.
    number: Option<Number>,
}

impl<'a> Told<'a> {
    fn new(writer: &'a Writer, common: &Common<'_>, number: Number) -> Self {
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

/// The way into the trace of a process that has just been attached to.
fn join(
    common: &Common<'_>,
    (number, opened, attached): (Number, &Opened, &Attached<'_>),
    (raised, jvm): (&Raised, &JvmNames),
) -> Result<Writer, RecordError> {
    // Reading symbols is long work, which the target's goes before. The writer thread has little to
    // do, and without its turns the tables are not emptied either.
    let (pid, map_requests) = (opened.pid, jvm.map_requests());
    let names = |answers: Answers| raised.as_before(|| answers.names(pid, map_requests));
    let writer = common.join(number, (opened, attached), names)?;
    if common.is_several && is_listed(number) {
        let Opened { pid, start_time, command_line, .. } = opened;
        let begun = process_list::begun(*pid, *start_time, command_line, monotonic_now_ns());
        writer.note(format!("process.{number}"), begun);
    }
    Ok(writer)
}
