//! The cure: takes everything back, in the one order that is safe.
//!
//! The caller has closed its perf events. A stop makes each thread raise what it still owes, so
//! after all have stopped at once, and their timers are deleted, nothing more is raised. What a
//! thread that blocks the signal still owes is flushed by setting the signal to ignored; that would
//! take the application's own pending signal too, so it is done only where there is something to
//! flush. Only then the old action comes back. The naive order (old action back while threads run) kills a program now and then.
//!
//! # Invariants
//! - Nothing is unmapped while a thread is in the agent's code or on its stack.
//! - If the application replaced our action, it may have kept our handler's address to call it:
//!   then everything stays mapped.

use std::time::{Duration, Instant};

use traceprof_abi::layout::{AgentState, Operation};
use traceprof_abi::sync::Ordering;

use super::actions::Actions;
use super::beside::Beside;
use super::chain::{Call, Chain, Landing, Step};
use super::enter::{self, Room};
use super::error::InjectError;
use super::gadget::Gadgets;
use super::identity::Execution;
use super::inside::Inside;
use super::place::{Place, fine};
use super::plan::{AttachPlan, DetachReport, Segment};
use super::segment::Attached;
use super::stop::{self, Stopped};
use super::sweep::{HELD_MAX, Sweep, Swept};
use super::worker::{Used, read_mappings};
use super::{identity, threads};
use crate::fault::{self, Point};
use crate::proc::{self, Mapping};

/// How long a cure tries when somebody waits for it.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// The same where the target's threads wait for a processor: they get one in the end.
const STARVED_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between attempts.
const RETRY: Duration = Duration::from_millis(20);
/// Longest wait for a launched chain to detach the segments.
const UNMAPPED_MAX: Duration = Duration::from_secs(1);
/// What an attempt came to.
enum Attempt {
    Done(DetachReport),
    /// A thread did not stop, or did not leave the agent's code; the others were held so long.
    Stuck {
        tid: i32,
        held: Duration,
    },
    /// All but the mappings was taken back.
    Mapped(DetachReport),
}

/// What a stop took back.
enum Took {
    All,
    /// A thread is on its way to detach the segments.
    Launched(Box<Used>),
    /// The agent stays, and why.
    Left(String),
}

/// Takes everything back. What cannot be taken back is inert, and named in the report or the error.
pub(super) fn cure(
    plan: &AttachPlan,
    data: &Attached,
    patience: Duration,
) -> Result<DetachReport, InjectError> {
    // AcqRel: Release pairs with the handler's Acquire of the state, handlers return at once from
    // now on; Acquire pairs with the entry's Release, the saved action is visible.
    data.control().state.swap(AgentState::Stopped as u32, Ordering::AcqRel);
    fault::at(Point::CureBegun);
    // An agent that was left behind has told where its entry is before it had a timer.
    let has_entry = plan.entry_avma != plan.code.avma;
    // A program that was executed meanwhile has neither, and is not stopped to find that out.
    let is_there = || read_mappings(plan.pid).is_ok_and(|mappings| plan.code.is_in(&mappings));
    if has_entry && data.timers().next().is_some() && is_there() {
        // A thread that runs deletes them faster than one that is led, while others go on. What
        // it leaves, whyever it does, is deleted below.
        let _ = enter::enter(plan, data, Operation::Disarm, Room::Shared);
        fault::at(Point::CureDisarmed);
    }
    let since = Instant::now();
    let starved = patience.max(STARVED_PATIENCE);
    // Of the longest stop, should it take several.
    let mut longest = DetachReport::default();
    let mut sleeper = None;
    loop {
        if identity::check(plan.pid, plan.start_time).is_err() {
            return Ok(DetachReport::default());
        }
        let attempted = Instant::now();
        let is_late = |patience| since.elapsed() >= patience;
        let inside = Inside { plan, data, through_ours: false };
        let cure = Cure { plan, data, inside, sleeper, until: since + patience };
        let outcome = identity::disposable(move || cure.attempt());
        stop::count_withheld(data);
        let mut rest = attempted.elapsed();
        let (failure, patience) = match outcome {
            Ok(Attempt::Done(report)) => return Ok(longest.and(report)),
            Ok(Attempt::Mapped(report)) if is_late(starved) => return Ok(longest.and(report)),
            Ok(Attempt::Mapped(report)) => {
                longest = longest.and(report);
                (InjectError::EntrySilent, starved)
            }
            Ok(Attempt::Stuck { tid, held }) => {
                longest.stopped_ns = longest.stopped_ns.max(held.as_nanos() as u64);
                let state = proc::task_stat(plan.pid, tid).map_or('?', |stat| stat.state);
                (rest, sleeper) = (held, (state == 'D').then_some(tid));
                let patience = if state == 'R' { starved } else { patience };
                (InjectError::WouldNotStop { tid, state }, patience)
            }
            Err(InjectError::EntrySilent) => (InjectError::EntrySilent, starved),
            Err(error) => (error, patience),
        };
        // What stands in the way may go away: a debugger, a child that has not yet executed.
        if is_late(patience) && !failure.is_gone() {
            let whole = || "the agent, which swallows its signal and does nothing".to_owned();
            let residue = longest.residue.unwrap_or_else(whole);
            return Err(InjectError::Residue { cause: Box::new(failure), residue });
        }
        // The threads were held for most of an attempt that failed: they run for as long.
        std::thread::sleep(rest.max(RETRY));
    }
}

