//! Whether the frames of an interpreter in a live process are as its layout says.

use std::thread;
use std::time::Duration;

use traceprof_abi::runtime::word::{FOREIGN, FRAME_WORDS, SectionEnd, sections};
use traceprof_abi::runtime::{Captured, CapturedThread, RuntimeBlock, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::memory::{TargetMemory, TargetWords};

/// Number of frames on which a layout is tried.
const FRAMES_CHECKED: usize = 16;
/// Number of times that frames are looked at before they are taken for foreign, and the time
/// between: the process runs meanwhile.
const ATTEMPTS: usize = 8;
const PAUSE: Duration = Duration::from_micros(500);
/// The number of different innermost frames that must be foreign.
const STATES_MIN: usize = 3;

/// Whether a thread's frames are not as the layout says. False if there are none, or too few
/// different ones: those of a process that stands still may be half changed. `current` returns the
/// address of the innermost frame.
pub(super) fn has_foreign_frames(
    (block, of): (&RuntimeBlock, CapturedThread),
    memory: &dyn TargetMemory,
    current: impl Fn() -> Option<u64>,
) -> bool {
    let mut seen: Vec<u64> = Vec::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            thread::sleep(PAUSE);
        }
        let Some(current) = current() else { return false };
        if current == 0 || !has_now_foreign_frames(block, of, memory) {
            return false;
        }
        if !seen.contains(&current) {
            seen.push(current);
        }
    }
    seen.len() >= STATES_MIN
}

fn has_now_foreign_frames(
    block: &RuntimeBlock,
    thread: CapturedThread,
    memory: &dyn TargetMemory,
) -> bool {
    let words: [AtomicU64; FRAMES_CHECKED * FRAME_WORDS + 1] =
        std::array::from_fn(|_| AtomicU64::new(0));
    match capture((0, block), thread, &mut TargetWords(memory), &words) {
        Captured::Section { words: count, end, .. } => {
            // Relaxed: no other thread has the words.
            let words = words.map(|word| word.load(Ordering::Relaxed));
            let frames = sections(words.get(..count).unwrap_or_default());
            // Those without an object stand for callers that are not linked.
            let frames = frames.flat_map(|it| it.frames()).filter(|frame| frame.object != 0);
            let (foreign, known): (Vec<_>, Vec<_>) =
                frames.partition(|frame| frame.flags & FOREIGN != 0);
            foreign.len() + usize::from(end == SectionEnd::Unreadable) > known.len()
        }
        Captured::Unreadable => true,
        Captured::Nothing | Captured::Refused => false,
    }
}
