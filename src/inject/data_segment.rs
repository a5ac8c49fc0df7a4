//! The data segment, which the guardian attaches so that the segment outlives the recorder.
//!
//! # Safety
//! All accesses are atomic, because the target and the recorder write the segment, too.
#![allow(unsafe_code, reason = "attaches shared memory and refers to it")]

use std::io;
use std::ptr::NonNull;

use traceprof_abi::layout::{self, ControlBlock};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::thread::ThreadSlot;

use super::abandoned_segments;

/// Words at the start of the injection area: three `struct sigaction`, and a byte as a read buffer.
const SCRATCH_WORDS: usize = 16;
/// Offset of the action that the kernel reports.
pub(super) const CURRENT_ACTION: u64 = layout::INJECT_OFFSET;
/// Offset of an action that ignores the signal.
pub(super) const IGNORE_ACTION: u64 = layout::INJECT_OFFSET + 32;
/// Offset of the action to restore.
pub(super) const OLD_ACTION: u64 = layout::INJECT_OFFSET + 64;
/// Offset of the byte that a held program reads into.
pub(super) const HOLD_BYTE: u64 = layout::INJECT_OFFSET + 96;

/// An attached data segment; dropping it detaches it.
#[derive(Debug)]
pub(super) struct AttachedData {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: only atomics are handed out.
unsafe impl Send for AttachedData {}
// SAFETY: as above.
unsafe impl Sync for AttachedData {}

impl AttachedData {
    /// Attaches a segment. The segment must be long enough for the injection area.
    pub(super) fn new(shm_id: i32) -> io::Result<AttachedData> {
        // SAFETY: all zero is a value of this plain structure.
        let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
        // SAFETY: writes one structure, which this function owns.
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
            Some(base) if base.as_ptr() as isize != -1 => {
                Ok(AttachedData { base, len: about.shm_segsz as u64 })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Creates an empty segment, in place of one that no longer exists.
    pub(super) fn blank() -> io::Result<AttachedData> {
        const SHM_NORESERVE: i32 = 0o10000;
        let id = abandoned_segments::create(layout::DATA_LEN as usize, 0o600 | SHM_NORESERVE)?;
        let attached = Self::new(id);
        // SAFETY: takes numbers only; the id is ours.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        attached
    }

    pub(super) fn control(&self) -> &ControlBlock {
        // SAFETY: the segment starts with the block, is longer than the block (checked at the
        // attach, asserted in `layout`), page aligned, and stays attached while `self` lives.
        unsafe { self.base.cast::<ControlBlock>().as_ref() }
    }

    /// Returns the four words of an action in the injection area.
    pub(super) fn action(&self, offset: u64) -> &[AtomicU64] {
        let first = ((offset - layout::INJECT_OFFSET) / 8) as usize;
        &self.scratch()[first..first + 4]
    }

    /// Returns the thread slots in use; none if the segment is too short.
    fn slots(&self) -> &[ThreadSlot] {
        if self.len < layout::DATA_LEN {
            return &[];
        }
        // SAFETY: the segment has the layout's length, and stays attached while `self` lives; all
        // accesses are atomic.
        let slots = unsafe { DataSegment::new(self.base.as_ptr()) }.threads().slots;
        // Relaxed: a count. The target may have written any value.
        let used = self.control().slots_next.load(Ordering::Relaxed) as usize;
        &slots[..used.min(slots.len())]
    }

    /// Returns the ids of the timers in the threads' slots.
    pub(super) fn timers(&self) -> impl Iterator<Item = i32> {
        // Relaxed: the caller ensures that nothing changes the timers now, or checks again.
        let words = self.slots().iter().map(|slot| slot.timer.load(Ordering::Relaxed));
        words.filter(|word| ![0, layout::TIMER_BUSY].contains(word)).map(|word| (word - 1) as i32)
    }

    /// Clears the timers from the slots.
    pub(super) fn forget_timers(&self) {
        for slot in self.slots() {
            // Relaxed: all threads of the target are stopped outside of the agent's code.
            slot.timer.store(0, Ordering::Relaxed);
        }
    }

    fn scratch(&self) -> &[AtomicU64] {
        // SAFETY: inside the segment, whose length was checked when it was attached.
        let start = unsafe { self.base.add(layout::INJECT_OFFSET as usize) };
        // SAFETY: mapped while `self` lives, aligned, accessed through atomics only.
        unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>().as_ptr(), SCRATCH_WORDS) }
    }
}

impl Drop for AttachedData {
    fn drop(&mut self) {
        // SAFETY: attached in `new`; references to it end with `self`.
        unsafe { libc::shmdt(self.base.as_ptr().cast()) };
    }
}
