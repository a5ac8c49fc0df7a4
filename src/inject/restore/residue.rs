//! The residue in a target after its recorder and its guardian were both killed.
//!
//! The agent is inert, but its handlers are installed and its segments are mapped. Threads that
//! have slept since then still have their timers. The target's maps and the data segment contain
//! all that the restore needs to know.

use std::time::{Duration, Instant};

use traceprof_abi::layout::{self, MAGIC};
use traceprof_abi::sync::{AtomicU64, Ordering};

use crate::fault::{self, FaultPoint};
use crate::inject::abandoned_segments;
use crate::inject::data_segment::AttachedData;
use crate::inject::error::InjectError;
use crate::inject::image;
use crate::inject::plan::{Access, AttachPlan, SharedSegment};
use crate::inject::refusal::Refusal;
use crate::inject::report::DetachReport;
use crate::proc::{self, Mapping};

/// The id of a segment that is not mapped.
const NO_SEGMENT: i32 = -1;
const PAGE: u64 = 4096;
/// How long to wait for a guardian that was killed: its memory may outlive it for a moment, while
/// others read about it.
const GUARDIAN_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between attempts.
const RETRY: Duration = Duration::from_millis(20);

/// Returns the plans of complete or partial agents in this process, with their data. The caller
/// holds the claim on the process, so nothing else removes them.
///
/// The data segment is attached first and detached last, so it identifies a partial agent.
///
/// # Errors
/// `Gone`, or that the process could not be read: then it may have an agent.
pub(in crate::inject) fn find(
    pid: i32,
    start_time: u64,
) -> Result<Vec<(AttachPlan, AttachedData)>, InjectError> {
    let reading = |error| InjectError::reading("/proc/PID", &error);
    let mappings = proc::mappings(pid).map_err(reading)?;
    let status = proc::status(pid).map_err(reading)?;
    let candidates = mappings.iter().filter(|mapping| mapping.is_system_v_segment());
    let left = candidates.filter_map(|data| {
        let base = data.start.checked_sub(layout::DATA_DISTANCE)?;
        let plan = plan(pid, start_time, base, &mappings)?;
        let data = AttachedData::new(plan.data.shm_id).ok()?;
        let control = data.control();
        // Relaxed: written before the agent was mapped, by a recorder that has exited. A forked
        // child has its parent's agent, and the parent may still be recorded.
        let is_own = control.magic.load(Ordering::Relaxed) == MAGIC
            && control.version.load(Ordering::Relaxed) == traceprof_abi::ABI_VERSION
            && control.pid.load(Ordering::Relaxed) == status.inner_tgid as u32;
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let restorers = control.signals.iter().map(|action| load(&action.our_action[2]));
        // If the recorder was killed before the agent started, the addresses of the entry and the
        // restorer are unknown.
        let or_start_of_code =
            |avma: Option<u64>| avma.filter(|&it| it != 0).unwrap_or(plan.code.avma);
        let restorer_avma = or_start_of_code(restorers.max());
        let entry_avma = or_start_of_code(Some(load(&control.entry_avma)));
        let signals =
            control.signals.each_ref().map(|action| action.signal.load(Ordering::Relaxed) as i32);
        let plan = AttachPlan { entry_avma, restorer_avma, signals, ..plan };
        let is_sane = signals.iter().all(|signal| (0..=64).contains(signal));
        (is_own && is_sane && plan.check().is_ok()).then_some((plan, data))
    });
    let mut left: Vec<_> = left.collect();
    // In a forked child, the data name the parent, but the handlers are installed.
    let has_data = |code: &Mapping| {
        mappings
            .iter()
            .any(|it| it.start == code.start + layout::DATA_DISTANCE && it.is_system_v_segment())
    };
    let is_alone =
        |it: &&Mapping| it.is_system_v_segment() && it.exec && !it.write && !has_data(it);
    for code in mappings.iter().filter(is_alone).filter(|code| is_agent(pid, code)) {
        if let Ok(data) = AttachedData::blank() {
            left.push((plan_of_code(pid, start_time, code.start, &mappings), data));
        }
    }
    Ok(left)
}

