//! Threads whose stack has no room for a sampling signal.
//!
//! The kernel writes the state of a thread onto its stack before it calls a signal handler, and
//! ends the program by SIGSEGV if the state does not fit. So a thread with too small a stack gets
//! no signal of ours. A stack is too small if its mapping is, or if the thread is close to the end
//! of the mapping.
//!
//! # Does not
//! - find alternate stacks: nothing shows them to another process.
//! - find a small stack in a larger mapping, as of a fiber, or see a thread come close to the end
//!   of its stack later.
//! - examine threads that start during the recording.

use std::collections::BTreeSet;
use std::time::Duration;

use traceprof_abi::layout::HANDLER_NEED_BYTES;

use crate::inject::{self, CaptureSelection};
use crate::proc::{self, Mapping, TaskActivity};
use crate::record::target::signals::LeftOutThread;

/// Bytes of a signal frame with all of the processor's state but that of AMX, and of the red zone
/// above it.
///
/// The kernel tells the size with AMX, which is 11,952 bytes, even to programs that may not use it.
/// Stacks that are smaller than that are common.
const FRAME_MOST: u64 = 3584 + 128;
/// Bytes that a thread on a small stack itself uses at least now and then.
const USED_LEAST: u64 = 2 << 10;
/// How often a thread that runs is looked at again before it is stopped.
const RECHECKS: usize = 4;
const PAUSE: Duration = Duration::from_millis(1);
/// The longest time for the stops of threads that run.
const STOPPING_MAX: Duration = Duration::from_millis(100);

/// A thread that gets no sampling signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NarrowThread {
    /// The outer thread id.
    pub(crate) tid: i32,
    /// The start time of the thread, since its id may be reused.
    pub(crate) start_time: u64,
    /// The thread's name.
    pub(crate) name: String,
    /// The bytes of its stack below its stack pointer.
    pub(crate) room: u64,
}

impl From<&NarrowThread> for LeftOutThread {
    fn from(thread: &NarrowThread) -> Self {
        Self { tid: thread.tid, start_time: thread.start_time }
    }
}

/// Returns the threads of a process whose stack is too small. A thread that can neither be read nor
/// stopped is not among them.
///
/// `mappings` are those of the process. Threads that run are stopped for a moment if the process
/// has a mapping that may be a small stack.
pub(crate) fn find(pid: i32, mappings: &[Mapping]) -> Vec<NarrowThread> {
    let Ok(start_time) = proc::start_time(pid) else { return Vec::new() };
    let need = need();
    let mut running: BTreeSet<i32> = proc::tasks(pid).unwrap_or_default().into_iter().collect();
    let mut found = Vec::new();
    let mut note = |tid: i32, sp: u64| {
        if let Some(room) = room_of_narrow(mappings, sp, need)
            && let Ok(stat) = proc::task_stat(pid, tid)
        {
            found.push(NarrowThread { tid, start_time: stat.start_time, name: stat.name, room });
        }
    };
    let may_be_small = mappings.windows(2).any(|pair| may_be_small_stack(pair, need));
    let checks = if may_be_small { RECHECKS } else { 1 };
    for check in 0..checks {
        if check > 0 {
            std::thread::sleep(PAUSE);
        }
        running.retain(|tid| match proc::task_activity(pid, *tid) {
            Ok(TaskActivity::Running) => true,
            Ok(TaskActivity::Blocked { sp, .. } | TaskActivity::Syscall { sp, .. }) => {
                note(*tid, sp);
                false
            }
            Err(_) => false,
        });
        if running.is_empty() {
            break;
        }
    }
    if may_be_small && !running.is_empty() {
        let tids: Vec<i32> = running.into_iter().collect();
        let chosen = CaptureSelection { tids: &tids, time_max: STOPPING_MAX };
        // On an error the program has exited; the attach detects that.
        let captured = inject::capture_threads(pid, start_time, mappings, chosen, |_| ());
        for capture in captured.map(|captured| captured.threads).unwrap_or_default() {
            if let Ok(thread) = capture.outcome {
                note(capture.tid, thread.registers.sp);
            }
        }
    }
    found
}

/// Returns whether one of these is this thread.
pub(crate) fn holds(threads: &[NarrowThread], pid: i32, tid: i32) -> bool {
    let start_time = || proc::task_stat(pid, tid).map_or(0, |stat| stat.start_time);
    threads.iter().any(|it| it.tid == tid && it.start_time == start_time())
}

/// Returns the bytes of a thread's stack that a sampling signal needs.
fn need() -> u64 {
    proc::signal_frame_len().map_or(FRAME_MOST, |len| len.min(FRAME_MOST)) + HANDLER_NEED_BYTES
}

/// Returns the bytes below the stack pointer, if the stack is too small.
fn room_of_narrow(mappings: &[Mapping], sp: u64, need: u64) -> Option<u64> {
    let mapping = mappings.get(mappings.partition_point(|mapping| mapping.end <= sp))?;
    let room = sp.checked_sub(mapping.start)?;
    // The main thread's stack grows.
    let is_narrow = mapping.path != "[stack]"
        && (room < need || mapping.end - mapping.start < need + USED_LEAST);
    is_narrow.then_some(room)
}

/// Whether the second of two neighbours in the list of mappings is as small as a stack that has no
/// room for a signal. The variables of a library are not a stack.
fn may_be_small_stack(pair: &[Mapping], need: u64) -> bool {
    let [before, mapping] = pair else { return false };
    let is_file_of_before = before.end == mapping.start && before.inode != 0;
    mapping.write
        && mapping.inode == 0
        && mapping.path != "[stack]"
        && !is_file_of_before
        && mapping.end - mapping.start < need + USED_LEAST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, path: &str, inode: u64) -> Mapping {
        Mapping { inode, ..Mapping::writable(start, end, path) }
    }

    #[test]
    fn a_stack_is_narrow_by_its_size_or_by_its_rest() {
        let mappings = [
            mapping(0x1000, 0x2000, "/lib", 7),
            mapping(0x2000, 0x3000, "", 0),
            mapping(0x8000, 0x9000, "", 0),
            mapping(0x1_0000, 0x2_0000, "", 0),
            mapping(0x3_0000, 0x3_1000, "[stack]", 0),
        ];
        let narrow = |sp| room_of_narrow(&mappings, sp, 4000);
        assert_eq!([0x8ff0, 0x8008].map(narrow), [Some(0xff0), Some(8)]);
        assert_eq!([0x1_fff0, 0x1_0000 + 4000].map(narrow), [None, None]);
        assert_eq!([0x1_0000 + 3999, 0x1_0000].map(narrow), [Some(3999), Some(0)]);
        assert_eq!([0x3_0ff0, 0x4000, 0x5_0000].map(narrow), [None, None, None]);
        let small: Vec<bool> =
            mappings.windows(2).map(|pair| may_be_small_stack(pair, 4000)).collect();
        assert_eq!(small, [false, true, false, false]);
        let need = need();
        assert!((2000..6000).contains(&need), "{need}");
    }
}
