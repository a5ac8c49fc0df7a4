//! Objects of language runtimes, read as far as their memory is readable.
//!
//! # Safety
//! A load happens only in a page that a probe has found readable since the handler began. Nothing
//! is kept from one sample to the next: a runtime may return memory to the system between them, and
//! in the middle of a call its list may lead to an object that it has just freed. The structures
//! of the calling thread's own frames do not change while the thread is in its handler. The
//! exception is a wild pointer into memory that another thread unmaps in the microseconds between
//! the probe and the load.

use traceprof_abi::runtime::WordReader;

use crate::probe::page;
use crate::sys;

/// Number of pages that a sample remembers as readable.
const PAGES: usize = 32;
/// log2 of the size of a page.
const PAGE_SHIFT: u32 = 12;

/// The application's memory, as far as this sample has found it readable.
#[derive(Debug)]
pub struct ProbedMemory {
    /// Each page is remembered at its number modulo [`PAGES`].
    pages: [u64; PAGES],
}

impl ProbedMemory {
    /// Creates the memory of a sample.
    pub fn unprobed() -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::tests::{close, edge};

    #[test]
    fn only_readable_words_are_loaded() {
        let mut memory = ProbedMemory::unprobed();
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
        assert_eq!(ProbedMemory::unprobed().load(page), Some(0));
        close(page);
        assert_eq!(ProbedMemory::unprobed().load(page), None);
    }

    #[test]
    fn pages_that_share_a_place_replace_each_other() {
        let words = vec![7u64; PAGES * 512 * 3];
        let start = page(words.as_ptr().addr() as u64) + crate::probe::PAGE;
        let mut memory = ProbedMemory::unprobed();
        let far = start + ((PAGES as u64) << PAGE_SHIFT);
        for avma in [start, far, start + 8, far + 8] {
            assert_eq!(memory.load(avma), Some(7));
        }
    }
}
