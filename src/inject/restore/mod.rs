//! The restore: reverts all changes, in the only safe order.
//!
//! The caller has closed its perf events. A stop makes each thread raise its outstanding signals.
//! So once all threads have stopped and their timers are deleted, no further sampling signal is
//! raised.
//!
//! A sampling signal that a thread blocks is flushed by ignoring it for a moment. That would flush
//! the application's own pending signal, too, so the restore does it only where a sampling signal
//! is pending. Only then does it restore the application's action. If it did so while threads run,
//! a sampling signal would sometimes kill the program.
//!
//! # Invariants
//! - No segment is unmapped while a thread is in the agent's code or on its stack, or runs a signal
//!   handler that will return to either.
//! - If the application replaced the agent's action and may have kept the handler's address to call
//!   it, all segments stay mapped.

mod held_threads;
mod in_use;
mod kept_addresses;
pub(super) mod residue;
mod signal_actions;
mod stop_all;
mod uninterruptible;

use std::time::{Duration, Instant};

use traceprof_abi::layout::{AgentState, Operation};
use traceprof_abi::sync::Ordering;

use self::held_threads::{HeldThreads, repair_late};
use self::in_use::InUse;
use self::signal_actions::SignalActions;
use self::stop_all::{HELD_MAX, StopAllOutcome, ThreadStopper};
use super::agent_entry::{self, FrameArea};
use super::data_segment::AttachedData;
use super::error::{InjectError, is_blocked};
use super::plan::{AttachPlan, SharedSegment};
use super::preflight::refuse_frozen;
use super::ptrace::tracing_thread::on_tracing_thread;
use super::ptrace::watchdog;
use super::report::DetachReport;
use super::sigreturn_chain::{Chain, ChainGadgets, ChainStep};
use super::stop::{self, Stopped};
use super::syscall::Syscall;
use super::target::identity;
use super::worker::execution::ExecIdentity;
use super::worker::gadgets::Gadgets;
use super::worker::remote_calls::{RemoteCalls, expect_zero};
use super::worker::stack::stack_top;
use super::worker::{UsedThread, read_mappings};
use crate::fault::{self, FaultPoint};
use crate::proc::{self, Mapping};

/// How long a restore tries while a command waits for it.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// How long a restore tries while the target's threads wait for a processor, which they get in the
/// end.
const STARVED_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between attempts.
const RETRY: Duration = Duration::from_millis(20);
/// Longest wait for a launched chain to detach the segments.
const UNMAPPED_MAX: Duration = Duration::from_secs(1);
/// The outcome of one attempt.
enum Attempt {
    Done(DetachReport),
    /// A thread did not stop, or did not leave the agent's code. The other threads were held for
    /// `held_for`.
    Stuck {
        tid: i32,
        held_for: Duration,
        /// Whether the thread has stopped, but inside of the agent's code.
        is_inside: bool,
    },
    /// Everything is restored except the mappings.
    Mapped(DetachReport),
}

/// What is left to do once no thread is held any more.
enum Held {
    Over(Attempt),
    /// The segments are unmapped, or a launched thread unmaps them.
    Reverted(DetachReport, Option<Box<UsedThread>>),
}

/// The changes that one stop reverted.
enum Reverted {
    All,
    /// A thread was launched to detach the segments.
    Launched(Box<UsedThread>),
    /// The agent stays mapped, for this reason.
    Left(String),
}

