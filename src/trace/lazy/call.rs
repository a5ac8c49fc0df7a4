//! A call of a lazily read trace: the location of its children, and those that are loaded.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Window;
use crate::trace::forest::gap;
use crate::trace::object::TracePoint;
use crate::trace::{LocationId, SIDE, Sample, ThreadId};

/// A call, or a thread as the parent of its roots.
/// [`LazyTrace::load_all`](super::LazyTrace::load_all) and similar functions load its children. The
/// caller can forget children and load them again.
#[derive(Debug)]
pub struct LazyCall {
    pub(super) place: ContentPosition,
    pub(super) location: Option<LocationId>,
    pub(super) call_site: Option<LocationId>,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) samples: u64,
    /// The numbers of the first sample in the call and of the first one after it; `None` for a
    /// thread.
    pub(super) numbers: Option<(u64, u64)>,
    pub(super) ending: CallEnding,
    pub(super) begin_lost: bool,
    /// The time range that its children are limited to.
    pub(super) times: Option<(u64, u64)>,
    pub(super) count: Option<u32>,
    pub(super) marks: Vec<Mark>,
    pub(super) children: BTreeMap<u32, LazyNode>,
}

/// The position of a call's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentPosition {
    /// Both streams of a thread, from their start.
    Thread(u32),
    /// The content of a call in a stream.
    Call {
        /// The stream.
        stream: u32,
        /// The number of open calls in it, including the call itself.
        depth: usize,
        /// The logical offset of the first byte.
        start: u64,
    },
}

/// The part of a call's content in one stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) stream: u32,
    pub(super) depth: usize,
    pub(super) start: u64,
}

impl ContentPosition {
    /// Iterates over the parts, in the order of their children.
    pub(super) fn segments(self) -> impl Iterator<Item = Segment> {
        let (first, second) = match self {
            Self::Thread(id) => {
                let of = |stream| Segment { stream, depth: 0, start: 0 };
                (of(id), Some(of(id | SIDE)))
            }
            Self::Call { stream, depth, start } => (Segment { stream, depth, start }, None),
        };
        std::iter::once(first).chain(second)
    }
}

/// The way in which a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallEnding {
    /// The recording shows the end of the call.
    Seen,
    /// The recording ended before the call, or is still running.
    Unfinished,
    /// The end is in a lost part of the file.
    Lost,
    /// The end is in a lost part of the file, or missing: the recording has no end.
    LostOrUnfinished,
}

/// A block of a call's content and the number of the call's children that start before that block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) children: u32,
    pub(super) segment: usize,
    pub(super) block: u64,
}

/// A child of a call.
#[derive(Debug)]
pub enum LazyNode {
    /// A method call.
    Call(Box<LazyCall>),
    /// A sample that was taken in the parent call.
    Sample(Box<Sample>),
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
    /// A part of the file that cannot be read.
    Lost {
        /// The time of the last sample before the loss.
        from_ns: u64,
        /// The time of the first sample after the loss.
        to_ns: u64,
        /// The number of lost samples, if later data states it.
        samples: Option<u64>,
    },
}

impl LazyNode {
    /// Converts a trace point without children, in a stream whose last sample is at `last_ns`.
    pub(super) fn of_point(point: TracePoint, last_ns: u64) -> Option<Self> {
        Some(match point {
            TracePoint::Gap { before, length } => {
                let (from_ns, to_ns) = gap(before, length, last_ns).ok()?;
                Self::Gap { from_ns, to_ns }
            }
            TracePoint::ThreadStart { time_ns } => Self::ThreadStart { time_ns },
            TracePoint::ThreadExit { time_ns } => Self::ThreadExit { time_ns },
            _ => return None,
        })
    }

    /// Returns the start and the end time; for a call, the times of its first and last sample.
    pub fn times(&self) -> (u64, u64) {
        match self {
            Self::Call(call) => (call.first_ns, call.last_ns),
            Self::Sample(sample) => (sample.time_ns, sample.time_ns),
            Self::Gap { from_ns, to_ns } | Self::Lost { from_ns, to_ns, .. } => (*from_ns, *to_ns),
            Self::ThreadStart { time_ns } | Self::ThreadExit { time_ns } => (*time_ns, *time_ns),
        }
    }
}

impl LazyCall {
    /// Creates the thread as the parent of its roots.
    pub(super) fn of_thread(id: ThreadId) -> Self {
        Self::new(ContentPosition::Thread(id.0), None, None)
    }

