//! The sample log of a table: records of one size, each with a commit word.
//!
//! # Invariants
//! - A record counts only if its commit word names this table's instance and this index. The reader
//!   skips and counts a hole, which a thread leaves that dies between reserving and committing.
//! - Commit words of an older instance never match, so the log needs no clearing.

use crate::context::TAGS;
use crate::sync::{AtomicU64, Ordering};

/// One sample as the handler stores it: 128 bytes, two cache lines.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SampleRecord {
    /// Instance id << 32 | index + 1, stored last.
    pub commit: AtomicU64,
    /// Time in the unit of the control block's clock mode.
    pub time: AtomicU64,
    /// Id of the call trace.
    pub trace_id: AtomicU64,
    /// Thread slot << 32 | the slot's generation.
    pub thread: AtomicU64,
    /// Kernel thread id << 32 | weight in periods.
    pub tid_weight: AtomicU64,
    /// [`flags`] << 32 | run state << 16 | end reason of the unwinding.
    pub flags: AtomicU64,
    /// Origin of the context << 32 | system call number + 1, or 0.
    pub source_syscall: AtomicU64,
    /// Span id, or 0.
    pub span: AtomicU64,
    /// Root span id, or 0.
    pub root_span: AtomicU64,
    /// Ten 32-bit tags.
    pub tags: [AtomicU64; 5],
    /// Number of the call trace with the name of the task, plus 1, or 0 << 32 | index of the perf
    /// event that fired.
    pub event: AtomicU64,
    /// Upper half of a 128-bit root id, or 0.
    pub root_high: AtomicU64,
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<SampleRecord>() == 128);

/// Bits in the upper half of [`SampleRecord::flags`].
pub mod flags {
    /// The signal was blocked. The stack is where the thread unblocked it.
    pub const LATE: u32 = 1;
    /// The thread was in kernel mode at the expiry. The stack is that of the call into the kernel.
    pub const KERNEL: u32 = 2;
    /// The first sample of a thread that did not exist at attach.
    pub const FIRST: u32 = 4;
    /// No expiry: CPU time that a thread used before it exited and that no sample covers.
    pub const REMAINDER: u32 = 8;
    /// The expiry of a timer.
    pub const TIMER: u32 = 16;
    /// No expiry: time of the thread in one state. The weight is in microseconds of wall clock
    /// time, not in periods.
    pub const WALL: u32 = 32;
    /// No handler read the context. It is inferred: the thread had it long before this sample, and
    /// after it.
    pub const CARRIED: u32 = 64;
    /// The thread held the lock that it needs to run functions of a language's runtime, such as
    /// the GIL of Python.
    pub const HOLDS_LOCK: u32 = 128;
}

/// The plain values of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    /// Time in the unit of the control block's clock mode.
    pub time: u64,
    /// Id of the call trace.
    pub trace_id: u64,
    /// Thread slot.
    pub slot: u32,
    /// The slot's generation at the time of the sample.
    pub generation: u32,
    /// The kernel's thread id in the target's pid namespace.
    pub tid: u32,
    /// Weight in sampling periods; in microseconds with [`flags::WALL`].
    pub weight: u32,
    /// [`flags`].
    pub flags: u32,
    /// Run state, 0 for running.
    pub state: u16,
    /// End reason of the unwinding.
    pub reason: u16,
    /// System call number + 1, or 0.
    pub syscall: u64,
    /// Span id, or 0.
    pub span: u64,
    /// Root span id, or 0.
    pub root_span: u64,
    /// Upper half of a 128-bit root id, or 0.
    pub root_high: u64,
    /// Origin of the context: one of [`crate::context::origin`].
    pub source: u32,
    /// Tags as the source has them, 0 for none. If the origin is a record, the first two are the id
    /// of the call trace that holds its attributes as frames.
    pub tags: [u32; TAGS],
    /// Index of the perf event that fired.
    pub event: u64,
    /// Id of the call trace of this table that holds the name of the thread's task as frames, as it
    /// holds attributes. 0 for none.
    pub task: u64,
}