/// Reverts all changes. An agent that stays mapped is inert, and the report or the error names it.
pub(super) fn restore(
    plan: &AttachPlan,
    data: &AttachedData,
    patience: Duration,
) -> Result<DetachReport, InjectError> {
    // AcqRel: the Release pairs with the handler's Acquire of the state, after which handlers
    // return at once. The Acquire pairs with the entry's Release and makes the saved action
    // visible.
    data.control().state.swap(AgentState::Stopped as u32, Ordering::AcqRel);
    fault::at(FaultPoint::RestoreStarted);
    // An agent stores the address of its entry before it has a timer, so a later recorder knows the
    // entry, too.
    let has_entry = plan.entry_avma != plan.code.avma;
    // A program that was executed meanwhile has neither code nor timers. It is not stopped to find
    // that out.
    let is_there = || read_mappings(plan.pid).is_ok_and(|mappings| plan.code.is_in(&mappings));
    if has_entry && data.timers().next().is_some() && is_there() {
        // A running thread deletes the timers faster than a stepped one, while others run. The
        // steps below delete remaining timers.
        let _ = agent_entry::run(plan, data, Operation::Disarm, FrameArea::Shared);
        fault::at(FaultPoint::RestoreDisarmed);
    }
    let since = Instant::now();
    let starved = patience.max(STARVED_PATIENCE);
    // The report with the longest stop of several attempts.
    let mut longest = DetachReport::default();
    let mut sleeper = None;
    loop {
        if identity::is_gone(plan.pid, plan.start_time) {
            return Ok(DetachReport::default());
        }
        let attempted = Instant::now();
        let is_late = |patience| since.elapsed() >= patience;
        let restore = Restore { plan, data, sleeper, until: since + patience };
        let outcome = refuse_frozen(plan.pid)
            .map_err(InjectError::from)
            .and_then(|()| on_tracing_thread(move || restore.attempt()))
            .and_then(|held| restore.await_unmapped(held));
        stop::count_withheld(data);
        let mut rest = attempted.elapsed();
        let (failure, patience) = match outcome {
            Ok(Attempt::Done(report)) => return Ok(longest.and(report)),
            Ok(Attempt::Mapped(report)) if is_late(starved) => return Ok(longest.and(report)),
            Ok(Attempt::Mapped(report)) => {
                longest = longest.and(report);
                (InjectError::EntryTimedOut, starved)
            }
            Ok(Attempt::Stuck { tid, held_for, is_inside }) => {
                longest.stopped_ns = longest.stopped_ns.max(held_for.as_nanos() as u64);
                let state = proc::task_stat(plan.pid, tid).map_or('?', |stat| stat.state);
                (rest, sleeper) = (held_for, (state == 'D').then_some(tid));
                let patience = match is_inside {
                    true if state != 'R' => patience,
                    false if is_blocked(state) => patience,
                    _ => starved,
                };
                let failure = match is_inside && state != 'R' {
                    true => InjectError::StillInUse { tid },
                    false => InjectError::WouldNotStop { tid, state },
                };
                (failure, patience)
            }
            Err(InjectError::EntryTimedOut) => (InjectError::EntryTimedOut, starved),
            Err(error) => (error, patience),
        };
        // The obstacle may disappear: a debugger, or a child that has not called exec yet.
        if is_late(patience) && !failure.is_gone() {
            let whole = || "the agent, which discards its signal and does nothing".to_owned();
            let residue = longest.residue.unwrap_or_else(whole);
            return Err(InjectError::Residue { cause: Box::new(failure), residue });
        }
        // The threads were held for most of the failed attempt, so they now run for as long.
        watchdog::sleep(rest.max(RETRY));
    }
}

#[derive(Clone, Copy)]
struct Restore<'a> {
    plan: &'a AttachPlan,
    data: &'a AttachedData,
    /// A thread in uninterruptible sleep. It is stopped first, while all other threads run.
    sleeper: Option<i32>,
    /// The time when the wait for that thread ends.
    until: Instant,
}

