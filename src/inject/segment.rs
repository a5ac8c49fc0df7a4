//! The data segment as the guardian has it attached, so that it outlives the recorder.
//!
//! # Safety
//! Everything here is reached through atomics: the target and the recorder write it too.
#![allow(unsafe_code, reason = "attaches shared memory and refers to it")]

use std::io;
use std::ptr::NonNull;

use traceprof_abi::layout::{self, ControlBlock};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::thread::ThreadSlot;

use crate::proc;

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
    len: u64,
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
            Some(base) if base.as_ptr() as isize != -1 => {
                Ok(Attached { base, len: about.shm_segsz as u64 })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// An empty one, in the place of one that is not there any more.
    pub(super) fn blank() -> io::Result<Attached> {
        const SHM_NORESERVE: i32 = 0o10000;
        let len = layout::DATA_LEN as usize;
        // SAFETY: takes numbers only.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, len, 0o600 | SHM_NORESERVE) };
        if id < 0 {
            return Err(io::Error::last_os_error());
        }
        let attached = Self::new(id);
        // SAFETY: takes numbers only; the id is ours.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        attached
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

    /// The thread slots in use, none if the segment is too short to have any.
    fn slots(&self) -> &[ThreadSlot] {
        if self.len < layout::DATA_LEN {
            return &[];
        }
        // SAFETY: the segment is as long as the layout wants it, and stays attached as long as
        // `self` lives; only atomics reach it.
        let slots = unsafe { DataSegment::new(self.base.as_ptr()) }.threads().slots;
        // Relaxed: a count; the target may have written anything.
        let used = self.control().slots_next.load(Ordering::Relaxed) as usize;
        &slots[..used.min(slots.len())]
    }

    /// Ids of the timers that threads' slots name.
    pub(super) fn timers(&self) -> impl Iterator<Item = i32> {
        // Relaxed: the caller has seen to it that nobody is about to change them, or looks again.
        let words = self.slots().iter().map(|slot| slot.timer.load(Ordering::Relaxed));
        words.filter(|word| ![0, layout::TIMER_BUSY].contains(word)).map(|word| (word - 1) as i32)
    }

    /// Notes that there are no timers any more.
    pub(super) fn forget_timers(&self) {
        for slot in self.slots() {
            // Relaxed: all threads of the target are stopped outside of the agent's code.
            slot.timer.store(0, Ordering::Relaxed);
        }
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

/// Seconds of the clock that segments' times are told in.
pub(super) fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Removes the segments without a key that process `creator` made since `started` and nobody has
/// attached: a recorder that is killed between the creation of one and its mark for removal leaves
/// it behind, for as long as the machine runs.
pub(super) fn remove_orphans(creator: i32, started: u64) {
    for segment in made_by(creator) {
        if segment.attached == 0 && segment.changed >= started as i64 {
            // SAFETY: takes numbers only.
            unsafe { libc::shmctl(segment.id, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}

/// Removes segments that look like ours whose maker is gone and that nobody else ever had attached:
/// of a recorder that was killed, guardian and all, before it could mark them. They are empty.
pub(super) fn remove_abandoned() {
    const MODE: i64 = 700;
    const LENGTHS: [u64; 3] = [layout::CODE_LEN, layout::TABLES_LEN, layout::DATA_LEN];
    for segment in listed() {
        let looks_like_ours =
            segment.mode == MODE && LENGTHS.iter().any(|len| *len as i64 == segment.len);
        let was_used = segment.attached != 0 || ![0, segment.creator].contains(&segment.last);
        // The maker of one from another pid namespace has no number here.
        let maker = i32::try_from(segment.creator).unwrap_or(0);
        let is_abandoned = maker > 0 && proc::start_time(maker).is_err();
        if looks_like_ours && !was_used && is_abandoned {
            // SAFETY: takes numbers only. Another user's is refused.
            unsafe { libc::shmctl(segment.id, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}

/// A segment without a key.
struct Listed {
    id: i32,
    /// As the octal digits say it.
    mode: i64,
    len: i64,
    creator: i64,
    /// Who attached or detached it last, 0 if nobody did.
    last: i64,
    attached: i64,
    /// When it was made or changed hands, in seconds.
    changed: i64,
}

/// The segments without a key that a process made.
fn made_by(creator: i32) -> Vec<Listed> {
    listed().into_iter().filter(|segment| segment.creator == i64::from(creator)).collect()
}

fn listed() -> Vec<Listed> {
    let text = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let parse = |line: &str| {
        let fields: Vec<i64> =
            line.split_whitespace().map(|field| field.parse().unwrap_or(-1)).collect();
        // key, id, mode, size, creator, last user, attached, four owners, three times
        let [key, id, mode, len, creator, last, attached, _, _, _, _, _, _, changed, ..] =
            fields[..]
        else {
            return None;
        };
        let id = id as i32;
        (key == 0).then_some(Listed { id, mode, len, creator, last, attached, changed })
    };
    text.lines().skip(1).filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nix::sys::wait::waitpid;
    use nix::unistd::{ForkResult, fork};

    use super::*;

    #[test]
    fn only_what_nobody_has_attached_and_the_recorder_made_is_removed() {
        // SAFETY: the child makes system calls only.
        let child = match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                for _ in 0..2 {
                    // SAFETY: takes numbers only.
                    unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o700) };
                }
                // SAFETY: ends the child without the handlers of the test.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => child,
        };
        waitpid(child, None).unwrap();
        let ids = || made_by(child.as_raw()).iter().map(|it| it.id).collect::<Vec<_>>();
        let [_, attached] = ids()[..] else { panic!("not two") };
        // SAFETY: no address is asked for.
        let base = unsafe { libc::shmat(attached, std::ptr::null(), 0) };
        remove_orphans(child.as_raw() + 1, 0);
        remove_orphans(child.as_raw(), now() + 100);
        assert_eq!(ids().len(), 2);
        remove_orphans(child.as_raw(), now() - 100);
        assert_eq!(ids(), [attached]);
        // SAFETY: attached above, and nothing refers to it.
        unsafe { libc::shmdt(base) };
        // A child that another test forks has it attached as well, until it executes a program.
        let is_removed = || {
            remove_orphans(child.as_raw(), now() - 100);
            ids().is_empty()
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_removed() {
            assert!(Instant::now() < deadline, "it is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
