//! The three shared segments: created, owned by the target's user, and mapped here.
//!
//! # Safety
//! The only place where the recorder turns bytes into shared types. System V segments are attached
//! at addresses that the kernel chooses and stay attached as long as their [`Shared`] lives. What refers
//! into them does not name that life, and must not be used after it: sessions, with all their threads,
//! borrow the [`Ground`](super::ground::Ground) that owns the segments, which lets its modules go before
//! them; a look at stacks is over with its process. Memory can be given back before
//! ([`Shared::release`]).
//!
//! # Invariants
//! - A segment is marked for removal before the target attaches it: it has no name that could leak,
//!   and goes with its last user.
#![allow(unsafe_code, reason = "the door to System V shared memory")]

use std::io;
use std::ptr::{self, NonNull};

use traceprof_abi::layout;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::AtomicU64;
use traceprof_abi::unwind::Tables;

use crate::fault::{self, Point};

/// An attached segment.
#[derive(Debug)]
pub(super) struct Shared {
    id: i32,
    base: NonNull<u8>,
    len: u64,
    /// It stays attached: see [`Self::keep`].
    is_kept: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; what is in it is reached through
// atomics or by one owner.
unsafe impl Send for Shared {}

impl Shared {
    /// Creates a segment of `len` bytes, attaches it and marks it for removal. Others may attach it
    /// after [`Self::give`].
    pub(super) fn create(len: u64) -> io::Result<Self> {
        const MODE: i32 = 0o700;
        // SAFETY: no pointers.
        let id = unsafe {
            libc::shmget(libc::IPC_PRIVATE, len as usize, MODE | libc::IPC_CREAT | SHM_NORESERVE)
        };
        if id < 0 {
            return Err(io::Error::last_os_error());
        }
        fault::at(Point::SegmentMade);
        // SAFETY: no address is asked for.
        let base = unsafe { libc::shmat(id, ptr::null(), 0) };
        let error = io::Error::last_os_error();
        // SAFETY: the id is ours; IPC_RMID takes no structure.
        let removed = unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
        let not_removed = io::Error::last_os_error();
        fault::at(Point::SegmentMarked);
        if base as isize == -1 {
            return Err(error);
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(error)?;
        if removed != 0 {
            return Err(not_removed);
        }
        Ok(Self { id, base, len, is_kept: false })
    }

    /// Lets a user and a group attach it: attaching checks the owner, also of root's segments.
    pub(super) fn give(&self, (user, group): (u32, u32)) -> io::Result<()> {
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

    /// Has it stay attached until the process ends: who has its id may attach it for so long.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Nobody else has it attached.
    pub(super) fn is_alone(&self) -> bool {
        attached(self.id).is_ok_and(|users| users == 1)
    }

    /// The segment's id, good for attaching it as long as somebody has it attached.
    pub(super) fn id(&self) -> i32 {
        self.id
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Makes the pages of a range present, so that the target never has to allocate one.
    pub(super) fn populate(&self, offset: u64, len: u64) -> io::Result<()> {
        const PAGE: u64 = 4096;
        const MADV_POPULATE_WRITE: i32 = 23;
        let start = offset & !(PAGE - 1);
        let end = (offset + len).next_multiple_of(PAGE).min(self.len);
        if start >= end {
            return Ok(());
        }
        // SAFETY: `start` is below the segment's length.
        let address = unsafe { self.base.as_ptr().add(start as usize) };
        // SAFETY: the range lies within the segment; populating changes no contents.
        let result =
            unsafe { libc::madvise(address.cast(), (end - start) as usize, MADV_POPULATE_WRITE) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The bytes, while nobody else has the segment attached.
    ///
    /// # Errors
    /// `ResourceBusy` if somebody has.
    pub(super) fn exclusive(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if attached(self.id)? != 1 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let len = len.min(self.len as usize);
        // SAFETY: within the segment, attached once, and borrowed mutably for as long.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), len) })
    }

    /// The segment as words.
    pub(super) fn words(&self) -> &'static [AtomicU64] {
        // SAFETY: attached page aligned at this length until the drop, after which nobody uses
        // them (see above); zero bytes are valid atomics, and both processes reach them as atomics.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len as usize / 8) }
    }

    /// The segment as the tables segment, as the handlers see it.
    pub(super) fn as_tables(&self) -> Tables {
        // SAFETY: attached page aligned at this length until the drop, after which nobody uses the view
        // (see above), and written only by this process, through the writer whose publications the view reads.
        unsafe { Tables::new(self.base.as_ptr(), self.len as usize) }
    }

    /// Gives the memory back, if nobody else has the segment attached: it reads as zeros then.
    pub(super) fn release(&self) {
        if self.is_alone() {
            // SAFETY: the whole segment, of which every word may change at any time anyway.
            unsafe {
                libc::madvise(self.base.as_ptr().cast(), self.len as usize, libc::MADV_REMOVE)
            };
        }
    }

    /// The segment as the data segment.
    pub(super) fn as_data(&self) -> DataSegment {
        assert!(self.len >= layout::DATA_LEN, "not the data segment");
        // SAFETY: attached page aligned at its full length until the drop, after which nobody uses it (see
        // above); everything reaches it through atomics.
        unsafe { DataSegment::new(self.base.as_ptr()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_kept {
            // SAFETY: attached when it was made, and nowhere else detached. Who had references into it was
            // there for less long (see above).
            unsafe { libc::shmdt(self.base.as_ptr().cast()) };
        }
    }
}

/// Whether this process may attach a segment for execution, as a target will have to.
pub(super) fn try_executable() -> io::Result<()> {
    const LEN: usize = 4096;
    // SAFETY: no pointers.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, LEN, 0o700 | libc::IPC_CREAT) };
    if id < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no address is asked for.
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

/// A segment of the calling process's own, which stays attached: tests hand on what refers into it.
#[cfg(test)]
pub(super) fn own(len: u64) -> &'static Shared {
    Box::leak(Box::new(Shared::create(len).expect("a segment")))
}

/// Somebody who has a segment attached as well.
#[cfg(test)]
pub(super) struct Other(*const libc::c_void);

#[cfg(test)]
impl Other {
    pub(super) fn of(shared: &Shared) -> Self {
        // SAFETY: no address is asked for.
        let base = unsafe { libc::shmat(shared.id, ptr::null(), libc::SHM_RDONLY) };
        assert_ne!(base as isize, -1, "{}", io::Error::last_os_error());
        Self(base)
    }
}

#[cfg(test)]
impl Drop for Other {
    fn drop(&mut self) {
        // SAFETY: attached above, and nothing refers to it.
        unsafe { libc::shmdt(self.0) };
    }
}

/// A data segment of the calling process's own.
#[cfg(test)]
pub(super) fn own_data() -> DataSegment {
    own(layout::DATA_LEN).as_data()
}

/// A table of contexts of the calling process's own, as a writer maps it, and where it is. Its head is not
/// written.
#[cfg(test)]
pub(super) fn own_context_table() -> (u64, traceprof_abi::context::ContextTable<'static>) {
    use traceprof_abi::context::{ContextTable, TABLE_LEN, TABLE_MAPPING};
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    let file = nix::sys::memfd::memfd_create(TABLE_MAPPING, flags).unwrap();
    nix::unistd::ftruncate(&file, TABLE_LEN as i64).unwrap();
    // SAFETY: private memory of nobody else's.
    let mut map = unsafe { memmap2::MmapOptions::new().map_copy(&file) }.unwrap();
    let base = map.as_mut_ptr();
    // Tables are never unmapped.
    std::mem::forget(map);
    // SAFETY: of that length, never unmapped, reached through this alone.
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