impl Restore<'_> {
    fn attempt(self) -> Result<Held, InjectError> {
        let over = |attempt| Ok(Held::Over(attempt));
        let mut stopper = ThreadStopper::of(self.plan.pid);
        if let Some(tid) = self.sleeper
            && !stopper.catch_sleeper(tid, self.until)?
        {
            return over(Attempt::Stuck { tid, held_for: Duration::ZERO, is_inside: false });
        }
        let execution = ExecIdentity::of(self.plan.pid)?;
        let mappings = self.mappings()?;
        let mapped = |segment: &SharedSegment| segment.is_in(&mappings);
        if !self.plan.segments().into_iter().any(|(_, segment)| mapped(segment)) {
            return over(Attempt::Done(DetachReport::default()));
        }
        let gadgets = Gadgets::find(self.plan.pid, execution, &mappings)?;
        let in_use = InUse {
            plan: self.plan,
            data: self.data,
            returns_through_agent: gadgets.restorer.is_none(),
            mappings: &mappings,
        };
        stopper.inspect_threads();
        let outcome_of_stop = stopper.stop_all(in_use, &mappings)?;
        let since = stopper.since();
        let mut worker = match outcome_of_stop {
            StopAllOutcome::All(worker) => *worker,
            StopAllOutcome::Nobody => return over(Attempt::Done(DetachReport::default())),
            StopAllOutcome::Stuck(tid) => {
                let is_inside = stopper.inside == Some(tid);
                let late = std::mem::take(&mut stopper.held.late);
                let released = stopper.held.release();
                let held_for = since.elapsed();
                repair_late(late);
                released?;
                return over(Attempt::Stuck { tid, held_for, is_inside });
            }
        };
        let threads = stopper.held.tids().count() + 1;
        worker.hold_until(since + HELD_MAX);
        fault::at(FaultPoint::RestoreStopped);
        let reverted = self.revert(worker, stopper.held, gadgets, &mappings)?;
        let stopped_ns = since.elapsed().as_nanos() as u64;
        let report = |residue| DetachReport { stopped_ns, threads, residue };
        Ok(match reverted {
            Reverted::Left(residue) => Held::Over(Attempt::Done(report(Some(residue)))),
            Reverted::All => Held::Reverted(report(None), None),
            Reverted::Launched(used) => Held::Reverted(report(None), Some(used)),
        })
    }

    /// Waits until the segments are unmapped. No thread is traced meanwhile: a launched thread
    /// without a processor takes seconds.
    fn await_unmapped(self, held: Held) -> Result<Attempt, InjectError> {
        let (report, launched) = match held {
            Held::Over(attempt) => return Ok(attempt),
            Held::Reverted(report, launched) => (report, launched),
        };
        match self.still_mapped(launched)? {
            None => {
                fault::at(FaultPoint::RestoreDone);
                Ok(Attempt::Done(report))
            }
            residue => Ok(Attempt::Mapped(DetachReport { residue, ..report })),
        }
    }

    fn mappings(&self) -> Result<Vec<Mapping>, InjectError> {
        proc::mappings(self.plan.pid)
            .map_err(|error| InjectError::reading("/proc/PID/maps", &error))
    }

    /// Returns the segments that stay mapped. A launched chain detaches them by itself.
    fn still_mapped(
        &self,
        launched: Option<Box<UsedThread>>,
    ) -> Result<Option<String>, InjectError> {
        let since = Instant::now();
        loop {
            let mappings = self.mappings().map_err(|error| match &launched {
                Some(used) => used.abort(self.plan, error),
                None => error,
            })?;
            let segments = self.plan.segments().into_iter();
            let left: Vec<&str> =
                segments.filter(|(_, s)| s.is_in(&mappings)).map(|(name, _)| name).collect();
            if left.is_empty() {
                self.await_return(launched.as_deref(), since);
                return Ok(None);
            }
            if launched.as_ref().is_none_or(|used| used.is_overdue(since, UNMAPPED_MAX)) {
                if let Some(used) = &launched {
                    // The thread may have finished its chain during the withdrawal; another attempt
                    // finds that out.
                    used.withdraw(self.plan)?;
                }
                return Ok(Some(format!("the {} segment stays mapped", left.join(" and "))));
            }
            watchdog::sleep(Duration::from_micros(100));
        }
    }

    /// Waits until a launched thread has its own signal mask again, so that whoever compares the
    /// process with its earlier state finds no difference. The segments are unmapped already.
    fn await_return(&self, launched: Option<&UsedThread>, since: Instant) {
        let Some(used) = launched else { return };
        while used.is_returning(self.plan.pid) && !used.is_overdue(since, UNMAPPED_MAX) {
            watchdog::sleep(Duration::from_micros(100));
        }
    }

    /// Restores the actions, releases the other threads, and unmaps the segments.
    fn revert(
        &self,
        mut worker: Stopped,
        mut held: HeldThreads,
        gadgets: Gadgets,
        mappings: &[Mapping],
    ) -> Result<Reverted, InjectError> {
        let on_stack = stack_top(&worker, mappings);
        let remote = RemoteCalls {
            gadgets: ChainGadgets {
                syscall_return: gadgets.syscall_return.unwrap_or(gadgets.syscall),
                restorer: gadgets.restorer.unwrap_or(self.plan.restorer_avma),
            },
            top: on_stack.unwrap_or(self.plan.first_top()),
        };
        let outcome = match gadgets.confirm(&worker) {
            Ok(confirmed) if confirmed == gadgets => {
                let actions = SignalActions { plan: self.plan, data: self.data, remote };
                worker
                    .prepare()
                    .and_then(|()| self.put_back_in_vfork_children(actions, &mut held, mappings))
                    .and_then(|()| actions.put_back(&mut worker, &held, mappings))
            }
            Ok(_) => Err(InjectError::Executed),
            Err(error) => Err(error),
        };
        held.release()?;
        fault::at(FaultPoint::RestoreOthersReleased);
        // Nothing has to wait for the worker any more: it detaches the segments on its chain.
        let may_launch = worker.may_be_launched()
            && gadgets.syscall_return.is_some()
            && gadgets.restorer.is_some();
        if matches!(outcome, Ok(None)) && on_stack.is_some() && may_launch {
            let steps = self.unmap_steps(mappings);
            let chain = Chain::new(worker.saved(), &steps, remote.gadgets, remote.top);
            let launched = worker.launch(chain)?;
            fault::at(FaultPoint::RestoreLaunched);
            return Ok(Reverted::Launched(Box::new(UsedThread::launched(launched, false))));
        }
        let outcome = match outcome {
            Ok(Some(residue)) => Ok(Reverted::Left(residue)),
            Ok(None) => self
                .unmap(&mut worker, remote, on_stack.is_some(), mappings)
                .map(|()| Reverted::All),
            Err(error) => Err(error),
        };
        let released = worker.release();
        outcome.and_then(|reverted| released.map(|_| reverted))
    }

    /// Restores the actions of `vfork` children, on their own stacks if possible, otherwise on the
    /// worker's.
    fn put_back_in_vfork_children(
        &self,
        actions: SignalActions<'_>,
        held: &mut HeldThreads,
        mappings: &[Mapping],
    ) -> Result<(), InjectError> {
        if !self.plan.data.is_in(mappings) || !self.plan.code.is_in(mappings) {
            return Ok(());
        }
        for child in &mut held.vfork_children {
            child.prepare()?;
            let top = stack_top(child, mappings).unwrap_or(self.plan.first_top());
            let remote = RemoteCalls { top, ..actions.remote };
            SignalActions { remote, ..actions }.put_back_in_child(child)?;
        }
        Ok(())
    }

    /// Returns the calls that detach the attached segments, the data segment last.
    fn unmap_steps(&self, mappings: &[Mapping]) -> Vec<ChainStep> {
        let mut segments = vec![&self.plan.tables, &self.plan.code, &self.plan.data];
        segments.retain(|segment| segment.is_in(mappings));
        segments.into_iter().map(|segment| ChainStep::Syscall(segment.detach())).collect()
    }

    /// Detaches the segments that the frames do not need with frames, and the others with bare
    /// calls.
    fn unmap(
        &self,
        worker: &mut Stopped,
        remote: RemoteCalls,
        on_stack: bool,
        mappings: &[Mapping],
    ) -> Result<(), InjectError> {
        let AttachPlan { tables, code, data, .. } = self.plan;
        let there = |segments: &[&SharedSegment]| -> Vec<Syscall> {
            segments.iter().filter(|it| it.is_in(mappings)).map(|it| it.detach()).collect()
        };
        let returns_through_agent = code.contains(remote.gadgets.restorer);
        let has_frames = on_stack || data.is_in(mappings);
        let framed = match (returns_through_agent, on_stack) {
            _ if !has_frames || (returns_through_agent && !code.is_in(mappings)) => 0,
            (true, _) => 1,
            (false, false) => 2,
            (false, true) => 3,
        };
        let in_order = [tables, code, data];
        let (framed, bare) = in_order.split_at(framed);
        let steps: Vec<ChainStep> = there(framed).into_iter().map(ChainStep::Syscall).collect();
        if !steps.is_empty() {
            remote.run(worker, &steps)?;
            fault::at(FaultPoint::RestoreUnmapped);
        }
        for call in there(bare) {
            expect_zero("shmdt", worker.run_bare_call(remote.gadgets.syscall_return, &call)?)?;
            fault::at(FaultPoint::RestoreUnmappedBare);
        }
        Ok(())
    }
}
