//! The three shared segments: created, owned by the target's user, and mapped here.
//!
//! # Safety
//! This is the only place where the recorder turns bytes into shared types. Views do not borrow the
//! segment and may outlive it, so its addresses stay mapped for good. When a [`SharedMemory`] is
//! dropped, zeroed memory takes its place, and the next segment of the same [`Use`] is attached
//! there. The code segment has no views and is detached. Memory can be freed earlier
//! ([`SharedMemory::release`]).
//!
//! # Invariants
//! - A segment is marked for removal before the target attaches it: it has no name that could leak,
//!   and the kernel destroys it with its last user.
#![allow(unsafe_code, reason = "the door to System V shared memory")]

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use traceprof_abi::layout;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::AtomicU64;
use traceprof_abi::unwind::Tables;

use crate::fault::{self, FaultPoint};
use crate::inject::create_segment;
use crate::proc::POPULATE_WRITE;

/// The purpose of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The agent's code, which this process writes while no other has it attached.
    Code,
    /// The tables that handlers look up.
    Tables,
    /// The data that handlers write.
    Data,
}

const PAGE: u64 = 4096;

/// Addresses of dropped segments, with the use and length that views expect there.
static FREE: Mutex<Vec<(Use, usize, u64)>> = Mutex::new(Vec::new());

/// Takes the address of a dropped segment with this use and length.
fn take_free(wanted: Use, len: u64) -> Option<usize> {
    // No code under the lock can leave the list half changed.
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let index = free.iter().position(|(its, _, its_len)| (*its, *its_len) == (wanted, len))?;
    Some(free.swap_remove(index).1)
}

fn put_free(was: Use, base: usize, len: u64) {
    // Poisoning is harmless: see `take_free`.
    FREE.lock().unwrap_or_else(PoisonError::into_inner).push((was, base, len));
}

/// An attached segment.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    id: i32,
    purpose: Use,
    base: NonNull<u8>,
    len: u64,
    /// Whether it stays attached; see [`Self::keep`].
    is_kept: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; its contents are reached through
