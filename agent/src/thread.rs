//! The thread on which the handler runs, its slot, and its block of the C library.
//!
//! # Safety
//! The thread pointer is read where the recorder says that the processor and the kernel allow
//! programs to do so.

use traceprof_abi::context::is_own_block;
use traceprof_abi::runtime::WordReader;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;

use crate::sys;

/// The thread that takes the sample.
#[derive(Debug)]
pub struct Thread<'a> {
    /// Kernel thread id.
    pub tid: u32,
    /// Index of its slot.
    pub index: usize,
    /// Its slot.
    pub slot: &'a ThreadSlot,
    /// Whether the slot was claimed just now.
    pub fresh: bool,
}

/// Returns the calling thread with its slot, and claims one if the thread has none.
pub fn find_thread<'a>(data: DataSegment) -> Option<Thread<'a>> {
    if let Some(thread) = known_thread(data) {
        return Some(thread);
    }
    // Relaxed: written before the handler was installed. A forked child has the handler, but the
    // slots belong to its parent.
    if sys::getpid() != data.control().pid.load(Ordering::Relaxed) {
        return None;
    }
    let (tid, threads) = (sys::gettid(), data.threads());
    let index = threads.claim(tid).index()?;
    Some(Thread { tid, index, slot: threads.slots.get(index)?, fresh: true })
}

/// Returns the calling thread, if it has a slot.
pub fn known_thread<'a>(data: DataSegment) -> Option<Thread<'a>> {
    let (tid, threads) = (sys::gettid(), data.threads());
    let index = threads.find(tid)?;
    Some(Thread { tid, index, slot: threads.slots.get(index)?, fresh: false })
}

/// Returns the address of the C library's block of the calling thread. `None` if it has none of its
/// own, or may not read its thread pointer.
#[cold]
pub fn own_block(data: DataSegment, tid: u32, memory: &mut impl WordReader) -> Option<u64> {
    // Acquire: pairs with the recorder's Release.
    if data.context_sources().has_fsgsbase.load(Ordering::Acquire) == 0 {
        return None;
    }
    // SAFETY: the recorder vouches that the processor and the kernel allow programs to use the
    // instruction.
    let pointer = unsafe { sys::thread_pointer() };
    is_own_block(pointer, tid, |avma| memory.load(avma)).then_some(pointer)
}