impl SampleRecord {
    /// Stores `sample` as record `index` of table instance `instance`.
    pub fn commit(&self, instance: u32, index: usize, sample: &Sample) {
        // Relaxed: the commit word publishes all fields.
        let store = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
        store(&self.time, sample.time);
        store(&self.trace_id, sample.trace_id);
        store(&self.thread, u64::from(sample.slot) << 32 | u64::from(sample.generation));
        store(&self.tid_weight, u64::from(sample.tid) << 32 | u64::from(sample.weight));
        let flags = u64::from(sample.flags) << 32
            | u64::from(sample.state) << 16
            | u64::from(sample.reason);
        store(&self.flags, flags);
        store(&self.source_syscall, u64::from(sample.source) << 32 | sample.syscall);
        store(&self.span, sample.span);
        store(&self.root_span, sample.root_span);
        store(&self.root_high, sample.root_high);
        let (tags, _) = sample.tags.as_chunks::<2>();
        for (word, [low, high]) in self.tags.iter().zip(tags) {
            store(word, u64::from(*high) << 32 | u64::from(*low));
        }
        let task = if sample.task == 0 { 0 } else { (sample.task as u32).wrapping_add(1) };
        store(&self.event, u64::from(task) << 32 | u64::from(sample.event as u32));
        // Release: pairs with the Acquire in `read`; makes the fields above visible.
        self.commit.store(commit_word(instance, index), Ordering::Release);
    }

    /// Returns the sample, if the record was committed in this instance.
    pub fn read(&self, instance: u32, index: usize) -> Option<Sample> {
        // Acquire: pairs with the Release in `commit`.
        if self.commit.load(Ordering::Acquire) != commit_word(instance, index) {
            return None;
        }
        // Relaxed: ordered by the load above.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let (thread, tid_weight, flags) =
            (load(&self.thread), load(&self.tid_weight), load(&self.flags));
        let (source_syscall, event) = (load(&self.source_syscall), load(&self.event));
        let mut tags = [0; TAGS];
        for (tags, word) in tags.as_chunks_mut::<2>().0.iter_mut().zip(&self.tags) {
            let word = load(word);
            *tags = [word as u32, (word >> 32) as u32];
        }
        Some(Sample {
            time: load(&self.time),
            trace_id: load(&self.trace_id),
            slot: (thread >> 32) as u32,
            generation: thread as u32,
            tid: (tid_weight >> 32) as u32,
            weight: tid_weight as u32,
            flags: (flags >> 32) as u32,
            state: (flags >> 16) as u16,
            reason: flags as u16,
            syscall: source_syscall & u64::from(u32::MAX),
            source: (source_syscall >> 32) as u32,
            span: load(&self.span),
            root_span: load(&self.root_span),
            root_high: load(&self.root_high),
            tags,
            event: event & u64::from(u32::MAX),
            task: match (event >> 32).checked_sub(1) {
                Some(number) => u64::from(instance) << 32 | number,
                None => 0,
            },
        })
    }
}

fn commit_word(instance: u32, index: usize) -> u64 {
    #[cfg(loom)]
    if crate::sync::planted::has(crate::sync::planted::Mistake::CommitOfAnyInstance) {
        return index as u64 + 1;
    }
    u64::from(instance) << 32 | (index as u64 + 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The name of a task is the first call trace of a table whose stacks are all known.
    #[test]
    fn task_with_the_first_number_is_no_missing_one() {
        let record = SampleRecord::default();
        for task in [0, 7 << 32, 7 << 32 | 1, 7 << 32 | 0xffff_fffe] {
            let sample = Sample { task, event: 5, ..Sample::default() };
            record.commit(7, 3, &sample);
            assert_eq!(record.read(7, 3), Some(sample));
        }
    }
}