// atomics or by one owner.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Creates a segment of `len` bytes, attaches it and marks it for removal.
    ///
    /// Other users may attach it after [`Self::give`].
    pub(crate) fn create(purpose: Use, len: u64) -> io::Result<Self> {
        const MODE: i32 = 0o700;
        let id = create_segment(len as usize, MODE | SHM_NORESERVE)?;
        fault::at(FaultPoint::SegmentMade);
        let free = take_free(purpose, len);
        let (at, flags) = free.map_or((0, 0), |at| (at, libc::SHM_REMAP));
        // SAFETY: the address is that of zeroed memory that a segment of this use and length left,
        // or one that the kernel chooses.
        let base = unsafe { libc::shmat(id, ptr::without_provenance(at), flags) };
        let error = io::Error::last_os_error();
        // SAFETY: the id is ours; IPC_RMID takes no structure.
        let removed = unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
        let not_removed = io::Error::last_os_error();
        fault::at(FaultPoint::SegmentMarked);
        if base as isize == -1 {
            if let Some(at) = free {
                put_free(purpose, at, len);
            }
            return Err(error);
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(error)?;
        let shared = Self { id, purpose, base, len, is_kept: false };
        if removed != 0 {
            return Err(not_removed);
        }
        Ok(shared)
    }

    /// Creates another segment for the same use.
    pub(crate) fn another(&self) -> io::Result<Self> {
        Self::create(self.purpose, self.len)
    }

    /// Makes a user and a group the owner, which permits them to attach the segment.
    ///
    /// The kernel checks the owner on attach, also of segments that root made.
    pub(crate) fn give(&self, (user, group): (u32, u32)) -> io::Result<()> {
        let mut wanted = status(self.id)?;
        if (wanted.shm_perm.uid, wanted.shm_perm.gid) == (user, group) {
            return Ok(());
        }
        wanted.shm_perm.uid = user;
        wanted.shm_perm.gid = group;
        // SAFETY: IPC_SET reads the structure.
        match unsafe { libc::shmctl(self.id, libc::IPC_SET, &raw mut wanted) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Keeps the segment attached until this process exits, so that its id stays attachable.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Returns whether no other process has the segment attached.
    pub(crate) fn is_alone(&self) -> bool {
        attached(self.id).is_ok_and(|users| users == 1)
    }

    /// Returns the segment's id, which is valid while any process has the segment attached.
    pub(crate) fn id(&self) -> i32 {
        self.id
    }

    /// Returns the segment's length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Makes the pages of a range present, so that the target never has to allocate one.
    pub(crate) fn populate(&self, offset: u64, len: u64) -> io::Result<()> {
        let start = offset & !(PAGE - 1);
        let end = (offset + len).next_multiple_of(PAGE).min(self.len);
        if start >= end {
            return Ok(());
        }
        // SAFETY: `start` is below the segment's length.
        let address = unsafe { self.base.as_ptr().add(start as usize) };
        // SAFETY: the range is within the segment; populating changes no contents.
        let result =
            unsafe { libc::madvise(address.cast(), (end - start) as usize, POPULATE_WRITE) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // Linux knows this advice since 5.14; a seccomp filter may have other answers.
            Some(libc::EINVAL | libc::ENOSYS | libc::EPERM) => self.touch(start..end),
            _ => Err(error),
        }
    }

    /// Makes pages present one by one, where the kernel cannot populate a range.
    ///
    /// The kernel itself writes each page's first word as it was. If it has no memory for a page,
    /// this is an error; a write by this process would then end it by a SIGBUS.
    fn touch(&self, pages: Range<u64>) -> io::Result<()> {
        let or_zero = libc::FUTEX_OP(libc::FUTEX_OP_OR, 0, libc::FUTEX_OP_CMP_EQ, 0);
        const NOBODY: i32 = 0;
        for offset in pages.step_by(PAGE as usize) {
            // SAFETY: the callers pass offsets below the segment's length.
            let word = unsafe { self.base.as_ptr().add(offset as usize) };
            // SAFETY: the word is within the segment, aligned, and everything reaches it through
            // atomics. No thread waits for it.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    word,
                    libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
                    NOBODY,
                    NOBODY,
                    word,
                    or_zero,
                )
            };
            if result < 0 {
                return Err(match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::EFAULT) => {
                        io::ErrorKind::OutOfMemory.into()
                    }
                    error => error,
                });
            }
        }
        Ok(())
    }

    /// Returns the bytes, while no other process has the segment attached.
    ///
    /// # Errors
    /// Returns `ResourceBusy` if another process has it attached.
    pub(crate) fn exclusive(&mut self, len: usize) -> io::Result<&mut [u8]> {
        assert_eq!(self.purpose, Use::Code, "a segment with views cannot be exclusive");
        if attached(self.id)? != 1 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let len = len.min(self.len as usize);
        // SAFETY: within the segment, attached once, and borrowed mutably for as long.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), len) })
    }

    /// Returns the tables or the data segment as words.
    pub(crate) fn words(&self) -> &'static [AtomicU64] {
        assert_ne!(self.purpose, Use::Code, "the code has no views");
        // SAFETY: page aligned and mapped at this length for good (see above); zero bytes are valid
        // atomics, and both processes reach them as atomics.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len as usize / 8) }
    }

    /// Returns the tables segment that handlers see.
    pub(crate) fn as_tables(&self) -> Tables {
        assert_eq!(self.purpose, Use::Tables);
        // SAFETY: page aligned and mapped at this length for good (see above), and written only by
        // this process, through the writer whose publications the view reads. Zeros publish
        // nothing.
        unsafe { Tables::new(self.base.as_ptr(), self.len as usize) }
    }

    /// Frees the memory if no other process has the segment attached; it then reads as zeros.
    pub(crate) fn release(&self) {
        if self.is_alone() {
            // SAFETY: the complete segment; its words may change at any time anyway.
            unsafe {
                libc::madvise(self.base.as_ptr().cast(), self.len as usize, libc::MADV_REMOVE)
            };
        }
    }

    /// Returns the data segment.
    pub(crate) fn as_data(&self) -> DataSegment {
        assert_eq!(self.purpose, Use::Data);
        assert!(self.len >= layout::DATA_LEN, "not the complete data segment");
        // SAFETY: page aligned and mapped at its full length for good (see above); everything
        // reaches it through atomics.
        unsafe { DataSegment::new(self.base.as_ptr()) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let base = self.base.as_ptr().cast::<libc::c_void>();
        if self.purpose == Use::Code {
            // SAFETY: `create` attached it, and nothing else detaches it. It has no views, and
            // exclusive slices borrow `self`.
            unsafe { libc::shmdt(base) };
            return;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: exactly the segment's addresses, which are ours. The same step detaches them and
        // makes them read as zeros, which are valid for every type of a view.
        let put = unsafe { libc::mmap(base, self.len as usize, access, flags, -1, 0) };
        // If the mapping fails, the segment stays attached.
        if put == base {
            put_free(self.purpose, base.addr(), self.len);
        }
    }
}

/// Checks that this process may attach a segment for execution, as a target must.
pub(crate) fn try_executable() -> io::Result<()> {
    const LEN: usize = 4096;
    let id = create_segment(LEN, 0o700)?;
    // SAFETY: the kernel chooses the address.
    let base = unsafe { libc::shmat(id, ptr::null(), libc::SHM_RDONLY | libc::SHM_EXEC) };
    let error = io::Error::last_os_error();
    // SAFETY: the id is ours; IPC_RMID takes no structure.
    unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
    if base as isize == -1 {
        return Err(error);
    }
    // SAFETY: attached above, and nothing refers to it.
    unsafe { libc::shmdt(base) };
    Ok(())
}

/// Makes a segment for a test; it stays attached, since tests pass views into it on.
#[cfg(test)]
pub(crate) fn own_segment(purpose: Use, len: u64) -> &'static SharedMemory {
    Box::leak(Box::new(SharedMemory::create(purpose, len).expect("a segment")))
}

