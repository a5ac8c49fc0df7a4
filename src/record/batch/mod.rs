//! The data that flows from stage to stage: the batch of one rotation, with its samples, traces,
//! threads and addresses as plain owned values.

pub(crate) mod contexts;
pub(crate) mod functions;
pub(crate) mod java;
pub(crate) mod javascript;
pub(crate) mod kernel_functions;
pub(crate) mod mapped;
pub(crate) mod process;
pub(crate) mod raw_stacks;
pub(crate) mod threads;
pub(crate) mod traces;

use crate::record::batch::threads::ThreadChange;
use std::collections::HashMap;
use std::sync::Arc;

use traceprof_abi::storage::log::Sample;

use crate::record::batch::functions::NewFunctions;
use crate::record::batch::java::NewJava;
use crate::record::batch::javascript::NewJavaScript;
use crate::record::batch::kernel_functions::NewKernelFunctions;
use crate::record::batch::raw_stacks::Slices;
use crate::record::batch::traces::{Collection, TraceEntry, empty};
use crate::record::target::modules::AddressMap;
use crate::trace::Metadata;

/// The number of samples that an empty batch keeps room for.
const SAMPLES_LEAST: usize = 4096;

/// The data of one rotation.
///
/// Once sent, a batch is immutable, so several threads may read it concurrently.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batch {
    /// The call traces: new ones and all preserved ones.
    pub(crate) traces: Collection,
    /// The functions that the new traces are the first to use.
    pub(crate) functions: NewFunctions,
    /// The code of a Java machine that the new traces are the first to use.
    pub(crate) java: NewJava,
    /// The functions and the code of JavaScript that the new traces are the first to use.
    pub(crate) javascript: NewJavaScript,
    /// Functions of the kernel in which threads sleep, that the new traces are the first to use.
    pub(crate) kernel_functions: NewKernelFunctions,
    /// The raw stacks of samples that did not reach their root, until the recorder has unwound
    /// them.
    pub(crate) slices: Slices,
    /// The samples, sorted by thread and then time; times are CLOCK_MONOTONIC nanoseconds.
    pub(crate) samples: Vec<Sample>,
    /// Texts, such as what a sleeping thread waits on.
    ///
    /// A sample's `event`, or a tag in `text_tags`, is the index of a text plus 1.
    pub(crate) texts: Vec<Arc<str>>,
    /// The index plus 1 of each text in `texts`.
    pub(crate) numbers: HashMap<Arc<str>, u64>,
    /// One bit for each tag; a set bit means that the tag's values are texts, not numbers.
    pub(crate) text_tags: u16,
    /// Attributes of thread context records, by the ids that samples refer to.
    pub(crate) attributes: HashMap<u64, Box<[u8]>>,
    /// Threads that appeared, changed their name or exited.
    pub(crate) threads: Vec<ThreadChange>,
    /// The target's address map, if it changed.
    pub(crate) addresses: Option<Arc<AddressMap>>,
    /// The ids of traces whose stacks the writer keeps after they leave the collection. They
    /// replace the previous list.
    pub(crate) keep: Option<Vec<u64>>,
    /// New metadata of the recording.
    pub(crate) metadata: Metadata,
    /// Whether the writer flushes after this batch, so that readers see everything so far.
    pub(crate) flush: bool,
}

impl Batch {
    /// Returns the number of a text for a sample's `event` or a tag, and adds a new text.
    pub(crate) fn text(&mut self, text: &Arc<str>) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        self.texts.push(Arc::clone(text));
        let number = self.texts.len() as u64;
        self.numbers.insert(Arc::clone(text), number);
        number
    }

    /// Returns whether the batch has anything to write.
    pub(crate) fn has_new_data(&self) -> bool {
        let is_new = |entry: &TraceEntry| !entry.preserved;
        self.flush
            || !self.samples.is_empty()
            || !self.threads.is_empty()
            || !self.metadata.is_empty()
            || self.traces.entries().iter().any(is_new)
    }

    /// Returns the bytes of memory allocated, without those of texts and attributes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.traces.bytes()
            + self.slices.bytes()
            + self.samples.capacity() * size_of::<Sample>()
            + self.threads.capacity() * size_of::<ThreadChange>()
    }

    /// Removes what an earlier batch contains too, and frees unused memory.
    pub(crate) fn condense(&mut self) {
        self.traces.keep_new();
        self.slices = Slices::default();
        self.samples.shrink_to_fit();
        self.threads.shrink_to_fit();
    }

    /// Seals the traces and sorts the samples.
    pub(crate) fn sort(&mut self) {
        self.traces.seal();
        // Unstable, since a stable sort allocates memory. Samples with equal keys are
        // interchangeable.
        self.samples.sort_unstable_by_key(|sample| {
            let thread = (sample.slot, sample.generation);
            (thread, sample.time, sample.trace_id, sample.weight, sample.flags, sample.event)
        });
    }

    /// Empties the batch, and keeps its memory for reuse.
    pub(crate) fn clear(&mut self) {
        self.traces.clear();
        self.slices.clear();
        self.functions.clear();
        self.java.clear();
        self.javascript.clear();
        self.kernel_functions.clear();
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
