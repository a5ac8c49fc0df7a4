//! The context of a thread: the span and tags that it works on at one moment.

use traceprof_abi::context::ATTRIBUTES_MAX;
use traceprof_abi::storage::log::Sample;

/// The context of a thread at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThreadContext {
    pub(crate) source: u32,
    pub(crate) span: u64,
    pub(crate) root_span: u64,
    pub(crate) root_high: u64,
    pub(crate) tags: [u32; 10],
    /// The number of the name of its task, or 0.
    pub(crate) task: u32,
}

impl ThreadContext {
    /// Returns the context of a sample.
    pub(crate) fn of(sample: &Sample) -> Self {
        let Sample { source, span, root_span, root_high, tags, task, .. } = *sample;
        Self { source, span, root_span, root_high, tags, task: task as u32 }
    }

    /// Sets this context on a sample.
    pub(crate) fn give(self, sample: &mut Sample) {
        let Self { source, span, root_span, root_high, tags, task } = self;
        (sample.source, sample.span, sample.tags) = (source, span, tags);
        (sample.root_span, sample.root_high) = (root_span, root_high);
        sample.task = u64::from(task);
    }
}

/// A reader of the contexts of the target's threads, from outside.
pub(crate) trait ReadContext: Sync {
    /// Returns the context of a thread; the result is exact only if the thread does not run
    /// meanwhile.
    fn read(&self, tid: i32) -> ThreadContext;
    /// Returns the number of the name of the task that a thread runs, or 0. `thread` is the thread
    /// pointer and the inner id; the result is as exact as that of [`Self::read`].
    fn read_task(&self, thread: (u64, u32)) -> u32;
    /// Returns whether no thread of the target publishes a context.
    fn is_empty(&self) -> bool;
}

/// Decodes a set of attributes from a handler: the length, then the bytes in 64-bit words.
pub(crate) fn unpack(mut words: impl Iterator<Item = u64>) -> Option<Box<[u8]>> {
    let len = usize::try_from(words.next()?).ok().filter(|len| *len <= ATTRIBUTES_MAX)?;
    let words = words.take(len.div_ceil(8));
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take(len).collect();
    (bytes.len() == len).then(|| bytes.into())
}
