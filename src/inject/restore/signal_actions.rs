//! The steps of a restore that need all threads stopped: it deletes timers, flushes signals and
//! restores the application's actions.
//!
//! # Invariants
//! - An action is restored only when no further sampling signal can be raised: a sampling signal
//!   that reaches the application's action or the default action kills the program.
//! - The action of a signal is changed only if it is ours.

use std::collections::BTreeSet;

use traceprof_abi::layout::{REPLACED, SIGNALS, SignalAction, is_timer_value};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::held_threads::HeldThreads;
use super::kept_addresses::KeptAddresses;
use crate::fault::{self, FaultPoint};
use crate::inject::data_segment::{AttachedData, CURRENT_ACTION, IGNORE_ACTION, OLD_ACTION};
use crate::inject::error::InjectError;
use crate::inject::plan::AttachPlan;
use crate::inject::sigreturn_chain::ChainStep;
use crate::inject::stop::Stopped;
use crate::inject::syscall::Syscall;
use crate::inject::worker::remote_calls::RemoteCalls;
use crate::proc::{self, Mapping};

/// The value of an action's `installed` from the moment before the action is restored.
const RESTORING: u32 = REPLACED + 1;
/// The highest number of a signal.
const SIGNALS_MAX: i32 = 64;
/// The number of calls in one chain that deletes timers.
const DELETED_AT_ONCE: usize = 16;

/// The signals of an agent, and the thread that restores their actions.
#[derive(Clone, Copy)]
pub(super) struct SignalActions<'a> {
    pub(super) plan: &'a AttachPlan,
    pub(super) data: &'a AttachedData,
    pub(super) remote: RemoteCalls,
}

