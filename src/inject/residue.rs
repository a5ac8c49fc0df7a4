//! What a guardian that was killed together with its recorder left in a target.
//!
//! It is inert, but the agent's handlers are still installed, its segments are mapped, and threads
//! that have been asleep since have their timers. Everything the cure needs to know stands in the
//! target's maps and in the data segment.

use traceprof_abi::layout::{self, MAGIC};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::error::InjectError;
use super::plan::{Access, AttachPlan, DetachReport, Segment};
use super::segment::{self, Attached};
use super::{cure, image};
use crate::fault::{self, Point};
use crate::proc::{self, Mapping};

/// Id of a segment that is not mapped.
const NO_SEGMENT: i32 = -1;
const PAGE: u64 = 4096;

/// The plans of the agents that were left in this process, whole or in part, and their data. The
/// caller has the claim on the process, so nobody else is about to take them away.
///
/// The data segment is the first to come and the last to go, so that a part that is left can be
/// known by it.
pub(super) fn find(pid: i32, start_time: u64) -> Vec<(AttachPlan, Attached)> {
    let Ok(mappings) = proc::mappings(pid) else { return Vec::new() };
    let Ok(status) = proc::status(pid) else { return Vec::new() };
    let candidates = mappings.iter().filter(|mapping| is_segment(mapping));
    let left = candidates.filter_map(|data| {
        let base = data.start.checked_sub(layout::DATA_DISTANCE)?;
        let plan = plan(pid, start_time, base, &mappings)?;
        let data = Attached::new(plan.data.shm_id).ok()?;
        let control = data.control();
        // Relaxed: written before the agent was mapped, by a recorder that is gone. A forked child
        // has its parent's agent, and the parent may be being recorded.
        let is_own = control.magic.load(Ordering::Relaxed) == MAGIC
            && control.version.load(Ordering::Relaxed) == traceprof_abi::ABI_VERSION
            && control.pid.load(Ordering::Relaxed) == status.inner_tgid as u32;
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let restorers = control.signals.iter().map(|action| load(&action.our_action[2]));
        // Killed before the agent was started, it never said where its entry and its restorer are.
        let told = |avma: Option<u64>| avma.filter(|&it| it != 0).unwrap_or(plan.code.avma);
        let restorer_avma = told(restorers.max());
        let entry_avma = told(Some(load(&control.entry_avma)));
        let signals =
            control.signals.each_ref().map(|action| action.signal.load(Ordering::Relaxed) as i32);
        let plan = AttachPlan { entry_avma, restorer_avma, signals, ..plan };
        let is_sane = signals.iter().all(|signal| (0..=64).contains(signal));
        (is_own && is_sane && plan.check().is_ok()).then_some((plan, data))
    });
    let mut left: Vec<_> = left.collect();
    // A forked child's, whose data name its parent, are handlers that are installed.
    let has_data = |code: &Mapping| {
        mappings.iter().any(|it| it.start == code.start + layout::DATA_DISTANCE && is_segment(it))
    };
    let is_alone = |it: &&Mapping| is_segment(it) && it.exec && !it.write && !has_data(it);
    for code in mappings.iter().filter(is_alone).filter(|code| is_agent(pid, code)) {
        if let Ok(data) = Attached::blank() {
            left.push((plan_of_code(pid, start_time, code.start, &mappings), data));
        }
    }
    left
}

/// In a program without a restorer the code comes first and goes before the data, which may then be
/// missing. It is known by its bytes.
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
    let data = Segment { len: layout::DATA_LEN, ..parts.data };
    AttachPlan { entry_avma: base, restorer_avma: base, data, ..parts }
}

/// Takes away what was left in this process, and segments that never got into one; a report for each agent. The caller has the claim on the
/// process.
pub(super) fn remove(pid: i32, start_time: u64) -> Result<Vec<DetachReport>, InjectError> {
    segment::remove_abandoned();
    let removed = find(pid, start_time).into_iter().map(|(left, data)| {
        fault::at(Point::RestFound);
        let report = cure::cure(&left, &data, cure::PATIENCE)?;
        fault::at(Point::RestRemoved);
        Ok(report)
    });
    removed.collect()
}

/// A System V segment, as the agent's are.
pub(super) fn is_segment(mapping: &Mapping) -> bool {
    mapping.shared && mapping.deleted && mapping.path.to_string_lossy().starts_with("/SYSV")
}

fn plan(pid: i32, start_time: u64, base: u64, mappings: &[Mapping]) -> Option<AttachPlan> {
    let parts = parts(pid, start_time, base, mappings);
    // What is too short for a control block must not be read as one.
    (parts.data.len >= layout::INJECT_OFFSET + layout::INJECT_LEN).then_some(parts)
}

fn parts(pid: i32, start_time: u64, base: u64, mappings: &[Mapping]) -> AttachPlan {
    let segment = |distance: u64, access: Access| {
        let avma = base + distance;
        let mapping = mappings.iter().find(|it| it.start == avma && is_segment(it));
        // One that is not there has an id that none has.
        let (id, len) = mapping.map_or((u64::MAX, PAGE), |it| (it.inode, it.end - it.start));
        Segment { shm_id: i32::try_from(id).unwrap_or(NO_SEGMENT), avma, len, access }
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
