//! One run of the agent's entry by a thread of the target.
//!
//! A thread whose own stack takes the frames can be launched any number of times: the stack holds
//! all that the thread needs to return. A thread with another stack is launched from the injection
//! area only the first time. Later it is stepped through the entry, and has left the area when it
//! is released.

use std::time::{Duration, Instant};

use traceprof_abi::layout::{ARM_MAX, Operation, entry_argument};
use traceprof_abi::sync::Ordering;

use super::arch;
use super::data_segment::AttachedData;
use super::error::InjectError;
use super::plan::AttachPlan;
use super::preflight::refuse_frozen;
use super::ptrace::watchdog;
use super::sigreturn_chain::{Chain, ChainGadgets, ChainStep};
use super::stop::{self, Stopped};
use super::target::identity;
use super::worker::stack::stack_top;
use super::worker::{UsedThread, read_mappings, with_a_thread};
use crate::fault::{self, FaultPoint};
use crate::proc::Mapping;

/// Longest wait for the agent's report.
const ENTERED_MAX: Duration = Duration::from_secs(2);
/// Most timers that a stepped thread arms in one run. A timer takes two system calls, with two
/// stops each; with 100 threads, 64 timers took 7 ms and more.
pub(super) const STEPPED_ARM_MAX: usize = 6;
/// After this time without a report, the wait checks whether the agent is still mapped.
const MAPPING_CHECK_AFTER: Duration = Duration::from_millis(10);

/// The area for the frames of a thread whose own stack may not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameArea {
    /// No thread was launched from the area yet.
    Fresh,
    /// Only stepped threads use the area.
    Shared,
}

/// Makes a thread run the agent's entry, and returns how long the thread was stopped.
pub(super) fn run(
    plan: &AttachPlan,
    data: &AttachedData,
    operation: Operation,
    area: FrameArea,
) -> Result<Duration, InjectError> {
    refuse_frozen(plan.pid)?;
    let mappings = read_mappings(plan.pid)?;
    let control = data.control();
    // Acquire: pairs with the Release at the end of the entry.
    let before = control.entered.load(Ordering::Acquire);
    // Relaxed: no thread runs the entry now.
    control.error.store(0, Ordering::Relaxed);
    let start = |stopped: Stopped| start_with(stopped, plan, (operation, area), &mappings);
    let entered = with_a_thread(plan, &mappings, &start).and_then(|used| {
        fault::at(FaultPoint::EntryAwaited);
        await_entered(plan, data, before, &used).map(|()| used.stopped)
    });
    stop::count_withheld(data);
    entered
}

fn start_with(
    mut stopped: Stopped,
    plan: &AttachPlan,
    (operation, area): (Operation, FrameArea),
    mappings: &[Mapping],
) -> Result<UsedThread, InjectError> {
    let tid = stopped.tid();
    // Nothing can unmap the agent while the thread is stopped, but the process may have executed
    // another program before.
    let mut is_there = false;
    for form in &arch::RESTORERS {
        is_there |= stopped.holds(plan.restorer_avma, form)?;
    }
    if !is_there {
        return Err(InjectError::Executed);
    }
    stopped.prepare()?;
    fault::at(FaultPoint::EntryStopped);
    let on_stack = stack_top(&stopped, mappings);
    let (top, is_unfiltered) = match (on_stack, area) {
        (_, FrameArea::Fresh) => (plan.second_top(), true),
        (Some(top), FrameArea::Shared) => (top, true),
        (None, FrameArea::Shared) => (plan.third_top(), false),
    };
    let is_launched = is_unfiltered && stopped.may_be_launched();
    let argument = entry_argument(operation, if is_launched { ARM_MAX } else { STEPPED_ARM_MAX });
    let steps = [ChainStep::Enter { entry: plan.entry_avma, argument }];
    let chain_gadgets =
        ChainGadgets { syscall_return: plan.restorer_avma, restorer: plan.restorer_avma };
    let chain = Chain::new(stopped.saved(), &steps, chain_gadgets, top);
    if is_launched {
        return Ok(UsedThread::launched(stopped.launch(chain)?, false));
    }
    stopped.run_stepwise(&chain, &steps)?;
    Ok(UsedThread { tid, stopped: stopped.release()?, bare_call: false, launched: None })
}

fn await_entered(
    plan: &AttachPlan,
    data: &AttachedData,
    before: u32,
    used: &UsedThread,
) -> Result<(), InjectError> {
    let since = Instant::now();
    loop {
        if let Some(outcome) = outcome(data, before) {
            return outcome;
        }
        identity::check(plan.pid, plan.start_time).map_err(|error| used.abort(plan, error))?;
        if since.elapsed() > MAPPING_CHECK_AFTER {
            let mappings = read_mappings(plan.pid).map_err(|error| used.abort(plan, error))?;
            if !plan.code.is_in(&mappings) {
                return Err(InjectError::Executed);
            }
        }
        if used.is_overdue(since, ENTERED_MAX) {
            // The thread is off its chain now, and will not run the remaining steps.
            used.withdraw(plan)?;
            return outcome(data, before).unwrap_or(Err(InjectError::EntryTimedOut));
        }
        watchdog::sleep(Duration::from_micros(50));
    }
}

/// Returns the result of the entry, once the entry has finished.
fn outcome(data: &AttachedData, before: u32) -> Option<Result<(), InjectError>> {
    let control = data.control();
    // Acquire: pairs with the Release at the end of the entry, and makes the entry's actions
    // visible.
    if control.entered.load(Ordering::Acquire) == before {
        return None;
    }
    // Relaxed, both: the load above orders them.
    let error = control.error.load(Ordering::Relaxed);
    let errno = control.error_detail.load(Ordering::Relaxed) as i32;
    Some(if error == 0 { Ok(()) } else { Err(InjectError::EntryFailed { error, errno }) })
}
