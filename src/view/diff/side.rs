//! One side of a comparison: the stacks of the selected part of a trace, by blocks of its time.
//!
//! Invariant: memory grows with the distinct stacks of each block and with the names, not with the
//! samples.

use std::collections::{BTreeSet, HashMap};

use super::estimate::{BLOCKS, BlockWeights, SideTotal};
use crate::trace::{LazyTrace, LocationId, Objects, Sample, Thread, ThreadId, Window};
use crate::view::profile::activity::bounds;
use crate::view::profile::call_tree::{CallTree, CallTreeBuilder, Count, StackStep};
use crate::view::profile::processes;
use crate::view::profile::thread_profile::{Profile, mark_of};
use crate::view::recording::context::has_context;
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::unit::WeightUnit;
use crate::view::select::error::ViewError;
use crate::view::select::groups::GroupId;
use crate::view::select::selection::Selected;

/// One side of a comparison.
#[derive(Debug)]
pub struct DiffSide {
    /// The name of the side.
    pub(super) name: String,
    /// The names and the recorder's metadata. It has no threads.
    pub(super) profile: Profile,
    /// The number of threads with a sample.
    pub(super) threads: usize,
    /// The processes with a sample, in the order of the groups of the tree's stacks.
    pub(super) processes: Vec<SideProcess>,
    /// The length of the selected time in nanoseconds.
    pub(super) length_ns: u64,
    /// The weight of the complete side.
    pub(super) whole: SideTotal,
    /// The stacks of all threads. Each process has its own group above its stacks.
    pub(super) tree: CallTree<LocationId>,
    /// The self weights by call, if there are any.
    pub(super) own: HashMap<usize, BlockWeights>,
}

/// A process with samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SideProcess {
    pub(super) pid: u32,
    /// The kernel's start time, if the trace has it. With the id it is unique.
    pub(super) started: Option<u64>,
    /// The name as in the trace, possibly empty.
    pub(super) name: String,
}

impl DiffSide {
    /// Reads the selected part of a trace.
    ///
    /// # Errors
    /// Errors of reading, and [`ViewError::NoContext`] if the user asks for contexts and there are
    /// none.
    pub fn load(trace: &LazyTrace, selected: &Selected, name: &str) -> Result<Self, ViewError> {
        let recording = RecordingInfo::of(trace);
        let (from_ns, to_ns) = bounds(&recording, selected);
        let filter = &selected.filter;
        let mut growing = CallTreeBuilder::default();
        let mut own: HashMap<usize, BlockWeights> = HashMap::new();
        let (mut whole, mut threads) = (SideTotal::default(), BTreeSet::new());
        let (mut profile, mut has_contexts) = (Profile::default(), false);
        let mut pids = ProcessFinder::new(trace);
        selected.meter(trace);
        for window in &selected.windows {
            let mut add = |thread, sample: &Sample, stack: &[LocationId]| {
                has_contexts |= has_context(sample);
                if !filter.keeps(sample, stack) {
                    return;
                }
                let block = block_of(sample.time_ns, (from_ns, to_ns));
                whole.add(block, sample.weight);
                threads.insert(thread);
                let frames = stack.iter().map(|location| StackStep::Frame(*location));
                let process = StackStep::Group(GroupId::new(pids.index(thread)));
                let outermost = [process].into_iter().chain(mark_of(sample, stack));
                let wait = profile.waits.id(sample).map(StackStep::Wait);
                let call = growing.add(outermost.chain(frames).chain(wait), Count::default());
                own.entry(call).or_default().add(block, sample.weight);
            };
            // A window is read through the index. A complete trace in file order decodes each frame
            // once.
            if *window == Window::default() {
                trace.for_each_sample_as_written(window, &mut add)?;
            } else {
                trace.for_each_sample(window, &mut add)?;
            }
        }
        profile.waits.resolve(trace)?;
        selected.check_contexts(&recording, has_contexts)?;
        let tree = growing.finish();
        let processes = pids.finish(trace, &recording);
        let Objects { modules, methods, locations } = trace.load_objects()?;
        let recording = recording.showing(selected.text.clone());
        let profile =
            Profile { recording, mode: filter.mode, modules, methods, locations, ..profile };
        let (name, length_ns) = (name.to_owned(), to_ns.saturating_sub(from_ns));
        let threads = threads.len();
        Ok(Self { name, profile, threads, processes, length_ns, whole, tree, own })
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> u64 {
        self.whole.samples
    }

    /// Returns whether CPU or wall clock time was measured.
    pub fn mode(&self) -> Mode {
        self.profile.mode
    }

    /// Returns the seconds of a weight of 1, if known.
    pub(super) fn weight_s(&self) -> Option<f64> {
        match WeightUnit::new(self.profile.mode, &self.profile.recording) {
            WeightUnit::Periods(period_ns) => Some(period_ns? / 1e9),
            WeightUnit::Microseconds => Some(1e-6),
        }
    }

    /// Returns the factor from the weight of a block to seconds per second.
    pub(super) fn per_second(&self) -> Option<f64> {
        let block_s = self.length_ns as f64 / 1e9 / BLOCKS as f64;
        (block_s > 0.0).then_some(self.weight_s()? / block_s)
    }
}

/// Finds the processes of samples.
struct ProcessFinder<'a> {
    of: HashMap<ThreadId, &'a Thread>,
    indices: HashMap<u32, u32>,
    all: Vec<u32>,
    /// The thread and process of the last sample: the next sample is mostly of the same thread.
    last: Option<(ThreadId, u32)>,
}

