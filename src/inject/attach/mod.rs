//! The attach: one stop maps the segments, a check from outside confirms the mappings, and a second
//! stop starts the agent.
//!
//! The two stops never share one chain: that chain would jump into a mapping that failed.

pub(super) mod held_program;

use std::time::{Duration, Instant};

use traceprof_abi::layout::Operation;
use traceprof_abi::sync::Ordering;

use super::agent_entry::{self, FrameArea};
use super::data_segment::{AttachedData, HOLD_BYTE};
use super::error::InjectError;
use super::plan::{AttachPlan, SharedSegment};
use super::ptrace::watchdog::{self, Watchdog};
use super::report::AttachReport;
use super::restore;
use super::sigreturn_chain::{Chain, ChainGadgets, ChainStep};
use super::stop::Stopped;
use super::syscall::Syscall;
use super::target::identity;
use super::worker::execution::ExecIdentity;
use super::worker::gadgets::Gadgets;
use super::worker::stack::stack_top;
use super::worker::{UsedThread, read_mappings, with_a_thread};
use crate::fault::{self, FaultPoint};
use crate::proc::{self, Mapping};

/// Longest wait for the mappings to appear.
const MAPPED_MAX: Duration = Duration::from_secs(1);
/// Pause between two checks whether the target has exited.
const EXIT_CHECK: Duration = Duration::from_millis(5);

/// Maps the segments and starts the agent. After an error the target is restored.
pub(super) fn attach(
    plan: &AttachPlan,
    data: &AttachedData,
    held: Option<(Stopped, Watchdog)>,
) -> Result<AttachReport, InjectError> {
    match map_and_start(plan, data, held) {
        Ok(report) => Ok(report),
        // The target's exit caused the failure.
        Err(_) if has_ended(plan) => Err(InjectError::Gone),
        Err(error) => match restore::restore(plan, data, restore::PATIENCE) {
            Ok(report) => Err(match report.residue {
                None if identity::is_gone(plan.pid, plan.start_time) => InjectError::Gone,
                None => error,
                Some(residue) => InjectError::Residue { cause: Box::new(error), residue },
            }),
            Err(InjectError::Residue { residue, .. }) => {
                Err(InjectError::Residue { cause: Box::new(error), residue })
            }
            Err(_) => Err(error),
        },
    }
}

fn map_and_start(
    plan: &AttachPlan,
    data: &AttachedData,
    held: Option<(Stopped, Watchdog)>,
) -> Result<AttachReport, InjectError> {
    let execution = ExecIdentity::of(plan.pid)?;
    let mappings = read_mappings(plan.pid)?;
    let gadgets = Gadgets::find(plan.pid, execution, &mappings)?;
    let map = |stopped: Stopped| map_with(stopped, plan, gadgets, &mappings);
    let first = match held {
        // The watchdog has no work once the program continues.
        Some((stopped, _watchdog)) => map(stopped)?,
        None => with_a_thread(plan, &mappings, &map)?,
    };
    await_maps(plan, gadgets, &first, &mappings)?;
    fault::at(FaultPoint::MapSeen);
    let second = agent_entry::run(plan, data, Operation::Install, FrameArea::Fresh)?;
    let stops_ns = [first.stopped, second].map(|stopped| stopped.as_nanos() as u64).to_vec();
    Ok(AttachReport { stops_ns, bare_call: first.bare_call, tid: first.tid })
}

/// Whether the target has exited. Waits for the exit of a target that is being killed: it has no
/// memory for as long as its last thread takes.
fn has_ended(plan: &AttachPlan) -> bool {
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    let is_killed = || {
        let pending = proc::status(plan.pid).map_or(0, |it| it.pending | it.shared_pending);
        pending & SIGKILL != 0 || proc::mappings(plan.pid).is_ok_and(|all| all.is_empty())
    };
    let deadline = Instant::now() + restore::PATIENCE;
    loop {
        if identity::is_gone(plan.pid, plan.start_time) {
            return true;
        }
        if !is_killed() || Instant::now() >= deadline {
            return false;
        }
        watchdog::sleep(EXIT_CHECK);
    }
}

