//! A call of a lazily read trace: it knows where its children are, and has those that were loaded.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Window;
use crate::trace::forest::gap;
use crate::trace::object::Point;
use crate::trace::{LocationId, SIDE, Sample, ThreadId};

/// A call, or a thread as the parent of its roots. Its children are loaded by
/// [`LazyTrace::load_all`](super::LazyTrace::load_all) and its like, and can be forgotten and
/// loaded again.
#[derive(Debug)]
pub struct LazyCall {
    pub(super) place: Place,
    pub(super) location: Option<LocationId>,
    pub(super) call_site: Option<LocationId>,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) samples: u64,
    /// The numbers of the first sample in it and of the first behind it; not of a thread.
    pub(super) numbers: Option<(u64, u64)>,
    pub(super) ending: Ending,
    pub(super) begin_lost: bool,
    /// The times that its children are narrowed to.
    pub(super) times: Option<(u64, u64)>,
    pub(super) count: Option<u32>,
    pub(super) marks: Vec<Mark>,
    pub(super) children: BTreeMap<u32, LazyNode>,
}

/// Where the content of a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Both streams of a thread, from their begins on.
    Thread(u32),
    /// In a stream.
    Call {
        stream: u32,
        /// Calls that are open in it, itself included.
        depth: usize,
        /// Logical offset of the first byte.
        start: u64,
    },
}

/// A part of a call's content that lies in one stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) stream: u32,
    pub(super) depth: usize,
    pub(super) start: u64,
}

impl Place {
    /// The parts, in the order of their children.
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

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It was seen to end.
    Seen,
    /// The recording ended, or goes on.
    Unfinished,
    /// Somewhere in a part of the file that is lost.
    Lost,
    /// In such a part or not at all: the recording has no end.
    LostOrUnfinished,
}

/// A block of a call's content and how many of its children begin before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) children: u32,
    pub(super) segment: usize,
    pub(super) block: u64,
}

/// A child.
#[derive(Debug)]
pub enum LazyNode {
    /// A method call.
    Call(Box<LazyCall>),
    /// A sample that was taken in the call above it.
    Sample(Box<Sample>),
    /// A time of which nothing is known; the calls before it were ended.
    Gap {
        /// Time of the last sample before it.
        from_ns: u64,
        /// Time of the first sample after it.
        to_ns: u64,
    },
    /// The thread began during the recording.
    ThreadStart {
        /// When it was first seen.
        time_ns: u64,
    },
    /// The thread ended during the recording.
    ThreadExit {
        /// When it was seen to have ended.
        time_ns: u64,
    },
    /// A part of the file that cannot be read.
    Lost {
        /// Time of the last sample before it.
        from_ns: u64,
        /// Time of the first sample after it.
        to_ns: u64,
        /// How many samples it had, if what follows tells.
        samples: Option<u64>,
    },
}

impl LazyNode {
    /// A point without children, in a stream whose last sample is at `last_ns`.
    pub(super) fn of_point(point: Point, last_ns: u64) -> Option<Self> {
        Some(match point {
            Point::Gap { before, length } => {
                let (from_ns, to_ns) = gap(before, length, last_ns).ok()?;
                Self::Gap { from_ns, to_ns }
            }
            Point::ThreadStart { time_ns } => Self::ThreadStart { time_ns },
            Point::ThreadExit { time_ns } => Self::ThreadExit { time_ns },
            _ => return None,
        })
    }

    /// When it begins and ends; of a call, the times of its first and last sample.
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
    /// The thread, as the parent of its roots.
    pub(super) fn of_thread(id: ThreadId) -> Self {
        Self::new(Place::Thread(id.0), None, None)
    }