impl<'a> ProcessFinder<'a> {
    fn new(trace: &'a LazyTrace) -> Self {
        let of = trace.threads().iter().map(|summary| (summary.id, &summary.thread)).collect();
        Self { of, indices: HashMap::new(), all: Vec::new(), last: None }
    }

    /// Returns the index of a thread's process.
    fn index(&mut self, thread: ThreadId) -> u32 {
        if let Some((last, index)) = self.last
            && last == thread
        {
            return index;
        }
        let pid = self.of.get(&thread).map_or(0, |thread| thread.pid);
        let all = &mut self.all;
        let index = *self.indices.entry(pid).or_insert_with(|| {
            all.push(pid);
            // There are at most as many processes as threads, whose ids have 32 bits.
            u32::try_from(all.len() - 1).unwrap_or(0)
        });
        self.last = Some((thread, index));
        index
    }

    fn finish(self, trace: &LazyTrace, recording: &RecordingInfo) -> Vec<SideProcess> {
        // Threads are in the order of the trace, as in every view: the last of several first
        // threads names the process.
        let threads = trace.threads().iter().map(|summary| &summary.thread);
        let names = processes::names(threads, recording);
        let listed = recording.processes();
        let process = |pid: u32| {
            let id = u64::from(pid);
            // If an id was reused, the last process has the id and its name.
            let started = listed.iter().rfind(|process| process.pid == id);
            let name = names.get(&id).copied().unwrap_or_default().to_owned();
            SideProcess { pid, started: started.and_then(|process| process.started), name }
        };
        self.all.into_iter().map(process).collect()
    }
}

fn block_of(time_ns: u64, (from_ns, to_ns): (u64, u64)) -> usize {
    let length_ns = to_ns.saturating_sub(from_ns).max(1);
    let at = u128::from(time_ns.saturating_sub(from_ns)) * BLOCKS as u128 / u128::from(length_ns);
    usize::try_from(at).map_or(BLOCKS - 1, |block| block.min(BLOCKS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_equal_parts_and_hold_every_time() {
        let check = |time_ns, bounds, block| assert_eq!(block_of(time_ns, bounds), block);
        check(1000, (1000, 3000), 0);
        check(1099, (1000, 3000), 0);
        check(1100, (1000, 3000), 1);
        check(2999, (1000, 3000), BLOCKS - 1);
        // The end itself, and times of a corrupt trace.
        check(3000, (1000, 3000), BLOCKS - 1);
        check(0, (1000, 3000), 0);
        check(u64::MAX, (1000, 3000), BLOCKS - 1);
        check(5, (9, 3), 0);
        check(u64::MAX, (0, u64::MAX), BLOCKS - 1);
    }
}
