//! The check that memory of the application can be read.
//!
//! # Safety
//! Only the tests have unsafe code: they take the access to pages of their own away.
//!
//! # Invariants
//! - No handler for SIGSEGV: faults are prevented, not caught.
//!
//! # Does not
//! - keep the memory readable: another thread of the application may unmap it after the check.

use crate::sys;

/// Size of a page in bytes.
pub const PAGE: u64 = 4096;

/// Whether memory of at least eight bytes, and at most a page, is readable. It is in at most two
/// pages.
pub fn is_readable(avma: u64, len: u64) -> bool {
    let Some(last) = avma.checked_add(len.saturating_sub(8)) else { return false };
    // The kernel also refuses eight bytes that go beyond the last address.
    sys::readable(avma) && (page(avma) == page(last.wrapping_add(7)) || sys::readable(last))
}

/// Returns the start of the page with an address.
pub fn page(avma: u64) -> u64 {
    avma & !(PAGE - 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const MPROTECT: u64 = 10;
    const NO_ACCESS: u64 = 0;

    #[repr(align(4096))]
    struct Pages([u8; 2 * PAGE as usize]);

    /// Takes all access to a page of the test away.
    pub(crate) fn close(avma: u64) {
        // SAFETY: the caller owns the page, and neither uses nor frees it.
        let closed = unsafe { sys::syscall4(MPROTECT, [avma, PAGE, NO_ACCESS, 0]) };
        assert_eq!(closed, 0);
    }

    /// Returns the address of the boundary between two pages, of which the second is not readable.
    pub(crate) fn edge() -> u64 {
        let pages: &mut Pages = Box::leak(Box::new(Pages([0; 2 * PAGE as usize])));
        let edge = pages.0.as_mut_ptr() as u64 + PAGE;
        close(edge);
        edge
    }

    #[test]
    fn memory_is_readable_if_both_its_ends_are() {
        let edge = edge();
        for len in [8, 9, 64, 500, PAGE] {
            assert!(is_readable(edge - len, len), "{len}");
            assert!(!is_readable(edge - len + 1, len), "{len}");
            assert!(!is_readable(edge, len), "{len}");
            for wild in [0, 8, u64::MAX - 7, u64::MAX - len, u64::MAX, 1 << 63] {
                assert!(!is_readable(wild, len), "{wild:x}, {len}");
            }
        }
    }
}