    pub(super) fn new(
        place: Place,
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
            ending: Ending::Seen,
            begin_lost: false,
            times: None,
            count: None,
            marks: Vec::new(),
            children: BTreeMap::new(),
        }
    }

    /// Where it was when it was first seen; its method is that of the whole call. `None` for a
    /// thread.
    pub fn location(&self) -> Option<LocationId> {
        self.location
    }

    /// The location in the call above that it was made from, `None` for a root.
    pub fn call_site(&self) -> Option<LocationId> {
        self.call_site
    }

    /// Time of the first sample that shows it.
    pub fn first_ns(&self) -> u64 {
        self.first_ns
    }

    /// Time of the last sample that shows it.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// How many samples show it: its own and those of the calls below it.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The numbers of the samples in it among those of its stream, lost ones included; `None` for a
    /// thread. [`LazyTrace::for_each_sample_of`](super::LazyTrace::for_each_sample_of) tells them.
    pub fn sample_numbers(&self) -> Option<Range<u64>> {
        self.numbers.map(|(first, end)| first..end)
    }

    /// True if it lies in the thread's side stream, under a call of `[truncated]`.
    pub fn is_side(&self) -> bool {
        matches!(self.place, Place::Call { stream, .. } if stream & SIDE != 0)
    }

    /// True if the recording ended before the call was seen to end.
    pub fn unfinished(&self) -> bool {
        matches!(self.ending, Ending::Unfinished | Ending::LostOrUnfinished)
    }

    /// True if its begin lies in a part of the file that is lost.
    pub fn begin_lost(&self) -> bool {
        self.begin_lost
    }

    /// True if its end lies in a part of the file that is lost.
    pub fn end_lost(&self) -> bool {
        matches!(self.ending, Ending::Lost | Ending::LostOrUnfinished)
    }

    /// How many children it has, loaded or not. `None` if nobody counted them yet, as in a
    /// recording that was not finished;
    /// [`LazyTrace::count_children`](super::LazyTrace::count_children) does.
    pub fn child_count(&self) -> Option<u32> {
        self.count
    }

    /// A child that is loaded.
    pub fn child(&self, number: u32) -> Option<&LazyNode> {
        self.children.get(&number)
    }

    /// A child that is loaded, to load what is in it.
    pub fn child_mut(&mut self, number: u32) -> Option<&mut LazyNode> {
        self.children.get_mut(&number)
    }

    /// Takes a child that is loaded out; it can be loaded again.
    pub fn take(&mut self, number: u32) -> Option<LazyNode> {
        self.children.remove(&number)
    }

    /// The children that are loaded, with their numbers.
    pub fn loaded(&self) -> impl Iterator<Item = (u32, &LazyNode)> {
        self.children.iter().map(|(number, child)| (*number, child))
    }

    /// True if all its children are loaded.
    pub fn is_loaded(&self) -> bool {
        self.count.is_some_and(|count| self.children.len() == count as usize)
    }

    /// Leaves of its children those that overlap a window's times: only these are counted, numbered
    /// and loaded from now on. What is known of the call itself stays. Forgets all children.
    pub fn narrow(&mut self, window: &Window) {
        self.times = Some((window.from_ns, window.to_ns));
        self.count = None;
        self.marks.clear();
        self.forget_all();
    }

    /// Forgets children; they can be loaded again.
    pub fn forget(&mut self, children: Range<u32>) {
        if !children.is_empty() {
            let mut behind = self.children.split_off(&children.start);
            self.children.append(&mut behind.split_off(&children.end));
        }
    }

    /// Forgets all children; they can be loaded again.
    pub fn forget_all(&mut self) {
        self.children.clear();
    }
}

impl Drop for LazyCall {
    /// Takes deep trees apart level by level: dropped as they are nested, they would take as much
    /// stack as they are deep.
    fn drop(&mut self) {
        let mut rest: Vec<_> = std::mem::take(&mut self.children).into_values().collect();
        while let Some(node) = rest.pop() {
            if let LazyNode::Call(mut call) = node {
                rest.extend(std::mem::take(&mut call.children).into_values());
            }
        }
    }
}