/// Whether a mapping without its data is our code. In a program without a restorer, the code is
/// attached before the data and detached after it. Then the bytes of the code identify it.
fn is_agent(pid: i32, code: &Mapping) -> bool {
    if code.end - code.start != layout::CODE_LEN {
        return false;
    }
    let mut image = vec![0; layout::CODE_LEN as usize];
    image::lay_out(&mut image, code.start).is_ok()
        && proc::read_memory(pid, code.start, image.len()).is_ok_and(|bytes| bytes == image)
}

fn plan_of_code(pid: i32, start_time: u64, base: u64, mappings: &[Mapping]) -> AttachPlan {
    let parts = parts(pid, start_time, base, mappings);
    let data = SharedSegment { len: layout::DATA_LEN, ..parts.data };
    AttachPlan { entry_avma: base, restorer_avma: base, data, ..parts }
}

/// Removes the residue in this process, and segments that no process attached. Returns a report for
/// each agent. The caller holds the claim on the process.
///
/// # Errors
/// Those of a restore, and a refusal while a recorder that the claim does not exclude uses the
/// agent.
pub(in crate::inject) fn remove(
    pid: i32,
    start_time: u64,
) -> Result<Vec<DetachReport>, InjectError> {
    abandoned_segments::remove_abandoned();
    let left = find(pid, start_time)?;
    let since = Instant::now();
    while let Some((plan, _)) = left.iter().find(|(plan, _)| has_guardian(plan)) {
        if since.elapsed() >= GUARDIAN_PATIENCE {
            let recorder = abandoned_segments::creator(plan.data.shm_id);
            let recorder = recorder.filter(|&pid| proc::status(pid).is_ok());
            return Err(Refusal::AlreadyRecorded { recorder }.into());
        }
        std::thread::sleep(RETRY);
    }
    let removed = left.into_iter().map(|(left, data)| {
        fault::at(FaultPoint::ResidueFound);
        let report = super::restore(&left, &data, super::PATIENCE)?;
        fault::at(FaultPoint::ResidueRemoved);
        Ok(report)
    });
    removed.collect()
}

/// Whether a guardian still has the data of a complete agent attached. The claim excludes only
/// recorders that see the same mount of `/proc`, so the agent may be in use by one in a container.
/// If it were removed then, the next expiry would end the target.
///
/// The recorder, the target and its forked children have the data attached as often as the tables.
/// Guardians have the data only, and the caller has attached it once.
fn has_guardian(plan: &AttachPlan) -> bool {
    let parts = [plan.code.shm_id, plan.tables.shm_id, plan.data.shm_id];
    if parts.contains(&NO_SEGMENT) {
        return false;
    }
    let attached = abandoned_segments::attachments([plan.data.shm_id, plan.tables.shm_id]);
    attached.is_some_and(|[data, tables]| data - 1 > tables)
}

fn plan(pid: i32, start_time: u64, base: u64, mappings: &[Mapping]) -> Option<AttachPlan> {
    let parts = parts(pid, start_time, base, mappings);
    // A segment that is too short for a control block must not be read as one.
    (parts.data.len >= layout::INJECT_OFFSET + layout::INJECT_LEN).then_some(parts)
}

fn parts(pid: i32, start_time: u64, base: u64, mappings: &[Mapping]) -> AttachPlan {
    let segment = |distance: u64, access: Access| {
        let avma = base + distance;
        let mapping = mappings.iter().find(|it| it.start == avma && it.is_system_v_segment());
        // A missing segment gets an id that no segment has.
        let (id, len) = mapping.map_or((u64::MAX, PAGE), |it| (it.inode, it.end - it.start));
        SharedSegment { shm_id: i32::try_from(id).unwrap_or(NO_SEGMENT), avma, len, access }
    };
    AttachPlan {
        pid,
        start_time,
        code: segment(0, Access::ReadExecute),
        tables: segment(layout::TABLES_DISTANCE, Access::Read),
        data: segment(layout::DATA_DISTANCE, Access::ReadWrite),
        entry_avma: 0,
        restorer_avma: 0,
        signals: [0; layout::SIGNALS],
        hold_fd: None,
    }
}