/// The end of the stop that maps the segments.
enum MapEnding {
    Launch(Box<Chain>),
    Release,
}

fn map_with(
    mut stopped: Stopped,
    plan: &AttachPlan,
    gadgets: Gadgets,
    mappings: &[Mapping],
) -> Result<UsedThread, InjectError> {
    let tid = stopped.tid();
    let mut bare_call = false;
    Ok(match map_steps(&mut stopped, plan, gadgets, mappings, &mut bare_call)? {
        MapEnding::Launch(chain) => {
            let launched = stopped.launch(*chain)?;
            fault::at(FaultPoint::MapLaunched);
            UsedThread::launched(launched, bare_call)
        }
        MapEnding::Release => {
            UsedThread { tid, stopped: stopped.release()?, bare_call, launched: None }
        }
    })
}

fn map_steps(
    stopped: &mut Stopped,
    plan: &AttachPlan,
    gadgets: Gadgets,
    mappings: &[Mapping],
    bare_call: &mut bool,
) -> Result<MapEnding, InjectError> {
    let gadgets = gadgets.confirm(stopped)?;
    stopped.prepare()?;
    fault::at(FaultPoint::MapStopped);
    let may_launch = stopped.may_be_launched();
    let mut todo: Vec<(&str, &SharedSegment)> = plan.segments().to_vec();
    let top = match stack_top(stopped, mappings) {
        Some(top) if gadgets.syscall_return.is_some() => top,
        _ => {
            *bare_call = true;
            let call = plan.data.attach();
            let got = stopped.run_bare_call(gadgets.syscall, &call)?;
            attached("data", &plan.data, got)?;
            fault::at(FaultPoint::MapBare);
            todo.retain(|(name, _)| *name != "data");
            plan.first_top()
        }
    };
    let Some(syscall_return) = gadgets.syscall_return else {
        return map_bare(stopped, plan, gadgets.syscall, &todo);
    };
    let restorer = match gadgets.restorer {
        Some(restorer) => restorer,
        None => {
            // The frames return through a restorer in the segment that this step attaches.
            let chain_gadgets = ChainGadgets { syscall_return, restorer: plan.restorer_avma };
            map_stepwise(stopped, chain_gadgets, top, &[("code", &plan.code)])?;
            fault::at(FaultPoint::MapOwnRestorer);
            todo.retain(|(name, _)| *name != "code");
            plan.restorer_avma
        }
    };
    let chain_gadgets = ChainGadgets { syscall_return, restorer };
    if !may_launch {
        refuse_hold(plan)?;
        map_stepwise(stopped, chain_gadgets, top, &todo)?;
        fault::at(FaultPoint::MapStepped);
        return Ok(MapEnding::Release);
    }
    let mut steps: Vec<ChainStep> =
        todo.iter().map(|(_, s)| ChainStep::Syscall(s.attach())).collect();
    steps.extend(hold_steps(plan));
    let chain = Chain::new(stopped.saved(), &steps, chain_gadgets, top);
    Ok(MapEnding::Launch(Box::new(chain)))
}

/// Maps the segments without a chain, because the target's code has no `syscall; ret`.
fn map_bare(
    stopped: &mut Stopped,
    plan: &AttachPlan,
    instruction: u64,
    todo: &[(&str, &SharedSegment)],
) -> Result<MapEnding, InjectError> {
    refuse_hold(plan)?;
    for (name, segment) in todo {
        let got = stopped.run_bare_call(instruction, &segment.attach())?;
        attached(name, segment, got)?;
    }
    Ok(MapEnding::Release)
}

fn map_stepwise(
    stopped: &mut Stopped,
    chain_gadgets: ChainGadgets,
    top: u64,
    todo: &[(&str, &SharedSegment)],
) -> Result<(), InjectError> {
    let steps: Vec<ChainStep> = todo.iter().map(|(_, s)| ChainStep::Syscall(s.attach())).collect();
    let chain = Chain::new(stopped.saved(), &steps, chain_gadgets, top);
    let results = stopped.run_stepwise(&chain, &steps)?;
    for ((name, segment), got) in todo.iter().zip(results) {
        attached(name, segment, got)?;
    }
    Ok(())
}

