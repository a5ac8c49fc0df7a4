//! The choice of the thread that an injection disturbs least.

use super::stack::may_be_roomy;
use crate::inject::arch;
use crate::inject::error::InjectError;
use crate::proc::{self, Mapping, TaskActivity};

/// Most threads that are ranked before the best of them is chosen.
const RANKED_MAX: usize = 256;
/// Most good threads under filters that are ranked before all are assumed to have a filter.
const FILTERED_MAX: usize = 32;
/// Most threads that an attach tries before it fails.
const TRIED_MAX: usize = 8;
/// Rank of a running thread, between threads asleep in restartable calls and in broken calls.
const RANK_RUNNING: u8 = 1;

/// The degree to which an injection disturbs a thread; the smallest rank is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ThreadRank {
    is_uninterruptible: bool,
    has_restart_block: bool,
    is_narrow: bool,
    has_children: bool,
    sleep: u8,
    /// Whether the thread is preferred to better ones because no seccomp filter applies to it.
    is_unfiltered: bool,
}

impl ThreadRank {
    /// Returns the reason for this choice, for the user.
    fn why(self) -> &'static str {
        match self {
            ThreadRank { is_uninterruptible: true, .. } => {
                "it is in uninterruptible sleep, like all other threads"
            }
            ThreadRank { is_unfiltered: true, .. } => {
                "no seccomp filter applies to it, unlike to better candidates"
            }
            ThreadRank { has_restart_block: true, .. } => {
                "it sleeps with a timeout, which the attach preserves; no thread sleeps without one"
            }
            ThreadRank { is_narrow: true, .. } => {
                "no thread has a stack that may be written, so this one makes one bare system call"
            }
            ThreadRank { has_children: true, .. } => {
                "it has child processes, like all other threads"
            }
            ThreadRank { sleep: 0, .. } => "it sleeps in a call that the kernel restarts by itself",
            ThreadRank { sleep: RANK_RUNNING, .. } => {
                "it is running, and no thread sleeps in a better call"
            }
            ThreadRank { .. } => "it sleeps in a call that must be issued again",
        }
    }
}

/// Whether the thread has children whose exits the process ignores. While the thread is traced,
/// those exits wake other threads and end their calls.
pub(in crate::inject) fn has_ignored_children(pid: i32, tid: i32) -> bool {
    proc::has_children(pid, tid) && ignores_children(pid, tid)
}

fn ignores_children(pid: i32, tid: i32) -> bool {
    const CHILD: u64 = 1 << (libc::SIGCHLD - 1);
    proc::task_status(pid, tid).is_ok_and(|status| status.unseen() & CHILD != 0)
}

/// Returns the thread that an attach would stop first, and the reason.
pub fn first_choice(pid: i32, mappings: &[Mapping]) -> Option<(i32, &'static str)> {
    ranked(pid, mappings).ok()?.first().map(|(rank, tid)| (*tid, rank.why()))
}

/// Returns threads of a process, the best first.
pub(in crate::inject) fn candidates(
    pid: i32,
    mappings: &[Mapping],
) -> Result<Vec<i32>, InjectError> {
    let ranked = ranked(pid, mappings)?.into_iter();
    Ok(ranked.map(|(_, tid)| tid).take(TRIED_MAX).collect())
}

/// Ranks the threads of a process.
///
/// A thread asleep in a restartable call is inside no restartable sequence, and no other thread
/// waits for it. A thread with a restart block comes late, as it must be stepped. A thread with
/// children should be left alone. Threads that will not stop are used only if there are no others.
/// A thread without seccomp filters is preferred to all others, because filters may be newer than
/// their check.
fn ranked(pid: i32, mappings: &[Mapping]) -> Result<Vec<(ThreadRank, i32)>, InjectError> {
    let mut ranked = Vec::new();
    let mut best = 0;
    let reading = |error| InjectError::reading("/proc/PID/task", &error);
    for tid in proc::tasks(pid).map_err(reading)?.into_iter().take(RANKED_MAX) {
        let Ok(stat) = proc::task_stat(pid, tid) else { continue };
        if proc::has_ended(stat.state) {
            continue;
        }
        let activity = proc::task_activity(pid, tid);
        let (sleep, is_roomy) = match activity {
            Ok(TaskActivity::Syscall { number, args, sp, .. }) => {
                (arch::sleep_rank(number, &args), may_be_roomy(mappings, sp))
            }
            _ => (RANK_RUNNING, true),
        };
        // A thread that waits for a child has one, though the child may have exited since.
        let waits_for_child = matches!(activity, Ok(TaskActivity::Syscall { number, .. })
            if [libc::SYS_wait4, libc::SYS_waitid].contains(&(number as i64)));
        let rank = ThreadRank {
            is_uninterruptible: stat.state == 'D',
            has_restart_block: sleep == arch::RANK_RESTART_BLOCK,
            is_narrow: !is_roomy,
            has_children: (waits_for_child || proc::has_children(pid, tid))
                && ignores_children(pid, tid),
            sleep,
            is_unfiltered: false,
        };
        ranked.push((rank, tid));
        if sleep == 0 && is_roomy && !rank.is_uninterruptible && !rank.has_children {
            best += 1;
            if best == FILTERED_MAX || is_unfiltered(pid, tid) {
                break;
            }
        }
    }
    ranked.sort_unstable();
    // One check is enough where no thread has a filter. The worst ranks are worse than any filter.
    let is_better = |(rank, tid): &(ThreadRank, i32)| {
        !rank.is_uninterruptible
            && !rank.is_narrow
            && !rank.has_children
            && is_unfiltered(pid, *tid)
    };
    let free = ranked.iter().take(FILTERED_MAX).position(is_better);
    if let Some(at @ 1..) = free {
        ranked[at].0.is_unfiltered = true;
        ranked[..=at].rotate_right(1);
    }
    Ok(ranked)
}

/// Whether no seccomp filter applies to the thread.
pub(in crate::inject) fn is_unfiltered(pid: i32, tid: i32) -> bool {
    proc::task_status(pid, tid).is_ok_and(|status| status.seccomp == 0)
}
