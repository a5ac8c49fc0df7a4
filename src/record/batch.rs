//! What the collector hands to the scribe: plain, owned values.

use std::collections::HashMap;
use std::sync::Arc;

use traceprof_abi::storage::log::Sample;

use super::collections::{Collection, TraceEntry, empty};
use super::modules::AddressMap;
use super::slices::Slices;
use crate::trace::Metadata;

/// Samples that an empty batch keeps room for.
const SAMPLES_LEAST: usize = 4096;

/// Who a thread is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ThreadLife {
    /// Its id as the recorder sees it.
    pub(super) tid: i32,
    /// Its process's id and its own in the innermost pid namespace.
    pub(super) inner: (u32, u32),
    /// Its name.
    pub(super) name: String,
    /// When it started, or was first heard of, in CLOCK_MONOTONIC nanoseconds.
    pub(super) start_ns: u64,
}

/// What happened to a thread. The key is that of its samples once they have been attributed: it
/// names one thread for the whole recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ThreadNews {
    /// A thread that has samples, or a slot for them.
    Seen { key: (u32, u32), life: ThreadLife },
    /// It has another name now.
    Renamed { key: (u32, u32), name: String },
    /// It is gone; no sample of it follows.
    Gone { key: (u32, u32), time_ns: u64 },
}

/// One rotation's worth. Once sent it changes no more: several threads may read it at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Batch {
    /// The traces: new ones and all that are preserved.
    pub(super) traces: Collection,
    /// Stack of samples that did not reach their root, until they have been followed.
    pub(super) slices: Slices,
    /// The samples with their times in CLOCK_MONOTONIC nanoseconds, by thread, then time.
    pub(super) samples: Vec<Sample>,
    /// What threads wait on that are asleep; a sample of theirs has in `event` the place of its text in
    /// this list, plus 1.
    pub(super) texts: Vec<Arc<str>>,
    /// Their numbers.
    pub(super) numbers: HashMap<Arc<str>, u64>,
    /// A bit for each tag of the samples whose values are such places, not numbers.
    pub(super) text_tags: u16,
    /// Attributes of thread context records, by the ids that samples name them with.
    pub(super) attributes: HashMap<u64, Box<[u8]>>,
    /// Threads that came, changed or went.
    pub(super) threads: Vec<ThreadNews>,
    /// What is mapped where, if it changed.
    pub(super) addresses: Option<Arc<AddressMap>>,
    /// Traces whose stacks are kept when no collection has them any more, in place of those that were.
    pub(super) keep: Option<Vec<u64>>,
    /// What is to be said of the recording.
    pub(super) metadata: Metadata,
    /// Everything so far must be readable by others when the batch has been written.
    pub(super) flush: bool,
}

impl Batch {
    /// The number of a text for a sample's `event` or a tag.
    pub(super) fn text(&mut self, text: &Arc<str>) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        self.texts.push(Arc::clone(text));
        let number = self.texts.len() as u64;
        self.numbers.insert(Arc::clone(text), number);
        number
    }

    /// Something in it has not been told before.
    pub(super) fn has_news(&self) -> bool {
        let is_new = |entry: &TraceEntry| !entry.preserved;
        self.flush
            || !self.samples.is_empty()
            || !self.threads.is_empty()
            || !self.metadata.is_empty()
            || self.traces.entries().iter().any(is_new)
    }

    /// Bytes of memory that it has, but for a few of words and texts.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.traces.bytes()
            + self.slices.bytes()
            + self.samples.capacity() * size_of::<Sample>()
            + self.threads.capacity() * size_of::<ThreadNews>()
    }

    /// Forgets what a batch before it has told of as well, and gives back the memory that is not needed.
    pub(super) fn condense(&mut self) {
        self.traces.keep_new();
        self.slices = Slices::default();
        self.samples.shrink_to_fit();
        self.threads.shrink_to_fit();
    }

    /// Puts the samples in order, whatever order they came in.
    pub(super) fn sort(&mut self) {
        self.traces.seal();
        // Unstable, since a stable sort takes memory; what is equal in all of this is equal.
        self.samples.sort_unstable_by_key(|sample| {
            let thread = (sample.slot, sample.generation);
            (thread, sample.time, sample.trace_id, sample.weight, sample.flags, sample.event)
        });
    }

    /// Empties it to be used again.
    pub(super) fn clear(&mut self) {
        self.traces.clear();
        self.slices.clear();
        empty(&mut self.samples, SAMPLES_LEAST);
        self.texts.clear();
        self.numbers.clear();
        self.text_tags = 0;
        self.attributes.clear();
        self.threads.clear();
        self.addresses = None;
        self.keep = None;
        self.metadata.clear();
        self.flush = false;
    }
}