struct Cure<'a> {
    plan: &'a AttachPlan,
    data: &'a Attached,
    inside: Inside<'a>,
    /// A thread that slept where no stop reaches it: it is caught first, while all others run.
    sleeper: Option<i32>,
    /// So long it is waited for.
    until: Instant,
}

impl Cure<'_> {
    fn attempt(mut self) -> Result<Attempt, InjectError> {
        let mut sweep = Sweep::of(self.plan.pid);
        if let Some(tid) = self.sleeper
            && !sweep.catch_sleeper(tid, self.until)?
        {
            return Ok(Attempt::Stuck { tid, held: Duration::ZERO });
        }
        let execution = Execution::of(self.plan.pid);
        let mappings = self.mappings()?;
        let mapped = |segment: &Segment| segment.is_in(&mappings);
        if !self.plan.segments().into_iter().any(|(_, segment)| mapped(segment)) {
            return Ok(Attempt::Done(DetachReport::default()));
        }
        let gadgets = Gadgets::find(self.plan.pid, execution, &mappings);
        let gadgets = gadgets.ok_or(InjectError::Executed)?;
        self.inside.through_ours = gadgets.restorer.is_none();
        sweep.foresee();
        let swept = sweep.stop_all(self.inside, &mappings)?;
        let since = sweep.since();
        let mut worker = match swept {
            Swept::All(worker) => *worker,
            Swept::Nobody => return Ok(Attempt::Done(DetachReport::default())),
            Swept::Stuck(tid) => {
                sweep.beside.release()?;
                return Ok(Attempt::Stuck { tid, held: since.elapsed() });
            }
        };
        let threads = sweep.beside.tids().count() + 1;
        worker.hold_until(since + HELD_MAX);
        fault::at(Point::CureStopped);
        let took = self.take_back(worker, sweep.beside, gadgets, &mappings)?;
        let stopped_ns = since.elapsed().as_nanos() as u64;
        let report = |residue| DetachReport { stopped_ns, threads, residue, unfinished: false };
        let launched = match took {
            Took::Left(residue) => return Ok(Attempt::Done(report(Some(residue)))),
            Took::All => None,
            Took::Launched(used) => Some(*used),
        };
        match self.still_mapped(launched)? {
            None => {
                fault::at(Point::CureDone);
                Ok(Attempt::Done(report(None)))
            }
            left => Ok(Attempt::Mapped(DetachReport { unfinished: true, ..report(left) })),
        }
    }

    fn mappings(&self) -> Result<Vec<Mapping>, InjectError> {
        proc::mappings(self.plan.pid).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => InjectError::Gone,
            _ => InjectError::system("reading maps", &error),
        })
    }

    /// Waits for the segments to be gone: a launched chain detaches them on its own.
    fn still_mapped(&self, launched: Option<Used>) -> Result<Option<String>, InjectError> {
        let since = Instant::now();
        loop {
            let mappings = self.mappings()?;
            let segments = self.plan.segments().into_iter();
            let left: Vec<&str> =
                segments.filter(|(_, s)| s.is_in(&mappings)).map(|(name, _)| name).collect();
            if left.is_empty() {
                return Ok(None);
            }
            if launched.as_ref().is_none_or(|used| used.is_overdue(since, UNMAPPED_MAX)) {
                if let Some(used) = &launched {
                    // It may have come to the end of its chain while the recall waited for it:
                    // another attempt finds that out.
                    used.recall(self.plan)?;
                }
                return Ok(Some(format!("the {} segment stays mapped", left.join(" and "))));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Puts the action back, lets the others go, and unmaps.
    fn take_back(
        &self,
        mut worker: Stopped,
        mut beside: Beside,
        gadgets: Gadgets,
        mappings: &[Mapping],
    ) -> Result<Took, InjectError> {
        let on_stack = threads::stack_top(&worker, mappings);
        let place = Place {
            landing: Landing {
                gadget: gadgets.call.unwrap_or(gadgets.syscall),
                restorer: gadgets.restorer.unwrap_or(self.plan.restorer_avma),
            },
            top: on_stack.unwrap_or(self.plan.first_top()),
        };
        let outcome = match gadgets.confirm(&worker) {
            Some(confirmed) if confirmed == gadgets => {
                let actions = Actions { plan: self.plan, data: self.data, place };
                worker
                    .prepare()
                    .and_then(|()| self.put_back_in_guests(actions, &mut beside, mappings))
                    .and_then(|()| actions.put_back(&mut worker, &beside, mappings))
            }
            _ => Err(InjectError::Executed),
        };
        beside.release()?;
        fault::at(Point::CureOthersGone);
        // Nobody needs to wait for it any more: it detaches the segments on its way home.
        let launchable =
            worker.may_be_launched() && gadgets.call.is_some() && gadgets.restorer.is_some();
        if matches!(outcome, Ok(None)) && on_stack.is_some() && launchable {
            let steps = self.unmap_steps(mappings);
            let chain = Chain::new(&worker.saved, &steps, place.landing, place.top);
            let launched = worker.launch(chain)?;
            fault::at(Point::CureLaunched);
            return Ok(Took::Launched(Box::new(Used::launched(launched, false))));
        }
        let outcome = match outcome {
            Ok(Some(residue)) => Ok(Took::Left(residue)),
            Ok(None) => {
                self.unmap(&mut worker, place, on_stack.is_some(), mappings).map(|()| Took::All)
            }
            Err(error) => Err(error),
        };
        let released = worker.release();
        outcome.and_then(|took| released.map(|_| took))
    }

    /// Each on its own stack if that bears it, else where the worker is led.
    fn put_back_in_guests(
        &self,
        actions: Actions<'_>,
        beside: &mut Beside,
        mappings: &[Mapping],
    ) -> Result<(), InjectError> {
        if !self.plan.data.is_in(mappings) || !self.plan.code.is_in(mappings) {
            return Ok(());
        }
        for guest in &mut beside.guests {
            guest.prepare()?;
            let top = threads::stack_top(guest, mappings).unwrap_or(self.plan.first_top());
            let place = Place { top, ..actions.place };
            Actions { place, ..actions }.put_back_in(guest)?;
        }
        Ok(())
    }

    /// The calls that detach what is attached, the data at last.
    fn unmap_steps(&self, mappings: &[Mapping]) -> Vec<Step> {
        let mut segments = vec![&self.plan.tables, &self.plan.code, &self.plan.data];
        segments.retain(|segment| segment.is_in(mappings));
        segments.into_iter().map(|segment| Step::Call(segment.detach())).collect()
    }

    /// Detaches on frames what neither holds the frames nor what they return through, the rest with
    /// nothing to come back on.
    fn unmap(
        &self,
        worker: &mut Stopped,
        place: Place,
        on_stack: bool,
        mappings: &[Mapping],
    ) -> Result<(), InjectError> {
        let AttachPlan { tables, code, data, .. } = self.plan;
        let there = |segments: &[&Segment]| -> Vec<Call> {
            segments.iter().filter(|it| it.is_in(mappings)).map(|it| it.detach()).collect()
        };
        let through_ours = code.contains(place.landing.restorer);
        let has_frames = on_stack || data.is_in(mappings);
        let framed = match (through_ours, on_stack) {
            _ if !has_frames || (through_ours && !code.is_in(mappings)) => 0,
            (true, _) => 1,
            (false, false) => 2,
            (false, true) => 3,
        };
        let in_order = [tables, code, data];
        let (framed, bare) = in_order.split_at(framed);
        let steps: Vec<Step> = there(framed).into_iter().map(Step::Call).collect();
        if !steps.is_empty() {
            place.run(worker, &steps)?;
            fault::at(Point::CureUnmapped);
        }
        for call in there(bare) {
            fine("shmdt", worker.call_bare(place.landing.gadget, &call)?)?;
            fault::at(Point::CureUnmappedBare);
        }
        Ok(())
    }
}
