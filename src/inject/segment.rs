//! The data segment as the guardian has it attached, so that it outlives the recorder.
//!
//! # Safety
//! Everything here is reached through atomics: the target and the recorder write it too.
#![allow(unsafe_code, reason = "attaches shared memory and refers to it")]

use std::io;
use std::ptr::NonNull;

use traceprof_abi::layout::{self, ControlBlock};
use traceprof_abi::sync::AtomicU64;

/// Words at the start of the injection's area: three `struct sigaction` and a byte to read into.
const SCRATCH_WORDS: usize = 16;
/// Offset of the action that the target's kernel reports.
pub(super) const CURRENT_ACTION: u64 = layout::INJECT_OFFSET;
/// Offset of the action that ignores the signal.
pub(super) const IGNORE_ACTION: u64 = layout::INJECT_OFFSET + 32;
/// Offset of the action to be put back.
pub(super) const OLD_ACTION: u64 = layout::INJECT_OFFSET + 64;
/// Offset of the byte that a held program reads.
pub(super) const HOLD_BYTE: u64 = layout::INJECT_OFFSET + 96;

/// An attached data segment; dropping it detaches it.
#[derive(Debug)]
pub(super) struct Attached {
    base: NonNull<u8>,
}

// SAFETY: only atomics are handed out.
unsafe impl Send for Attached {}
// SAFETY: as above.
unsafe impl Sync for Attached {}

impl Attached {
    /// Attaches a segment that is long enough for the injection's area.
    pub(super) fn new(shm_id: i32) -> io::Result<Attached> {
        // SAFETY: all zero is a value of this plain structure.
        let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
        // SAFETY: writes one structure, which is ours.
        let stat = unsafe { libc::shmctl(shm_id, libc::IPC_STAT, &mut about) };
        if stat != 0 {
            return Err(io::Error::last_os_error());
        }
        if (about.shm_segsz as u64) < layout::INJECT_OFFSET + layout::INJECT_LEN {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the kernel chooses a free address.
        let base = unsafe { libc::shmat(shm_id, std::ptr::null(), 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr() as isize != -1 => Ok(Attached { base }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn control(&self) -> &ControlBlock {
        // SAFETY: the segment starts with the block, is longer than it (checked when attached,
        // asserted in `layout`), page aligned, and stays attached as long as `self` lives.
        unsafe { self.base.cast::<ControlBlock>().as_ref() }
    }

    /// The four words of an action in the injection's area.
    pub(super) fn action(&self, offset: u64) -> &[AtomicU64] {
        let first = ((offset - layout::INJECT_OFFSET) / 8) as usize;
        &self.scratch()[first..first + 4]
    }

    fn scratch(&self) -> &[AtomicU64] {
        // SAFETY: inside the segment, whose length was checked when it was attached.
        let start = unsafe { self.base.add(layout::INJECT_OFFSET as usize) };
        // SAFETY: mapped as long as `self` lives, aligned, reached through atomics only.
        unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>().as_ptr(), SCRATCH_WORDS) }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: attached in `new`; references to it end with `self`.
        unsafe { libc::shmdt(self.base.as_ptr().cast()) };
    }
}
