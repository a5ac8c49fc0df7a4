//! The thread that the handler runs on, and its slot.

use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;

use crate::sys;

/// The thread that takes the sample.
#[derive(Debug)]
pub struct Thread<'a> {
    /// Kernel thread id.
    pub tid: u32,
    /// Number of its slot.
    pub index: usize,
    /// Its slot.
    pub slot: &'a ThreadSlot,
    /// The slot was claimed just now.
    pub fresh: bool,
}

/// The calling thread with its slot, which is claimed if it has none.
pub fn find_thread<'a>(data: DataSegment) -> Option<Thread<'a>> {
    if let Some(thread) = known_thread(data) {
        return Some(thread);
    }
    // Relaxed: written before the handler was installed. A forked child has our handler, but the
    // slots are its parent's.
    if sys::getpid() != data.control().pid.load(Ordering::Relaxed) {
        return None;
    }
    let (tid, threads) = (sys::gettid(), data.threads());
    let index = threads.claim(tid).index()?;
    Some(Thread { tid, index, slot: threads.slots.get(index)?, fresh: true })
}

/// The calling thread, if it has a slot.
pub fn known_thread<'a>(data: DataSegment) -> Option<Thread<'a>> {
    let (tid, threads) = (sys::gettid(), data.threads());
    let index = threads.find(tid)?;
    Some(Thread { tid, index, slot: threads.slots.get(index)?, fresh: false })
}