fn attached(name: &str, segment: &SharedSegment, got: i64) -> Result<(), InjectError> {
    if got as u64 == segment.avma {
        return Ok(());
    }
    let errno = i32::try_from(-got).unwrap_or(0);
    Err(InjectError::MapFailed { segment: name.to_owned(), errno })
}

fn hold_steps(plan: &AttachPlan) -> Vec<ChainStep> {
    let Some(fd) = plan.hold_fd else { return Vec::new() };
    let buffer = plan.data.avma + HOLD_BYTE;
    vec![
        ChainStep::Syscall(Syscall::new(libc::SYS_read, &[fd as u64, buffer, 1])),
        ChainStep::Syscall(Syscall::new(libc::SYS_close, &[fd as u64])),
    ]
}

fn refuse_hold(plan: &AttachPlan) -> Result<(), InjectError> {
    match plan.hold_fd {
        None => Ok(()),
        Some(_) => Err(InjectError::BadPlan {
            reason: "this program cannot be held at its start; attach to it by pid".to_owned(),
        }),
    }
}

/// Waits until the kernel shows the mappings: the request alone proves nothing.
fn await_maps(
    plan: &AttachPlan,
    gadgets: Gadgets,
    used: &UsedThread,
    before: &[Mapping],
) -> Result<(), InjectError> {
    let since = Instant::now();
    loop {
        let mappings = identity::check(plan.pid, plan.start_time)
            .and_then(|()| read_mappings(plan.pid))
            .map_err(|error| used.abort(plan, error))?;
        if stack_end(&mappings) != stack_end(before) {
            return Err(InjectError::Executed);
        }
        let missing: Vec<_> =
            plan.segments().into_iter().filter(|(_, s)| !s.is_in(&mappings)).collect();
        let Some((name, segment)) = missing.first() else { return Ok(()) };
        if used.is_overdue(since, MAPPED_MAX) {
            if used.withdraw(plan)? {
                return Err(InjectError::EntryTimedOut);
            }
            let mappings = read_mappings(plan.pid)?;
            if segment.is_in(&mappings) {
                // The segment was mapped while the thread was withdrawn.
                continue;
            }
            let errno = diagnose(plan, gadgets, segment, &mappings)?;
            return Err(InjectError::MapFailed { segment: (*name).to_owned(), errno });
        }
        watchdog::sleep(Duration::from_micros(100));
    }
}

/// Returns the end of the main thread's stack. It is fixed while a program runs, and different in
/// the next program.
fn stack_end(mappings: &[Mapping]) -> Option<u64> {
    mappings.iter().find(|mapping| mapping.path == "[stack]").map(|mapping| mapping.end)
}

/// Finds out why a mapping failed. A launched chain keeps no results, so one more call is stepped.
fn diagnose(
    plan: &AttachPlan,
    gadgets: Gadgets,
    segment: &SharedSegment,
    mappings: &[Mapping],
) -> Result<i32, InjectError> {
    let errno = std::sync::atomic::AtomicI32::new(0);
    let try_again = |mut stopped: Stopped| {
        let tid = stopped.tid();
        let gadgets = gadgets.confirm(&stopped)?;
        stopped.prepare()?;
        let outcome = stopped.run_bare_call(gadgets.syscall, &segment.attach());
        let got = outcome.unwrap_or(0);
        // Relaxed: the thread that joins this one reads it.
        errno.store(i32::try_from(-got).unwrap_or(0).max(0), Ordering::Relaxed);
        Ok(UsedThread { tid, stopped: stopped.release()?, bare_call: true, launched: None })
    };
    match with_a_thread(plan, mappings, &try_again) {
        Err(InjectError::Executed) => Err(InjectError::Executed),
        // If no thread can be stepped, the reason stays unknown.
        _ => Ok(errno.into_inner()),
    }
}
