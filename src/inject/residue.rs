//! What a guardian that was killed together with its recorder left in a target.
//!
//! It is inert, but the agent's handlers are still installed, its segments are mapped, and threads
//! that have been asleep since have their timers. Everything the cure needs to know stands in the
//! target's maps and in the data segment.

use traceprof_abi::layout::{self, MAGIC};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::plan::{Access, AttachPlan, Segment};
use super::segment::Attached;
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
    left.collect()
}

/// A System V segment, as the agent's are.
pub(super) fn is_segment(mapping: &Mapping) -> bool {
    mapping.shared && mapping.deleted && mapping.path.to_string_lossy().starts_with("/SYSV")
}

fn plan(pid: i32, start_time: u64, base: u64, mappings: &[Mapping]) -> Option<AttachPlan> {
    let segment = |distance: u64, access: Access| {
        let avma = base + distance;
        let mapping = mappings.iter().find(|it| it.start == avma && is_segment(it));
        // One that is not there has an id that none has.
        let (id, len) = mapping.map_or((u64::MAX, PAGE), |it| (it.inode, it.end - it.start));
        Segment { shm_id: i32::try_from(id).unwrap_or(NO_SEGMENT), avma, len, access }
    };
    let plan = AttachPlan {
        pid,
        start_time,
        code: segment(0, Access::ReadExecute),
        tables: segment(layout::TABLES_DISTANCE, Access::Read),
        data: segment(layout::DATA_DISTANCE, Access::ReadWrite),
        entry_avma: 0,
        restorer_avma: 0,
        signals: [0; layout::SIGNALS],
        hold_fd: None,
    };
    // What is too short for a control block must not be read as one.
    (plan.data.len >= layout::INJECT_OFFSET + layout::INJECT_LEN).then_some(plan)
}