/// A second attachment of a segment.
#[cfg(test)]
pub(crate) struct SecondAttachment(*const libc::c_void);

#[cfg(test)]
impl SecondAttachment {
    pub(crate) fn of(shared: &SharedMemory) -> Self {
        // SAFETY: the kernel chooses the address.
        let base = unsafe { libc::shmat(shared.id, ptr::null(), libc::SHM_RDONLY) };
        assert_ne!(base as isize, -1, "{}", io::Error::last_os_error());
        Self(base)
    }
}

#[cfg(test)]
impl Drop for SecondAttachment {
    fn drop(&mut self) {
        // SAFETY: attached above, and nothing refers to it.
        unsafe { libc::shmdt(self.0) };
    }
}

/// Makes a data segment for a test.
#[cfg(test)]
pub(crate) fn own_data() -> DataSegment {
    own_segment(Use::Data, layout::DATA_LEN).as_data()
}

/// Makes a table of contexts for a test, as a writer maps it, and returns its address.
///
/// Its header is not written.
#[cfg(test)]
pub(crate) fn own_context_table() -> (u64, traceprof_abi::context::ContextTable<'static>) {
    use traceprof_abi::context::{ContextTable, TABLE_LEN, TABLE_MAPPING};
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    let file = nix::sys::memfd::memfd_create(TABLE_MAPPING, flags).unwrap();
    nix::unistd::ftruncate(&file, TABLE_LEN as i64).unwrap();
    // SAFETY: private memory that nothing else uses.
    let mut map = unsafe { memmap2::MmapOptions::new().map_copy(&file) }.unwrap();
    let base = map.as_mut_ptr();
    // Tables are never unmapped.
    std::mem::forget(map);
    // SAFETY: of that length, never unmapped, and accessed only through this value.
    (base as u64, unsafe { ContextTable::new(base) })
}

const SHM_NORESERVE: i32 = 0o10000;

fn status(id: i32) -> io::Result<libc::shmid_ds> {
    let mut status = std::mem::MaybeUninit::zeroed();
    // SAFETY: IPC_STAT fills the structure.
    if unsafe { libc::shmctl(id, libc::IPC_STAT, status.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: filled by the call; zeroed before.
    Ok(unsafe { status.assume_init() })
}

fn attached(id: i32) -> io::Result<u64> {
    Ok(status(id)?.shm_nattch)
}

#[cfg(test)]
mod tests {
    use traceprof_abi::sync::Ordering;

    use super::*;

    #[test]
    fn touched_pages_are_present_and_keep_their_contents() {
        const LEN: u64 = 7 << 16;
        let segment = SharedMemory::create(Use::Tables, LEN).unwrap();
        let words = segment.words();
        words[512].store(u64::MAX, Ordering::Relaxed);
        let present = || {
            let mut pages = [0u8; (LEN / PAGE) as usize];
            let base = segment.base.as_ptr().cast();
            // SAFETY: one byte for each page of the segment.
            let result = unsafe { libc::mincore(base, LEN as usize, pages.as_mut_ptr()) };
            assert_eq!(result, 0);
            pages.iter().map(|page| usize::from(page & 1)).sum::<usize>()
        };
        assert_eq!(present(), 1);
        segment.touch(PAGE..4 * PAGE).unwrap();
        assert_eq!((present(), words[512].load(Ordering::Relaxed)), (3, u64::MAX));
        segment.touch(0..LEN).unwrap();
        assert_eq!(present() as u64, LEN / PAGE);
        assert_eq!(words.iter().filter(|word| word.load(Ordering::Relaxed) != 0).count(), 1);
    }

    #[test]
    fn views_outlive_their_segment_and_the_next_one_takes_its_place() {
        // A length that no other test has.
        const LEN: u64 = 5 << 16;
        let segment = SharedMemory::create(Use::Tables, LEN).unwrap();
        let (id, words, tables) = (segment.id(), segment.words(), segment.as_tables());
        words[3].store(7, Ordering::Relaxed);
        drop(segment);
        assert!(status(id).is_err(), "destroyed with its last user");
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        assert!(tables.snapshot().is_none());
        let code = SharedMemory::create(Use::Code, LEN).unwrap();
        assert_ne!(code.base.as_ptr().addr(), words.as_ptr().addr());
        let next = SharedMemory::create(Use::Tables, LEN).unwrap();
        words[3].store(8, Ordering::Relaxed);
        assert!(ptr::eq(next.words(), words));
        assert_eq!(attached(next.id()).unwrap(), 1);
    }
}