impl SignalActions<'_> {
    /// Deletes the timers, flushes pending signals, and restores the actions. Returns a description
    /// of what could not be restored.
    pub(super) fn put_back(
        self,
        worker: &mut Stopped,
        held: &HeldThreads,
        mappings: &[Mapping],
    ) -> Result<Option<String>, InjectError> {
        if !self.plan.data.is_in(mappings) || !self.plan.code.is_in(mappings) {
            // No action is installed before the segments are attached, and none while they are
            // detached.
            return Ok(None);
        }
        self.delete_timers(worker)?;
        let mut residue = None;
        for index in 0..SIGNALS {
            let Some(signal) = self.signal(index) else { continue };
            // Only after the timers are deleted, because the worker uses CPU time.
            let flush = worker.has_sampling_signal(signal)
                || held.has_sampling_signal(self.plan.pid, signal);
            let replaced = self.restore_action(worker, index, signal, flush)?;
            residue = residue.or(replaced);
        }
        let may_go = residue.is_some() && !self.may_be_kept(worker, held)?;
        Ok(residue.filter(|_| !may_go))
    }

    /// Restores the actions in a process that shares the memory but has its own actions. No
    /// sampling signal is raised there.
    pub(super) fn put_back_in_child(self, child: &mut Stopped) -> Result<(), InjectError> {
        for index in 0..SIGNALS {
            let Some(signal) = self.signal(index) else { continue };
            let act = |new: u64, old: u64| ChainStep::Syscall(Syscall::sigaction(signal, new, old));
            self.remote.run(child, &[act(0, self.at(CURRENT_ACTION))])?;
            // Relaxed: written by the kernel on behalf of a process that has stopped.
            let current = self.data.action(CURRENT_ACTION)[0].load(Ordering::Relaxed);
            if self.plan.code.contains(current) {
                self.prepare_old(index);
                self.remote.run(child, &[act(self.at(OLD_ACTION), 0)])?;
            }
        }
        Ok(())
    }

    fn at(self, offset: u64) -> u64 {
        self.plan.data.avma + offset
    }

    /// Prepares the action that was installed before ours.
    fn prepare_old(self, index: usize) {
        let action = &self.data.control().signals[index];
        // Relaxed: read by the kernel on behalf of a thread that is held.
        for (word, saved) in self.data.action(OLD_ACTION).iter().zip(&action.old_action) {
            word.store(saved.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns the signal that was set after the attach, or the plan's signal.
    fn signal(self, index: usize) -> Option<i32> {
        let planned = self.plan.signals[index];
        // Relaxed: written before the signal's handler was installed.
        let added = self.data.control().signals[index].signal.load(Ordering::Relaxed) as i32;
        [added, planned].into_iter().find(|signal| (1..=64).contains(signal))
    }

    fn delete_timers(self, worker: &mut Stopped) -> Result<(), InjectError> {
        let mut timers: Vec<i32> = self.data.timers().collect();
        timers.extend(self.unpublished_timers());
        timers.sort_unstable();
        timers.dedup();
        for some in timers.chunks(DELETED_AT_ONCE) {
            let delete = |timer: &i32| {
                ChainStep::Syscall(Syscall::new(libc::SYS_timer_delete, &[*timer as u64]))
            };
            let steps: Vec<ChainStep> = some.iter().map(delete).collect();
            // A missing timer was deleted by its own last expiry.
            self.remote.run_fallible(worker, &steps)?;
        }
        self.data.forget_timers();
        fault::at(FaultPoint::RestoreTimersGone);
        Ok(())
    }

    /// Returns the timers with the session's mark. A thread that was taken out of the agent's entry
    /// may have created one that is in no slot. A kernel without checkpoint and restore shows none.
    fn unpublished_timers(self) -> impl Iterator<Item = i32> {
        // Relaxed: written before the agent was mapped.
        let cookie = self.data.control().cookie.load(Ordering::Relaxed);
        let shown = proc::posix_timers(self.plan.pid).unwrap_or_default().into_iter();
        shown.filter(move |timer| is_timer_value(timer.value, cookie)).map(|timer| timer.id)
    }

    /// Whether the application may still use an action of ours that it has replaced.
    fn may_be_kept(self, worker: &mut Stopped, held: &HeldThreads) -> Result<bool, InjectError> {
        let actions = self.data.control().signals.iter();
        // Relaxed: written before the handler was installed.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let of_action = |it: &SignalAction| [load(&it.our_action[0]), load(&it.our_action[2])];
        let addresses: BTreeSet<u64> = actions.flat_map(of_action).filter(|it| *it != 0).collect();
        if KeptAddresses::may_exist(self.plan, &addresses, worker, held) {
            return Ok(true);
        }
        // The action, or a part of it, may be that of another signal now.
        let unchangeable = [libc::SIGKILL, libc::SIGSTOP];
        for signal in (1..=SIGNALS_MAX).filter(|signal| !unchangeable.contains(signal)) {
            let [handler, _, restorer, _] = self.current_action(worker, signal)?;
            if self.plan.code.contains(handler) || self.plan.code.contains(restorer) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the action of a signal.
    fn current_action(self, worker: &mut Stopped, signal: i32) -> Result<[u64; 4], InjectError> {
        let query = Syscall::sigaction(signal, 0, self.at(CURRENT_ACTION));
        self.remote.run(worker, &[ChainStep::Syscall(query)])?;
        // Relaxed: written by the kernel on behalf of a thread that has stopped.
        let load = |at: usize| self.data.action(CURRENT_ACTION)[at].load(Ordering::Relaxed);
        Ok([load(0), load(1), load(2), load(3)])
    }

    fn restore_action(
        self,
        worker: &mut Stopped,
        index: usize,
        signal: i32,
        flush: bool,
    ) -> Result<Option<String>, InjectError> {
        let action = &self.data.control().signals[index];
        let act = |new: u64, old: u64| ChainStep::Syscall(Syscall::sigaction(signal, new, old));
        let [current, ..] = self.current_action(worker, signal)?;
        fault::at(FaultPoint::RestoreActionKnown);
        // Relaxed, here and below: only a thread that has stopped and this process change it.
        let installed = action.installed.load(Ordering::Relaxed);
        // An earlier attempt may have stopped at this point.
        let is_flushed = installed == RESTORING && current == libc::SIG_IGN as u64;
        let is_back = installed == RESTORING
            && current == action.old_action[0].load(Ordering::Relaxed)
            && !is_flushed;
        if is_back {
            action.installed.store(0, Ordering::Relaxed);
            return Ok(None);
        }
        if !self.plan.code.contains(current) && !is_flushed {
            let was_ours = installed != 0;
            return Ok(was_ours.then(|| {
                format!(
                    "the application replaced the handler of signal {signal} and may still call \
                     ours; until it has no address of ours any more, the agent stays mapped \
                     and does nothing"
                )
            }));
        }
        let [_, flags, restorer, mask] = self.data.action(IGNORE_ACTION) else {
            return Err(InjectError::BadPlan { reason: "no room for an action".to_owned() });
        };
        self.data.action(IGNORE_ACTION)[0].store(libc::SIG_IGN as u64, Ordering::Relaxed);
        for word in [flags, restorer, mask] {
            word.store(0, Ordering::Relaxed);
        }
        self.prepare_old(index);
        if installed != 0 {
            action.installed.store(RESTORING, Ordering::Relaxed);
        }
        let steps = [act(self.at(IGNORE_ACTION), 0), act(self.at(OLD_ACTION), 0)];
        self.remote.run(worker, if flush { &steps } else { &steps[1..] })?;
        fault::at(FaultPoint::RestoreActionBack);
        // Relaxed: read by a later attempt, if this one fails.
        action.installed.store(0, Ordering::Relaxed);
        Ok(None)
    }
}
