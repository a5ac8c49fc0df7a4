//! One run of the agent's entry by a thread of the target.
//!
//! A thread whose stack takes the frames is set going and let go at once, any number of times: what
//! it needs to come home lies on its own stack. Another is launched from the injection's area only
//! if nobody was before; later it is led through the entry, and has left the area when it is let go.

use std::time::{Duration, Instant};

use traceprof_abi::layout::{ARM_MAX, Operation, entry_argument};
use traceprof_abi::sync::Ordering;

use super::arch;
use super::chain::{Chain, Landing, Step};
use super::error::InjectError;
use super::plan::AttachPlan;
use super::segment::Attached;
use super::stop::{self, Stopped};
use super::worker::{Used, read_mappings, with_a_thread};
use super::{identity, threads};
use crate::fault::{self, Point};
use crate::proc::Mapping;

/// Longest wait for the agent to report.
const ENTERED_MAX: Duration = Duration::from_secs(2);
/// Timers that a thread arms which is led. It stops twice at each of its system calls, of which a timer
/// takes two; 64 timers took 7 ms and more, with 100 threads.
pub(super) const LED_ARM_MAX: usize = 6;
/// After this time the wait asks whether the agent is still there.
const DOUBTED: Duration = Duration::from_millis(10);

/// Where a thread that cannot be set going on its own stack finds room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// In an area from which nobody was launched yet.
    Fresh,
    /// In an area that only threads use which are led through.
    Shared,
}

/// Has a thread run the agent's entry; gives the time for which it was stopped.
pub(super) fn enter(
    plan: &AttachPlan,
    data: &Attached,
    operation: Operation,
    room: Room,
) -> Result<Duration, InjectError> {
    let mappings = read_mappings(plan.pid)?;
    let control = data.control();
    // Acquire: pairs with the Release with which the entry ends.
    let before = control.entered.load(Ordering::Acquire);
    // Relaxed: no thread runs the entry now.
    control.error.store(0, Ordering::Relaxed);
    let start = |stopped: Stopped| start_with(stopped, plan, (operation, room), &mappings);
    let entered = with_a_thread(plan, &mappings, &start).and_then(|used| {
        fault::at(Point::EntryAwaited);
        await_entered(plan, data, before, &used).map(|()| used.stopped)
    });
    stop::count_withheld(data);
    entered
}

fn start_with(
    mut stopped: Stopped,
    plan: &AttachPlan,
    (operation, room): (Operation, Room),
    mappings: &[Mapping],
) -> Result<Used, InjectError> {
    let tid = stopped.tid();
    // While it is stopped nobody else can take the agent away; but the program may have executed
    // another before.
    let is_there = arch::RESTORERS.iter().any(|form| stopped.holds(plan.restorer_avma, form));
    if !is_there {
        return Err(InjectError::Executed);
    }
    stopped.prepare()?;
    fault::at(Point::EntryStopped);
    let on_stack = threads::stack_top(&stopped, mappings);
    let (top, is_free) = match (on_stack, room) {
        (_, Room::Fresh) => (plan.second_top(), true),
        (Some(top), Room::Shared) => (top, true),
        (None, Room::Shared) => (plan.third_top(), false),
    };
    let is_launched = is_free && stopped.may_be_launched();
    let argument = entry_argument(operation, if is_launched { ARM_MAX } else { LED_ARM_MAX });
    let steps = [Step::Enter { entry: plan.entry_avma, argument }];
    let landing = Landing { gadget: plan.restorer_avma, restorer: plan.restorer_avma };
    let chain = Chain::new(&stopped.saved, &steps, landing, top);
    if is_launched {
        return Ok(Used::launched(stopped.launch(chain)?, false));
    }
    stopped.walk(&chain, &steps)?;
    Ok(Used { tid, stopped: stopped.release()?, naked: false, launched: None })
}

fn await_entered(
    plan: &AttachPlan,
    data: &Attached,
    before: u32,
    used: &Used,
) -> Result<(), InjectError> {
    let since = Instant::now();
    loop {
        if let Some(outcome) = outcome(data, before) {
            return outcome;
        }
        identity::check(plan.pid, plan.start_time)?;
        if since.elapsed() > DOUBTED && !plan.code.is_in(&read_mappings(plan.pid)?) {
            return Err(InjectError::Executed);
        }
        if used.is_overdue(since, ENTERED_MAX) {
            // It is not on its way any more: what it has not done by now is never done.
            used.recall(plan)?;
            return outcome(data, before).unwrap_or(Err(InjectError::EntrySilent));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// What the entry came to, once it has ended.
fn outcome(data: &Attached, before: u32) -> Option<Result<(), InjectError>> {
    let control = data.control();
    // Acquire: pairs with the Release with which the entry ends; its actions are visible.
    if control.entered.load(Ordering::Acquire) == before {
        return None;
    }
    // Relaxed, both: ordered by the load above.
    let error = control.error.load(Ordering::Relaxed);
    let errno = control.error_detail.load(Ordering::Relaxed) as i32;
    Some(if error == 0 { Ok(()) } else { Err(InjectError::EntryFailed { error, errno }) })
}