    pub(super) fn new(
        place: ContentPosition,
        location: Option<LocationId>,
        call_site: Option<LocationId>,
    ) -> Self {
        Self {
            place,
            location,
            call_site,
            first_ns: u64::MAX,
            last_ns: 0,
            samples: 0,
            numbers: None,
            ending: CallEnding::Seen,
            begin_lost: false,
            times: None,
            count: None,
            marks: Vec::new(),
            children: BTreeMap::new(),
        }
    }

    /// Returns the location at which the call was first seen. The method of that location is the
    /// call's method throughout. `None` for a thread.
    pub fn location(&self) -> Option<LocationId> {
        self.location
    }

    /// Returns the location in the parent call from which it was called, `None` for a root.
    pub fn call_site(&self) -> Option<LocationId> {
        self.call_site
    }

    /// Returns the time of the first sample that shows the call.
    pub fn first_ns(&self) -> u64 {
        self.first_ns
    }

    /// Returns the time of the last sample that shows the call.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Returns the number of samples that show the call: its own and those of the calls below it.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the numbers of the call's samples within its stream, including lost ones; `None` for
    /// a thread. [`LazyTrace::for_each_sample_of`](super::LazyTrace::for_each_sample_of) reads
    /// them.
    pub fn sample_numbers(&self) -> Option<Range<u64>> {
        self.numbers.map(|(first, end)| first..end)
    }

    /// Returns whether the call is in the thread's side stream, under a call of `[truncated]`.
    pub fn is_side(&self) -> bool {
        matches!(self.place, ContentPosition::Call { stream, .. } if stream & SIDE != 0)
    }

    /// Returns whether the recording ended before the end of the call was seen.
    pub fn unfinished(&self) -> bool {
        matches!(self.ending, CallEnding::Unfinished | CallEnding::LostOrUnfinished)
    }

    /// Returns whether the start of the call is in a lost part of the file.
    pub fn begin_lost(&self) -> bool {
        self.begin_lost
    }

    /// Returns whether the end of the call is in a lost part of the file.
    pub fn end_lost(&self) -> bool {
        matches!(self.ending, CallEnding::Lost | CallEnding::LostOrUnfinished)
    }

    /// Returns the number of children, loaded or not. `None` if nobody has counted them yet, as in
    /// a recording that was not finished;
    /// [`LazyTrace::count_children`](super::LazyTrace::count_children) counts them.
    pub fn child_count(&self) -> Option<u32> {
        self.count
    }

    /// Returns a loaded child.
    pub fn child(&self, number: u32) -> Option<&LazyNode> {
        self.children.get(&number)
    }

    /// Returns a loaded child, so that the caller can load its children.
    pub fn child_mut(&mut self, number: u32) -> Option<&mut LazyNode> {
        self.children.get_mut(&number)
    }

    /// Removes and returns a loaded child; it can be loaded again.
    pub fn take(&mut self, number: u32) -> Option<LazyNode> {
        self.children.remove(&number)
    }

    /// Iterates over the loaded children with their numbers.
    pub fn loaded(&self) -> impl Iterator<Item = (u32, &LazyNode)> {
        self.children.iter().map(|(number, child)| (*number, child))
    }

    /// Returns whether all children are loaded.
    pub fn is_loaded(&self) -> bool {
        self.count.is_some_and(|count| self.children.len() == count as usize)
    }

    /// Limits the children to those that overlap a window's times: from now on only these are
    /// counted, numbered and loaded. The properties of the call itself stay. Forgets all children.
    pub fn narrow(&mut self, window: &Window) {
        self.times = Some((window.from_ns, window.to_ns));
        self.count = None;
        self.marks.clear();
        self.forget_all();
    }

    /// Forgets children; they can be loaded again.
    pub fn forget(&mut self, children: Range<u32>) {
        if !children.is_empty() {
            let mut after = self.children.split_off(&children.start);
            self.children.append(&mut after.split_off(&children.end));
        }
    }

    /// Forgets all children; they can be loaded again.
    pub fn forget_all(&mut self) {
        self.children.clear();
    }
}

impl Drop for LazyCall {
    /// Dismantles deep trees level by level: a nested drop would use stack in proportion to their
    /// depth.
    fn drop(&mut self) {
        let mut rest: Vec<_> = std::mem::take(&mut self.children).into_values().collect();
        while let Some(node) = rest.pop() {
            if let LazyNode::Call(mut call) = node {
                rest.extend(std::mem::take(&mut call.children).into_values());
            }
        }
    }
}
