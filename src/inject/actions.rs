//! What the cure does while every thread is stopped: no more timers, nothing pending, the
//! application's actions back.
//!
//! # Invariants
//! - An action comes back only when nothing of ours can be raised any more: a hit that meets the
//!   application's action, or the default one, is deadly.
//! - The signal's action is touched only if it is ours.

use traceprof_abi::layout::{REPLACED, SIGNALS};
use traceprof_abi::sync::Ordering;

use super::chain::{Call, Step};
use super::error::InjectError;
use super::place::Place;
use super::plan::AttachPlan;
use super::segment::{Attached, CURRENT_ACTION, IGNORE_ACTION, OLD_ACTION};
use super::stop::Stopped;
use crate::fault::{self, Point};
use crate::proc::Mapping;

/// What an action's `installed` says from the moment in which it is about to be taken back.
const TAKING_BACK: u32 = REPLACED + 1;
/// Steps of a chain that deletes timers.
const DELETED_AT_ONCE: usize = 16;

/// The signals of an agent, and the place of the thread that puts their actions back.
#[derive(Clone, Copy)]
pub(super) struct Actions<'a> {
    pub(super) plan: &'a AttachPlan,
    pub(super) data: &'a Attached,
    pub(super) place: Place,
}

impl Actions<'_> {
    /// Deletes the timers, flushes what is pending, and puts the actions back. What is not ours to
    /// put back is told.
    pub(super) fn put_back(
        self,
        worker: &mut Stopped,
        others: &[Stopped],
        mappings: &[Mapping],
    ) -> Result<Option<String>, InjectError> {
        if !self.plan.data.is_in(mappings) || !self.plan.code.is_in(mappings) {
            // Before it was there nothing was installed, and it goes only when all is put back.
            return Ok(None);
        }
        self.delete_timers(worker)?;
        let mut residue = None;
        for index in 0..SIGNALS {
            let Some(signal) = self.signal(index) else { continue };
            // Not before the timers are gone: the worker uses up CPU time.
            let owes = |thread: &Stopped| thread.owes_hit(signal);
            let flush = owes(worker) || others.iter().any(owes);
            let replaced = self.put_one_back(worker, index, signal, flush)?;
            residue = residue.or(replaced);
        }
        Ok(residue)
    }

    /// One that was named later, or the plan's.
    fn signal(self, index: usize) -> Option<i32> {
        let planned = self.plan.signals[index];
        // Relaxed: written before the signal's handler was installed.
        let added = self.data.control().signals[index].signal.load(Ordering::Relaxed) as i32;
        [added, planned].into_iter().find(|signal| (1..=64).contains(signal))
    }

    fn delete_timers(self, worker: &mut Stopped) -> Result<(), InjectError> {
        let timers: Vec<i32> = self.data.timers().collect();
        for some in timers.chunks(DELETED_AT_ONCE) {
            let delete =
                |timer: &i32| Step::Call(Call::new(libc::SYS_timer_delete, &[*timer as u64]));
            let steps: Vec<Step> = some.iter().map(delete).collect();
            // One that is not there any more was deleted by its own last hit.
            self.place.try_to_run(worker, &steps)?;
        }
        self.data.forget_timers();
        fault::at(Point::CureTimeless);
        Ok(())
    }

    fn put_one_back(
        self,
        worker: &mut Stopped,
        index: usize,
        signal: i32,
        flush: bool,
    ) -> Result<Option<String>, InjectError> {
        let action = &self.data.control().signals[index];
        let at = |offset: u64| self.plan.data.avma + offset;
        let act = |new: u64, old: u64| Step::Call(Call::sigaction(signal, new, old));
        self.place.run(worker, &[act(0, at(CURRENT_ACTION))])?;
        fault::at(Point::CureActionKnown);
        // Relaxed, here and below: written by the kernel on behalf of a thread that has stopped.
        let current = self.data.action(CURRENT_ACTION)[0].load(Ordering::Relaxed);
        let installed = action.installed.load(Ordering::Relaxed);
        // An attempt before may have got this far, and no further.
        let is_flushed = installed == TAKING_BACK && current == libc::SIG_IGN as u64;
        let is_back = installed == TAKING_BACK
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
                     ours; the agent stays mapped and does nothing"
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
        for (word, saved) in self.data.action(OLD_ACTION).iter().zip(&action.old_action) {
            word.store(saved.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if installed != 0 {
            action.installed.store(TAKING_BACK, Ordering::Relaxed);
        }
        let steps = [act(at(IGNORE_ACTION), 0), act(at(OLD_ACTION), 0)];
        self.place.run(worker, if flush { &steps } else { &steps[1..] })?;
        fault::at(Point::CureActionBack);
        // Relaxed: for an attempt that is made again after this one failed.
        action.installed.store(0, Ordering::Relaxed);
        Ok(None)
    }
}
