//! A thread of a loaded trace: its samples in order and its forest of calls.
//!
//! # Invariants
//! - Nodes and stacks are indices in flat vectors: the depth of a trace costs no stack here.
//! - A stack is a path in `paths`, where a parent always comes before its children.

use super::{LocationId, NONE, Sample, Thread, ThreadId};

/// A thread and its recorded data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadTrace {
    pub(super) id: ThreadId,
    pub(super) thread: Thread,
    pub(super) nodes: Vec<NodeRecord>,
    pub(super) roots: Vec<u32>,
    pub(super) samples: Vec<SampleRecord>,
    /// The indices of `samples` in the order of recording.
    pub(super) order: Vec<u32>,
    pub(super) paths: Vec<(u32, LocationId)>,
}

/// A sample and the path of its stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SampleRecord {
    pub(super) sample: Sample,
    pub(super) path: u32,
    /// The number of the path's innermost frames that are the sample's own.
    pub(super) frames: u32,
}

/// A node of the forest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeRecord {
    pub(super) content: Content,
    pub(super) next: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Call(CallRecord),
    Sample(u32),
    Gap { from_ns: u64, to_ns: u64 },
    ThreadStart { time_ns: u64 },
    ThreadExit { time_ns: u64 },
    Lost { from_ns: u64, to_ns: u64, samples: Option<u64> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallRecord {
    pub(super) location: LocationId,
    pub(super) call_site: Option<LocationId>,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) samples: u64,
    pub(super) unfinished: bool,
    pub(super) begin_lost: bool,
    pub(super) end_lost: bool,
    pub(super) first_child: u32,
    pub(super) last_child: u32,
}

/// A node of a thread's forest.
#[derive(Debug, Clone, Copy)]
pub enum Node<'a> {
    /// A method call.
    Call(Call<'a>),
    /// A sample that was taken in the parent call.
    Sample(&'a Sample),
    /// A time about which nothing is known; the calls before it ended.
    Gap {
        /// The time of the last sample before the gap.
        from_ns: u64,
        /// The time of the first sample after the gap.
        to_ns: u64,
    },
    /// The thread started during the recording.
    ThreadStart {
        /// The time at which it was first seen.
        time_ns: u64,
    },
    /// The thread exited during the recording.
    ThreadExit {
        /// The time at which its exit was seen.
        time_ns: u64,
    },
    /// A loss, since the file is damaged. The parent call continued over it.
    Lost {
        /// The time of the last sample before the loss, 0 if there is none.
        from_ns: u64,
        /// The time of the first sample after the loss, [`u64::MAX`] if there is none.
        to_ns: u64,
        /// The number of lost samples, if it is known.
        samples: Option<u64>,
    },
}

impl Node<'_> {
    /// Returns the start time; for a call, the time of its first sample.
    pub fn first_ns(&self) -> u64 {
        match self {
            Self::Call(call) => call.first_ns(),
            Self::Sample(sample) => sample.time_ns,
            Self::Gap { from_ns, .. } | Self::Lost { from_ns, .. } => *from_ns,
            Self::ThreadStart { time_ns } | Self::ThreadExit { time_ns } => *time_ns,
        }
    }
}

/// A method call: consecutive samples that show the same activation.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    trace: &'a ThreadTrace,
    record: &'a CallRecord,
}

impl<'a> Call<'a> {
    /// Returns the location at which the call was first seen. The method of that location is the
    /// call's method throughout.
    pub fn location(&self) -> LocationId {
        self.record.location
    }

    /// Returns the location in the parent call from which it was called, `None` for a root.
    pub fn call_site(&self) -> Option<LocationId> {
        self.record.call_site
    }

    /// Returns the time of the first sample that shows the call.
    pub fn first_ns(&self) -> u64 {
        self.record.first_ns
    }

    /// Returns the time of the last sample that shows the call.
    pub fn last_ns(&self) -> u64 {
        self.record.last_ns
    }

    /// Returns the number of samples that show the call: its own and those of the calls below it.
    pub fn samples(&self) -> u64 {
        self.record.samples
    }

    /// Returns whether the recording ended before the end of the call was seen.
    pub fn unfinished(&self) -> bool {
        self.record.unfinished
    }

    /// Returns whether its start is lost: it was open where the file continues after damage.
    pub fn begin_lost(&self) -> bool {
        self.record.begin_lost
    }

    /// Returns whether its end is lost: it was open before damage and is not open after it.
    pub fn end_lost(&self) -> bool {
        self.record.end_lost
    }

    /// Iterates over the nodes in the call, by time.
    pub fn children(&self) -> impl Iterator<Item = Node<'a>> + use<'a> {
        let trace = self.trace;
        let mut next = self.record.first_child;
        std::iter::from_fn(move || {
            let record = trace.nodes.get(next as usize)?;
            next = record.next;
            Some(trace.node(record))
        })
    }
}

impl ThreadTrace {
    /// Returns the dense id.
    pub fn id(&self) -> ThreadId {
        self.id
    }

    /// Returns the process, kernel thread id and last name.
    pub fn thread(&self) -> &Thread {
        &self.thread
    }

    /// Returns the number of samples.
    pub fn sample_count(&self) -> usize {
        self.samples.len()
    }

    /// Returns the time of the first sample.
    pub fn first_ns(&self) -> Option<u64> {
        self.order.first().map(|first| self.samples[*first as usize].sample.time_ns)
    }

    /// Returns the time of the last sample.
    pub fn last_ns(&self) -> Option<u64> {
        self.order.last().map(|last| self.samples[*last as usize].sample.time_ns)
    }

    /// Iterates over the outermost calls and the nodes between them, by time. The calls of
    /// `[truncated]` come last.
    pub fn roots(&self) -> impl Iterator<Item = Node<'_>> {
        self.roots.iter().map(|root| self.node(&self.nodes[*root as usize]))
    }

    /// Calls `f` with each sample and its stack, root first, in the order of recording.
    pub fn for_each_sample(&self, f: &mut dyn FnMut(&Sample, &[LocationId])) {
        let mut stack = Vec::new();
        for place in &self.order {
            let SampleRecord { sample, path, frames } = &self.samples[*place as usize];
            stack.clear();
            let mut path = *path;
            for _ in 0..*frames {
                let (parent, location) = self.paths[path as usize];
                stack.push(location);
                path = parent;
            }
            stack.reverse();
            f(sample, &stack);
        }
    }

    fn node<'a>(&'a self, record: &'a NodeRecord) -> Node<'a> {
        match &record.content {
            Content::Call(record) => Node::Call(Call { trace: self, record }),
            Content::Sample(place) => Node::Sample(&self.samples[*place as usize].sample),
            Content::Gap { from_ns, to_ns } => Node::Gap { from_ns: *from_ns, to_ns: *to_ns },
            Content::ThreadStart { time_ns } => Node::ThreadStart { time_ns: *time_ns },
            Content::ThreadExit { time_ns } => Node::ThreadExit { time_ns: *time_ns },
            Content::Lost { from_ns, to_ns, samples } => {
                Node::Lost { from_ns: *from_ns, to_ns: *to_ns, samples: *samples }
            }
        }
    }
}

/// The index that stands for no node.
pub(super) const NO_NODE: u32 = NONE;
