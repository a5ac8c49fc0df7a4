//! The thread on which the handler runs, and its slot.

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
