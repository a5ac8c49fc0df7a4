//! The managed frames of a sample.
//!
//! # Safety
//! A load happens only in a page that a probe has found readable since the handler began. Nothing
//! is kept from one sample to the next: a runtime may return memory to the system between them, and
//! in the middle of a call its list may lead to an object that it has just freed. The structures
//! of the calling thread's own frames do not change while the thread is in its handler. The
//! exception is a wild pointer into memory that another thread unmaps in the microseconds between
//! the probe and the load.

use traceprof_abi::context::is_own_block;
use traceprof_abi::layout::{ControlBlock, Counter};
use traceprof_abi::runtime::word::SectionEnd;
use traceprof_abi::runtime::{
    Captured, CapturedThread, NamelessTask, RuntimeBlock, WordReader, capture, capture_task,
    has_frames, holds_lock, task_room,
};
use traceprof_abi::sync::AtomicU64;

use crate::probe::page;
use crate::sys;

/// Number of pages that a sample remembers as readable.
const PAGES: usize = 32;
/// log2 of the size of a page.
const PAGE_SHIFT: u32 = 12;

/// The application's memory, as far as this sample has found it readable.
struct ProbedMemory {
    /// Each page is remembered at its number modulo [`PAGES`].
    pages: [u64; PAGES],
}

impl ProbedMemory {
    fn new() -> Self {
        Self { pages: [u64::MAX; PAGES] }
    }
}

impl WordReader for ProbedMemory {
    #[inline]
    fn load(&mut self, avma: u64) -> Option<u64> {
        if avma & 7 != 0 {
            return None;
        }
        let page = page(avma);
        let known = self.pages.get_mut((page >> PAGE_SHIFT) as usize & (PAGES - 1))?;
        if *known != page {
            if !sys::readable(avma) {
                return None;
            }
            *known = page;
        }
        let word = avma as *const u64;
        // SAFETY: aligned, so all eight bytes are in the page, which was found readable. Any value
        // is valid.
        Some(unsafe { word.read_volatile() })
    }
}

/// What a sample has of the runtimes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Appended {
    /// Number of words that were written.
    pub words: usize,
    /// Number of words after these with the name of the thread's task.
    pub task: usize,
    /// Whether the thread holds the lock that it needs to run functions of a runtime.
    pub holds_lock: bool,
}

/// Writes the calling thread's managed frames, a section for each runtime that has some, and after
/// them the name of the thread's task. `stack` is the thread's stack pointer.
pub fn append(
    control: &ControlBlock,
    runtimes: &[RuntimeBlock],
    (tid, stack): (u32, u64),
    mut words: &[AtomicU64],
) -> Appended {
    if runtimes.is_empty() {
        return Appended::default();
    }
    let mut memory = ProbedMemory::new();
    // SAFETY: the recorder publishes a runtime only where the processor and the kernel allow
    // programs to use the instruction. The target cannot write the tables segment.
    let thread_pointer = unsafe { sys::thread_pointer() };
    // A thread without a block of its own would have the frames of its creator.
    if !is_own_block(thread_pointer, tid, |avma| memory.load(avma)) {
        control.count(Counter::RuntimeForeignThread);
        return Appended::default();
    }
    let before = words.len();
    let thread = CapturedThread { pointer: thread_pointer, stack };
    // The deepest stacks leave room for the name.
    let reserved = runtimes.iter().map(task_room).max().unwrap_or(0);
    for numbered in runtimes.iter().enumerate().filter(|(_, block)| has_frames(block)) {
        let room = words.get(..words.len().saturating_sub(reserved)).unwrap_or(&[]);
        match capture(numbered, thread, &mut memory, room) {
            Captured::Section { words: written, end, foreign } => {
                words = words.get(written..).unwrap_or(&[]);
                count_section(control, end, foreign);
            }
            Captured::Nothing => control.count(Counter::RuntimeIdle),
            Captured::Unreadable => control.count(Counter::RuntimeUnreadable),
            Captured::Refused => control.count(Counter::Broken),
        }
    }
    let (mut task, mut is_nameless) = (0, false);
    for runtime in runtimes {
        if task != 0 {
            break;
        }
        match capture_task(runtime, thread_pointer, &mut memory, words) {
            Ok(written) => task = written,
            Err(NamelessTask) => is_nameless = true,
        }
    }
    if task == 0 && is_nameless {
        control.count(Counter::TaskNameless);
    }
    let holds_lock = runtimes.iter().any(|block| holds_lock(block, thread_pointer, &mut memory));
    Appended { words: before.wrapping_sub(words.len()), task, holds_lock }
}

fn count_section(control: &ControlBlock, end: SectionEnd, foreign: usize) {
    match end {
        SectionEnd::Root | SectionEnd::Outer => {}
        SectionEnd::Depth => control.count(Counter::RuntimeDepth),
        SectionEnd::Unreadable | SectionEnd::Unlinked => control.count(Counter::RuntimeUnreadable),
    }
    if foreign > 0 {
        control.count_by(Counter::RuntimeForeignObject, foreign as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::tests::{close, edge};

    #[test]
    fn only_readable_words_are_loaded() {
        let mut memory = ProbedMemory::new();
        let edge = edge();
        assert_eq!(memory.load(edge - 8), Some(0));
        assert_eq!(memory.load(edge), None);
        assert_eq!(memory.load(edge - 4), None, "not aligned");
        for wild in [0, 8, u64::MAX - 7, 1 << 63, 1 << 47] {
            assert_eq!(memory.load(wild), None, "{wild:x}");
        }
    }

    #[test]
    fn pages_are_probed_again_by_the_next_sample() {
        let page = edge() - crate::probe::PAGE;
        assert_eq!(ProbedMemory::new().load(page), Some(0));
        close(page);
        assert_eq!(ProbedMemory::new().load(page), None);
    }

    #[test]
    fn pages_that_share_a_place_replace_each_other() {
        let words = vec![7u64; PAGES * 512 * 3];
        let start = page(words.as_ptr().addr() as u64) + crate::probe::PAGE;
        let mut memory = ProbedMemory::new();
        let far = start + ((PAGES as u64) << PAGE_SHIFT);
        for avma in [start, far, start + 8, far + 8] {
            assert_eq!(memory.load(avma), Some(7));
        }
    }
}
