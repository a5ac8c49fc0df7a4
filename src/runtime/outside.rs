//! Reads the managed frames of a thread from outside its process.

use std::collections::HashMap;

use traceprof_abi::layout::FRAME_WORDS_MAX;
use traceprof_abi::runtime::{Captured, RuntimeBlock, WordReader, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::memory::TargetMemory;

const PAGE: usize = 4096;
/// Maximum number of pages that are read for one thread.
const PAGES_MAX: usize = 1024;

/// The target's memory, read by pages.
struct PagedMemory<'m> {
    memory: &'m dyn TargetMemory,
    /// The readable bytes of each page that was asked for.
    pages: HashMap<u64, Vec<u8>>,
}

impl WordReader for PagedMemory<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        let (number, at) = (avma / PAGE as u64, (avma % PAGE as u64) as usize);
        if !self.pages.contains_key(&number) && self.pages.len() >= PAGES_MAX {
            return None;
        }
        let memory = self.memory;
        let page = self.pages.entry(number).or_insert_with(|| {
            let mut bytes = vec![0; PAGE];
            let got = memory.read(number * PAGE as u64, &mut bytes);
            bytes.truncate(got);
            bytes
        });
        page.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
    }
}

/// Returns the frame words of the managed frames of a thread, a section for each runtime that has
/// some. `blocks` are those of the process's runtimes.
///
/// The caller ensures that the thread does not run meanwhile, or drops the result.
pub fn managed_frames(
    blocks: &[RuntimeBlock],
    thread_pointer: u64,
    memory: &dyn TargetMemory,
) -> Vec<u64> {
    let mut paged = PagedMemory { memory, pages: HashMap::new() };
    let words: Vec<AtomicU64> = (0..FRAME_WORDS_MAX).map(|_| AtomicU64::new(0)).collect();
    let mut used = 0;
    for numbered in blocks.iter().enumerate() {
        let room = words.get(used..).unwrap_or_default();
        if let Captured::Section { words, .. } = capture(numbered, thread_pointer, &mut paged, room)
        {
            used += words;
        }
    }
    // Relaxed: no other thread has the words.
    words.iter().take(used).map(|word| word.load(Ordering::Relaxed)).collect()
}
