//! The attach: one stop that maps, a look from outside, one stop that starts the agent.
//!
//! The two are never one chain: a map that failed would be jumped into.

use std::time::{Duration, Instant};

use traceprof_abi::layout::Operation;
use traceprof_abi::sync::Ordering;

use super::chain::{Call, Chain, Landing, Step};
use super::enter::{self, Room};
use super::error::InjectError;
use super::gadget::Gadgets;
use super::identity::Execution;
use super::plan::{AttachPlan, AttachReport, Segment};
use super::segment::{Attached, HOLD_BYTE};
use super::stop::Stopped;
use super::worker::{Used, read_mappings, with_a_thread};
use super::{cure, identity, threads};
use crate::fault::{self, Point};
use crate::proc::Mapping;

/// Longest wait for the maps to appear.
const MAPPED_MAX: Duration = Duration::from_secs(1);

/// Maps the segments and starts the agent. After an error the target is as it was.
pub(super) fn attach(
    plan: &AttachPlan,
    data: &Attached,
    held: Option<Stopped>,
) -> Result<AttachReport, InjectError> {
    match maps_and_starts(plan, data, held) {
        Ok(report) => Ok(report),
        Err(InjectError::Executed) => Err(InjectError::Executed),
        // Whatever failed, it failed because the target ended.
        Err(_) if identity::check(plan.pid, plan.start_time).is_err() => Err(InjectError::Gone),
        Err(error) => match cure::cure(plan, data, cure::PATIENCE) {
            Ok(report) => Err(match report.residue {
                None if identity::check(plan.pid, plan.start_time).is_err() => InjectError::Gone,
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

fn maps_and_starts(
    plan: &AttachPlan,
    data: &Attached,
    held: Option<Stopped>,
) -> Result<AttachReport, InjectError> {
    let execution = Execution::of(plan.pid);
    let mappings = read_mappings(plan.pid)?;
    let Some(gadgets) = Gadgets::find(plan.pid, execution, &mappings) else {
        // Of one that was killed meanwhile nothing can be read; soon it is seen to be gone.
        std::thread::sleep(Duration::from_millis(20));
        read_mappings(plan.pid)?;
        identity::check(plan.pid, plan.start_time)?;
        return Err(InjectError::BadPlan {
            reason: "the target's code holds no system call".to_owned(),
        });
    };
    let map = |stopped: Stopped| map_with(stopped, plan, gadgets, &mappings);
    let first = match held {
        Some(stopped) => map(stopped)?,
        None => with_a_thread(plan, &mappings, &map)?,
    };
    await_maps(plan, gadgets, &first, &mappings)?;
    fault::at(Point::MapSeen);
    let second = enter::enter(plan, data, Operation::Install, Room::Fresh)?;
    let stops_ns = [first.stopped, second].map(|stopped| stopped.as_nanos() as u64).to_vec();
    Ok(AttachReport { stops_ns, naked: first.naked, tid: first.tid })
}

/// How the mapping stop ends.
enum Ending {
    Launch(Box<Chain>),
    Release,
}

fn map_with(
    mut stopped: Stopped,
    plan: &AttachPlan,
    gadgets: Gadgets,
    mappings: &[Mapping],
) -> Result<Used, InjectError> {
    let tid = stopped.tid();
    let mut naked = false;
    Ok(match map_steps(&mut stopped, plan, gadgets, mappings, &mut naked)? {
        Ending::Launch(chain) => {
            let launched = stopped.launch(*chain)?;
            fault::at(Point::MapLaunched);
            Used::launched(launched, naked)
        }
        Ending::Release => Used { tid, stopped: stopped.release()?, naked, launched: None },
    })
}

fn map_steps(
    stopped: &mut Stopped,
    plan: &AttachPlan,
    gadgets: Gadgets,
    mappings: &[Mapping],
    naked: &mut bool,
) -> Result<Ending, InjectError> {
    let gadgets = gadgets.confirm(stopped).ok_or(InjectError::Executed)?;
    stopped.prepare()?;
    fault::at(Point::MapStopped);
    let launchable = stopped.may_be_launched();
    let mut todo: Vec<(&str, &Segment)> = plan.segments().to_vec();
    let top = match threads::stack_top(stopped, mappings) {
        Some(top) if gadgets.call.is_some() => top,
        _ => {
            *naked = true;
            let call = plan.data.attach();
            let got = stopped.call_bare(gadgets.syscall, &call)?;
            attached("data", &plan.data, got)?;
            fault::at(Point::MapNaked);
            todo.retain(|(name, _)| *name != "data");
            plan.first_top()
        }
    };
    let Some(gadget) = gadgets.call else {
        return map_bare(stopped, plan, gadgets.syscall, &todo);
    };
    let restorer = match gadgets.restorer {
        Some(restorer) => restorer,
        None => {
            // The slots name a restorer in the segment that this very step attaches.
            let landing = Landing { gadget, restorer: plan.restorer_avma };
            walk_maps(stopped, landing, top, &[("code", &plan.code)])?;
            fault::at(Point::MapOwnRestorer);
            todo.retain(|(name, _)| *name != "code");
            plan.restorer_avma
        }
    };
    let landing = Landing { gadget, restorer };
    if !launchable {
        refuse_hold(plan)?;
        walk_maps(stopped, landing, top, &todo)?;
        fault::at(Point::MapLed);
        return Ok(Ending::Release);
    }
    let mut steps: Vec<Step> = todo.iter().map(|(_, s)| Step::Call(s.attach())).collect();
    steps.extend(hold_steps(plan));
    let chain = Chain::new(&stopped.saved, &steps, landing, top);
    Ok(Ending::Launch(Box::new(chain)))
}

/// Everything without a chain: the target's code has no `syscall; ret`.
fn map_bare(
    stopped: &mut Stopped,
    plan: &AttachPlan,
    instruction: u64,
    todo: &[(&str, &Segment)],
) -> Result<Ending, InjectError> {
    refuse_hold(plan)?;
    for (name, segment) in todo {
        let got = stopped.call_bare(instruction, &segment.attach())?;
        attached(name, segment, got)?;
    }
    Ok(Ending::Release)
}

fn walk_maps(
    stopped: &mut Stopped,
    landing: Landing,
    top: u64,
    todo: &[(&str, &Segment)],
) -> Result<(), InjectError> {
    let steps: Vec<Step> = todo.iter().map(|(_, s)| Step::Call(s.attach())).collect();
    let chain = Chain::new(&stopped.saved, &steps, landing, top);
    let results = stopped.walk(&chain, &steps)?;
    for ((name, segment), got) in todo.iter().zip(results) {
        attached(name, segment, got)?;
    }
    Ok(())
}

fn attached(name: &str, segment: &Segment, got: i64) -> Result<(), InjectError> {
    if got as u64 == segment.avma {
        return Ok(());
    }
    let errno = i32::try_from(-got).unwrap_or(0);
    Err(InjectError::MapFailed { segment: name.to_owned(), errno })
}

fn hold_steps(plan: &AttachPlan) -> Vec<Step> {
    let Some(fd) = plan.hold_fd else { return Vec::new() };
    let buffer = plan.data.avma + HOLD_BYTE;
    vec![
        Step::Call(Call::new(libc::SYS_read, &[fd as u64, buffer, 1])),
        Step::Call(Call::new(libc::SYS_close, &[fd as u64])),
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

/// Success is what the kernel shows, not what we asked for.
fn await_maps(
    plan: &AttachPlan,
    gadgets: Gadgets,
    used: &Used,
    before: &[Mapping],
) -> Result<(), InjectError> {
    let since = Instant::now();
    loop {
        identity::check(plan.pid, plan.start_time)?;
        let mappings = read_mappings(plan.pid)?;
        if stack_end(&mappings) != stack_end(before) {
            return Err(InjectError::Executed);
        }
        let missing: Vec<_> =
            plan.segments().into_iter().filter(|(_, s)| !s.is_in(&mappings)).collect();
        let Some((name, segment)) = missing.first() else { return Ok(()) };
        if used.is_overdue(since, MAPPED_MAX) {
            if used.recall(plan)? {
                return Err(InjectError::EntrySilent);
            }
            let mappings = read_mappings(plan.pid)?;
            if segment.is_in(&mappings) {
                // It was done while the recall waited.
                continue;
            }
            let errno = diagnose(plan, gadgets, segment, &mappings)?;
            return Err(InjectError::MapFailed { segment: (*name).to_owned(), errno });
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Where the first thread's stack ends: the same for a program's whole life, and elsewhere in the
/// next one.
fn stack_end(mappings: &[Mapping]) -> Option<u64> {
    mappings.iter().find(|mapping| mapping.path == "[stack]").map(|mapping| mapping.end)
}

/// A launched chain keeps no results; one call more, led through, tells why.
fn diagnose(
    plan: &AttachPlan,
    gadgets: Gadgets,
    segment: &Segment,
    mappings: &[Mapping],
) -> Result<i32, InjectError> {
    let errno = std::sync::atomic::AtomicI32::new(0);
    let try_again = |mut stopped: Stopped| {
        let tid = stopped.tid();
        let outcome = match gadgets.confirm(&stopped) {
            Some(gadgets) => {
                stopped.prepare()?;
                stopped.call_bare(gadgets.syscall, &segment.attach())
            }
            None => return Err(InjectError::Executed),
        };
        let got = outcome.unwrap_or(0);
        // Relaxed: read by the thread that joins this one.
        errno.store(i32::try_from(-got).unwrap_or(0).max(0), Ordering::Relaxed);
        Ok(Used { tid, stopped: stopped.release()?, naked: true, launched: None })
    };
    match with_a_thread(plan, mappings, &try_again) {
        Err(InjectError::Executed) => Err(InjectError::Executed),
        // Without an answer the reason stays unknown.
        _ => Ok(errno.into_inner()),
    }
}
