//! What the collector hands to the writer thread: plain, owned values.

use crate::record::batch::threads::ThreadNews;
use std::collections::HashMap;
use std::sync::Arc;

use traceprof_abi::storage::log::Sample;

use crate::record::batch::raw_stacks::Slices;
use crate::record::batch::traces::{Collection, TraceEntry, empty};
use crate::record::target::modules::AddressMap;
use crate::trace::Metadata;

/// Samples that an empty batch keeps room for.
const SAMPLES_LEAST: usize = 4096;

/// One rotation's worth. Once sent it changes no more: several threads may read it at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batch {
    /// The traces: new ones and all that are preserved.
    pub(crate) traces: Collection,
    /// Stack of samples that did not reach their root, until they have been followed.
    pub(crate) slices: Slices,
    /// The samples with their times in CLOCK_MONOTONIC nanoseconds, by thread, then time.
    pub(crate) samples: Vec<Sample>,
    /// What threads wait on that are asleep; a sample of theirs has in `event` the place of its
    /// text in this list, plus 1.
    pub(crate) texts: Vec<Arc<str>>,
    /// Their numbers.
    pub(crate) numbers: HashMap<Arc<str>, u64>,
    /// A bit for each tag of the samples whose values are such places, not numbers.
    pub(crate) text_tags: u16,
    /// Attributes of thread context records, by the ids that samples name them with.
    pub(crate) attributes: HashMap<u64, Box<[u8]>>,
    /// Threads that came, changed or went.
    pub(crate) threads: Vec<ThreadNews>,
    /// What is mapped where, if it changed.
    pub(crate) addresses: Option<Arc<AddressMap>>,
    /// Traces whose stacks are kept when no collection has them any more, in place of those that
    /// were.
    pub(crate) keep: Option<Vec<u64>>,
    /// What is to be said of the recording.
    pub(crate) metadata: Metadata,
    /// Everything so far must be readable by others when the batch has been written.
    pub(crate) flush: bool,
}

impl Batch {
    /// The number of a text for a sample's `event` or a tag.
    pub(crate) fn text(&mut self, text: &Arc<str>) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        self.texts.push(Arc::clone(text));
        let number = self.texts.len() as u64;
        self.numbers.insert(Arc::clone(text), number);
        number
    }

    /// Something in it has not been told before.
    pub(crate) fn has_news(&self) -> bool {
        let is_new = |entry: &TraceEntry| !entry.preserved;
        self.flush
            || !self.samples.is_empty()
            || !self.threads.is_empty()
            || !self.metadata.is_empty()
            || self.traces.entries().iter().any(is_new)
    }

    /// Bytes of memory that it has, but for a few of words and texts.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.traces.bytes()
            + self.slices.bytes()
            + self.samples.capacity() * size_of::<Sample>()
            + self.threads.capacity() * size_of::<ThreadNews>()
    }

    /// Forgets what a batch before it has told of as well, and gives back the memory that is not
    /// needed.
    pub(crate) fn condense(&mut self) {
        self.traces.keep_new();
        self.slices = Slices::default();
        self.samples.shrink_to_fit();
        self.threads.shrink_to_fit();
    }

    /// Puts the samples in order, whatever order they came in.
    pub(crate) fn sort(&mut self) {
        self.traces.seal();
        // Unstable, since a stable sort takes memory; what is equal in all of this is equal.
        self.samples.sort_unstable_by_key(|sample| {
            let thread = (sample.slot, sample.generation);
            (thread, sample.time, sample.trace_id, sample.weight, sample.flags, sample.event)
        });
    }

    /// Empties it to be used again.
    pub(crate) fn clear(&mut self) {
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
