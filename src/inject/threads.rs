//! Which thread of the target bears an injection best, and whether its stack may be written.

use super::arch;
use super::stop::Stopped;
use crate::proc::{self, Activity, Mapping};

/// Threads looked at before the best of them is taken.
const LOOKED_AT_MAX: usize = 256;
/// Threads under filters that are looked at before all are taken for such.
const FILTERED_MAX: usize = 32;
/// Threads tried before the attach is given up.
const TRIED_MAX: usize = 8;
/// Bytes that a chain and the signal frames under it may need on the main thread's stack.
const MAIN_STACK_ROOM: u64 = 24 << 10;
/// Bytes below the stack pointer that make a thread's stack roomy.
const THREAD_STACK_ROOM: u64 = 64 << 10;
/// Rank of a running thread, between those asleep in restartable and in broken calls.
const RANK_RUNNING: u8 = 1;

/// How little a thread bears an injection; the least is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_stuck: bool,
    has_restart_block: bool,
    is_narrow: bool,
    has_children: bool,
    sleep: u8,
    /// It goes before better ones for being under no seccomp filter.
    is_free: bool,
}

impl Rank {
    /// Why it is this thread, in words.
    fn why(self) -> &'static str {
        match self {
            Rank { is_stuck: true, .. } => "it waits inside the kernel, as all others do",
            Rank { is_free: true, .. } => "it is under no seccomp filter, as better ones are",
            Rank { has_restart_block: true, .. } => {
                "it sleeps with a time limit, which is kept; no other sleeps without"
            }
            Rank { is_narrow: true, .. } => {
                "its stack may not be written, as that of no other: one call is made with nothing \
                 behind it"
            }
            Rank { has_children: true, .. } => "it has children, as all others have",
            Rank { sleep: 0, .. } => "it sleeps in a call that the kernel restarts unseen",
            Rank { sleep: RANK_RUNNING, .. } => "it runs, and none sleeps in a better call",
            Rank { .. } => "it sleeps in a call that is issued again",
        }
    }
}

/// The thread has children whose ends the process does not want to hear of. While it is traced it does:
/// that wakes other threads, and ends their calls.
pub(super) fn has_ignored_children(pid: i32, tid: i32) -> bool {
    proc::has_children(pid, tid) && ignores_children(pid, tid)
}

fn ignores_children(pid: i32, tid: i32) -> bool {
    const CHILD: u64 = 1 << (libc::SIGCHLD - 1);
    proc::task_status(pid, tid).is_ok_and(|status| status.unseen() & CHILD != 0)
}

/// The thread that an attach would stop first, if it were now, and why this one.
pub fn first_choice(pid: i32, mappings: &[Mapping]) -> Option<(i32, &'static str)> {
    ranked(pid, mappings).first().map(|(rank, tid)| (*tid, rank.why()))
}

/// Threads of a process, the best first.
pub(super) fn candidates(pid: i32, mappings: &[Mapping]) -> Vec<i32> {
    ranked(pid, mappings).into_iter().map(|(_, tid)| tid).take(TRIED_MAX).collect()
}

/// A thread asleep in a restartable call is inside no restartable sequence, and nobody waits for it.
/// One with a restart block comes last, as it must be walked; one with children is best left alone. Those
/// that will not stop are left out unless there are no others. Before all of them comes one that is under
/// no seccomp filter: of a filter it is known what it does to the calls that were judged, or not even that.
fn ranked(pid: i32, mappings: &[Mapping]) -> Vec<(Rank, i32)> {
    let mut ranked = Vec::new();
    let mut best = 0;
    for tid in proc::tasks(pid).unwrap_or_default().into_iter().take(LOOKED_AT_MAX) {
        let Ok(stat) = proc::task_stat(pid, tid) else { continue };
        if proc::has_ended(stat.state) {
            continue;
        }
        let activity = proc::task_activity(pid, tid);
        let (sleep, is_roomy) = match activity {
            Ok(Activity::Syscall { number, args, sp, .. }) => {
                (arch::sleep_rank(number, &args), may_be_roomy(mappings, sp))
            }
            _ => (RANK_RUNNING, true),
        };
        // Whoever waits for a child has one, though that may have ended since.
        let waits_for_child = matches!(activity, Ok(Activity::Syscall { number, .. })
            if [libc::SYS_wait4, libc::SYS_waitid].contains(&(number as i64)));
        let rank = Rank {
            is_stuck: stat.state == 'D',
            has_restart_block: sleep == arch::RANK_RESTART_BLOCK,
            is_narrow: !is_roomy,
            has_children: (waits_for_child || proc::has_children(pid, tid))
                && ignores_children(pid, tid),
            sleep,
            is_free: false,
        };
        ranked.push((rank, tid));
        if sleep == 0 && is_roomy && !rank.is_stuck && !rank.has_children {
            best += 1;
            if best == FILTERED_MAX || is_free(pid, tid) {
                break;
            }
        }
    }
    ranked.sort_unstable();
    // One look, where there are no filters. None of those that are worse than any filter.
    let is_better = |(rank, tid): &(Rank, i32)| {
        !rank.is_stuck && !rank.is_narrow && !rank.has_children && is_free(pid, *tid)
    };
    let free = ranked.iter().take(FILTERED_MAX).position(is_better);
    if let Some(at @ 1..) = free {
        ranked[at].0.is_free = true;
        ranked[..=at].rotate_right(1);
    }
    ranked
}

/// The thread is under no filter.
pub(super) fn is_free(pid: i32, tid: i32) -> bool {
    proc::task_status(pid, tid).is_ok_and(|status| status.seccomp == 0)
}

/// The top of the free part of a thread's stack, if it may be written there.
///
/// "Below the red zone is free" holds for the stacks that the C library and the kernel make, not
/// for those of Go and of fibers, which lie close together in ordinary memory. A stack is taken
/// for the C library's if the thread's control block lies above the stack pointer in the same
/// mapping, which has a guard directly below. Go keeps its threads' words in its heap too, where
/// its stacks are; but only a C library's control block starts with its own address, as the
/// processor's ABI wants it.
pub(super) fn stack_top(stopped: &Stopped, mappings: &[Mapping]) -> Option<u64> {
    let registers = &stopped.saved.registers;
    let sp = registers.rsp;
    let index = containing(mappings, sp)?;
    let mapping = &mappings[index];
    let room = sp - mapping.start;
    let good = if mapping.path == "[stack]" {
        room >= MAIN_STACK_ROOM
    } else {
        let guarded = index.checked_sub(1).map(|below| &mappings[below]).is_some_and(|below| {
            below.end == mapping.start && !below.read && !below.write && !below.exec
        });
        let control_block = registers.fs_base > sp && registers.fs_base < mapping.end;
        mapping.write
            && guarded
            && control_block
            && room >= THREAD_STACK_ROOM
            && stopped.holds(registers.fs_base, &registers.fs_base.to_ne_bytes())
    };
    good.then(|| sp - arch::RED_ZONE)
}

fn may_be_roomy(mappings: &[Mapping], sp: u64) -> bool {
    containing(mappings, sp).is_some_and(|index| {
        let mapping = &mappings[index];
        let room = sp - mapping.start;
        let wanted = if mapping.path == "[stack]" { MAIN_STACK_ROOM } else { THREAD_STACK_ROOM };
        mapping.write && room >= wanted
    })
}

pub(super) fn containing(mappings: &[Mapping], address: u64) -> Option<usize> {
    let index = mappings.partition_point(|mapping| mapping.end <= address);
    (mappings.get(index)?.start <= address).then_some(index)
}
