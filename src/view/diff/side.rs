//! One side of a comparison: the stacks of what is selected of a trace, by blocks of its time.
//!
//! Invariant: memory is that of the distinct stacks, for each block, and of the names, not of the
//! samples.

use std::collections::{BTreeSet, HashMap};

use super::estimate::{BLOCKS, Series, Whole};
use crate::trace::{LazyTrace, LocationId, Objects, Sample, Thread, ThreadId, Window};
use crate::view::calls::{CallTree, Count, Grower, Step};
use crate::view::context::is_told;
use crate::view::error::ViewError;
use crate::view::groups::GroupId;
use crate::view::mode::{Mode, Unit};
use crate::view::processes;
use crate::view::profile::{Profile, mark_of};
use crate::view::recording::Recording;
use crate::view::selection::Selected;
use crate::view::strip::bounds;

/// What is compared.
#[derive(Debug)]
pub struct Side {
    /// What it is called.
    pub(super) name: String,
    /// The names, and what the recorder said; no threads.
    pub(super) profile: Profile,
    /// Threads with a sample.
    pub(super) threads: usize,
    /// Processes with a sample, in the order of the groups of the tree's stacks.
    pub(super) processes: Vec<Process>,
    /// How much time of the recording is looked at.
    pub(super) length_ns: u64,
    /// All of it.
    pub(super) whole: Whole,
    /// The stacks of all threads, those of each process below a group of its own.
    pub(super) tree: CallTree<LocationId>,
    /// By call: what ends in it, if anything does.
    pub(super) own: HashMap<usize, Series>,
}

/// A process that samples are of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// What the kernel says of when it began, if the trace has it: with the id it tells it from all others.
    pub(super) started: Option<u64>,
    /// As the trace has it; may be empty.
    pub(super) name: String,
}

impl Side {
    /// Reads what is selected of a trace.
    ///
    /// # Errors
    /// Those of reading; [`ViewError::NoContext`] if contexts are asked for and there are none.
    pub fn load(trace: &LazyTrace, selected: &Selected, name: &str) -> Result<Self, ViewError> {
        let recording = Recording::of(trace);
        let (from_ns, to_ns) = bounds(&recording, selected);
        let filter = &selected.filter;
        let mut growing = Grower::default();
        let mut own: HashMap<usize, Series> = HashMap::new();
        let (mut whole, mut threads) = (Whole::default(), BTreeSet::new());
        let (mut profile, mut told) = (Profile::default(), false);
        let mut pids = Pids::new(trace);
        selected.meter(trace);
        for window in &selected.windows {
            let mut add = |thread, sample: &Sample, stack: &[LocationId]| {
                told |= is_told(sample);
                if !filter.keeps(sample, stack) {
                    return;
                }
                let block = block_of(sample.time_ns, (from_ns, to_ns));
                whole.add(block, sample.weight);
                threads.insert(thread);
                let frames = stack.iter().map(|location| Step::Frame(*location));
                let process = Step::Group(GroupId::new(pids.place(thread)));
                let outermost = [process].into_iter().chain(mark_of(sample, stack));
                let wait = profile.waits.id(sample).map(Step::Wait);
                let call = growing.add(outermost.chain(frames).chain(wait), Count::default());
                own.entry(call).or_default().add(block, sample.weight);
            };
            // As a profile is read: of all there is, each frame is decoded once.
            if *window == Window::default() {
                trace.for_each_sample_as_written(window, &mut add)?;
            } else {
                trace.for_each_sample(window, &mut add)?;
            }
        }
        profile.waits.resolve(trace)?;
        selected.check_told(&recording, told)?;
        let tree = growing.finish();
        let processes = pids.finish(trace, &recording);
        let Objects { modules, methods, locations } = trace.load_objects()?;
        let recording = recording.showing(selected);
        let profile =
            Profile { recording, mode: filter.mode, modules, methods, locations, ..profile };
        let (name, length_ns) = (name.to_owned(), to_ns.saturating_sub(from_ns));
        let threads = threads.len();
        Ok(Self { name, profile, threads, processes, length_ns, whole, tree, own })
    }

    /// How many samples are in it.
    pub fn samples(&self) -> u64 {
        self.whole.samples
    }

    /// What it measures.
    pub fn mode(&self) -> Mode {
        self.profile.mode
    }

    /// A weight of 1 in seconds, if that is known.
    pub(super) fn weight_s(&self) -> Option<f64> {
        match Unit::new(self.profile.mode, &self.profile.recording) {
            Unit::Periods(period_ns) => Some(period_ns? / 1e9),
            Unit::Microseconds => Some(1e-6),
        }
    }

    /// How much of all weight is in a block's time, in seconds a second.
    pub(super) fn per_second(&self) -> Option<f64> {
        let block_s = self.length_ns as f64 / 1e9 / BLOCKS as f64;
        (block_s > 0.0).then_some(self.weight_s()? / block_s)
    }
}

/// Finds the processes of samples.
struct Pids<'a> {
    of: HashMap<ThreadId, &'a Thread>,
    places: HashMap<u32, u32>,
    all: Vec<u32>,
    /// That of the last sample: the next one is mostly of the same thread.
    last: Option<(ThreadId, u32)>,
}

impl<'a> Pids<'a> {
    fn new(trace: &'a LazyTrace) -> Self {
        let of = trace.threads().iter().map(|summary| (summary.id, &summary.thread)).collect();
        Self { of, places: HashMap::new(), all: Vec::new(), last: None }
    }

    /// The place of a thread's process.
    fn place(&mut self, thread: ThreadId) -> u32 {
        if let Some((last, place)) = self.last
            && last == thread
        {
            return place;
        }
        let pid = self.of.get(&thread).map_or(0, |thread| thread.pid);
        let all = &mut self.all;
        let place = *self.places.entry(pid).or_insert_with(|| {
            all.push(pid);
            // No more than there are threads, whose ids have 32 bits.
            u32::try_from(all.len() - 1).unwrap_or(0)
        });
        self.last = Some((thread, place));
        place
    }

    fn finish(self, trace: &LazyTrace, recording: &Recording) -> Vec<Process> {
        // In the trace's order, as every view has them: of several first threads the last one names it.
        let threads = trace.threads().iter().map(|summary| &summary.thread);
        let names = processes::names(threads, recording);
        let listed = recording.processes();
        let process = |pid: u32| {
            let id = u64::from(pid);
            // Of an id that was used again the last one, whose name it has.
            let started = listed.iter().rfind(|process| process.pid == id);
            let name = names.get(&id).copied().unwrap_or_default().to_owned();
            Process { pid, started: started.and_then(|process| process.started), name }
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
        // The end itself, and what a damaged trace says.
        check(3000, (1000, 3000), BLOCKS - 1);
        check(0, (1000, 3000), 0);
        check(u64::MAX, (1000, 3000), BLOCKS - 1);
        check(5, (9, 3), 0);
        check(u64::MAX, (0, u64::MAX), BLOCKS - 1);
    }
}
