//! All selected samples, thread by thread, with the tree of their stacks.

use std::collections::{BTreeMap, BTreeSet};

use super::PageOptions;
use super::byte_columns::ByteColumns;
use super::merged_samples::{MergedSample, MergedSamples};
use crate::trace::meter::{self, PassUnit};
use crate::trace::{LazyTrace, LocationId, Sample, ThreadSummary, TraceError, Window};
use crate::view::profile::call_tree::{CallTree, CallTreeBuilder, Count, StackStep};
use crate::view::profile::idle::idle_threads;
use crate::view::profile::processes::Processes;
use crate::view::profile::thread_profile::{Profile, mark_of};
use crate::view::recording::context::has_context;
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::waits::Waits;
use crate::view::select::groups::{GroupId, Grouper, Grouping, Groups};
use crate::view::select::selection::Selected;

/// The content of a page.
pub(super) struct PageSamples<'a> {
    /// The threads that have samples on the page.
    pub(super) threads: Vec<PageThread<'a>>,
    /// The labels of the processes, if there are several. Then stacks start with a group for each.
    pub(super) processes: Vec<String>,
    /// The stacks of all threads.
    pub(super) tree: CallTree<LocationId>,
    pub(super) waits: Waits,
    /// The contexts of the threads.
    pub(super) contexts: Groups,
    /// The number of contexts. In an entry 0 means none, and the number after the last means all
    /// others.
    pub(super) context_count: usize,
    /// The samples by mode.
    pub(super) modes: Vec<ModeSamples>,
    /// The time from which the times of entries count.
    pub(super) begin_ns: u64,
}

/// A thread of the page.
pub(super) struct PageThread<'a> {
    pub(super) summary: &'a ThreadSummary,
    /// The index in the profiles.
    index: usize,
    /// Whether the thread only waits for work.
    pub(super) idle: bool,
    /// The group of its process, if there are several.
    process: Option<GroupId>,
}

/// The samples of a mode.
#[derive(Debug)]
pub(super) struct ModeSamples {
    pub(super) mode: Mode,
    /// The entries by thread of the page.
    pub(super) threads: Vec<Vec<MergedSample>>,
    /// The length in microseconds of the cells in which samples were merged, 0 if none were.
    pub(super) cell_us: u64,
    /// The wanted number of entries.
    most: u64,
}

impl ModeSamples {
    /// Returns a warning if there are far more entries than wanted, which makes browsers slow.
    pub(super) fn excess(&self) -> Option<String> {
        let (count, most) = (self.all().count() as u64, self.most);
        (count > most.saturating_mul(2)).then(|| {
            format!(
                "{count} entries of {} time instead of {most}: stacks and threads differ too much \
                 to be merged further; browsers are slow with this many, select less with --from, \
                 --to, --thread or --process",
                self.mode.name()
            )
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &MergedSample> {
        self.threads.iter().flatten()
    }
}

/// The results of one pass over all samples.
struct SamplePass<'a> {
    growing: CallTreeBuilder<LocationId>,
    waits: Waits,
    contexts: Grouper<'a>,
    modes: Vec<ModeSamples>,
}

impl<'a> PageSamples<'a> {
    /// Reads the selected samples of each mode.
    pub(super) fn new(
        trace: &'a LazyTrace,
        sides: &[(&Selected, &Profile)],
        options: &PageOptions<'_>,
    ) -> Result<Self, TraceError> {
        let recording = RecordingInfo::of(trace);
        let begin_ns = recording.begin_ns().unwrap_or(0);
        let mut threads = shown(trace, sides, options);
        let processes = label_processes(&mut threads, sides);
        let by = Grouping::by_context().heaviest(options.contexts_max);
        let entries_max = options.entries_max;
        let read =
            |contexts| read_samples(trace, sides, (&threads, begin_ns, entries_max), contexts);
        let mut seen = read(Grouper::new(&by))?;
        if seen.contexts.has_too_many() {
            seen = read(seen.contexts.heaviest())?;
        }
        let SamplePass { growing, mut waits, contexts, modes } = seen;
        waits.resolve(trace)?;
        let context_count = contexts.len();
        let contexts = contexts.finish(trace, &recording.tags())?;
        let tree = growing.finish();
        Ok(Self { threads, processes, tree, waits, contexts, context_count, modes, begin_ns })
    }

    /// Adds the columns of the samples, by mode and thread.
    pub(super) fn write(&self, columns: &mut ByteColumns) {
        for entries in &self.modes {
            let mode = entries.mode.name();
            let all = || entries.all();
            let deltas = entries.threads.iter().flat_map(|thread| {
                let before = std::iter::once(0).chain(thread.iter().map(|entry| entry.time_us));
                thread.iter().zip(before).map(|(entry, before)| entry.time_us - before)
            });
            columns.add(format!("{mode}.time"), deltas);
            columns.add(format!("{mode}.call"), all().map(|entry| entry.call.into()));
            columns.add(format!("{mode}.weight"), all().map(|entry| entry.weight));
            columns.add(format!("{mode}.context"), all().map(|entry| entry.context.into()));
            columns.add(format!("{mode}.samples"), all().map(|entry| entry.samples));
        }
    }
}

/// Returns the threads that have samples in any mode.
fn shown<'a>(
    trace: &'a LazyTrace,
    sides: &[(&Selected, &Profile)],
    options: &PageOptions<'_>,
) -> Vec<PageThread<'a>> {
    let idle: Vec<Vec<bool>> = sides.iter().map(|(_, profile)| idle_threads(profile)).collect();
    // Profiles have the threads that their selections cover. These are the same in each profile.
    let covered = trace
        .threads()
        .iter()
        .filter(|thread| sides.first().is_some_and(|(selected, _)| selected.covers(thread)));
    let has_samples = |index: usize| {
        sides.iter().any(|(_, profile)| {
            profile.threads.get(index).is_some_and(|thread| thread.count.samples > 0)
        })
    };
    let of = |(index, summary): (usize, &'a ThreadSummary)| {
        let idle = idle.iter().any(|idle| idle.get(index).copied().unwrap_or(false));
        (has_samples(index) && !(idle && options.no_idle)).then_some(PageThread {
            summary,
            index,
            idle,
            process: None,
        })
    };
    covered.enumerate().filter_map(of).collect()
}

/// Sets the process of each thread if there are several processes, and returns the processes'
/// labels.
fn label_processes(threads: &mut [PageThread<'_>], sides: &[(&Selected, &Profile)]) -> Vec<String> {
    let pids: BTreeSet<u32> = threads.iter().map(|shown| shown.summary.thread.pid).collect();
    let Some((_, profile)) = sides.first().filter(|_| pids.len() > 1) else { return Vec::new() };
    let indices: BTreeMap<u32, GroupId> =
        pids.iter().copied().zip((0..).map(GroupId::new)).collect();
    for shown in threads {
        shown.process = indices.get(&shown.summary.thread.pid).copied();
    }
    let processes = Processes::of(profile);
    let label = |pid: &u32| processes.label(*pid).unwrap_or_else(|| format!("process/{pid}"));
    pids.iter().map(label).collect()
}

/// Reads all samples once. If there are too many contexts, only the contexts are collected.
fn read_samples<'a>(
    trace: &LazyTrace,
    sides: &[(&Selected, &Profile)],
    (threads, begin_ns, entries_max): (&[PageThread<'_>], u64, u64),
    mut contexts: Grouper<'a>,
) -> Result<SamplePass<'a>, TraceError> {
    let (mut growing, mut waits) = (CallTreeBuilder::default(), Waits::default());
    let mut modes = Vec::new();
    let samples = threads.iter().fold(0u64, |sum, it| sum.saturating_add(it.summary.samples));
    meter::pass("drawing", PassUnit::Samples, samples.saturating_mul(sides.len() as u64));
    for (selected, profile) in sides.iter().copied() {
        let mode = selected.filter.mode;
        let mut of_mode = ModeSamples { mode, threads: Vec::new(), cell_us: 0, most: entries_max };
        let all = profile.count().samples;
        for thread in threads {
            let own = profile.threads.get(thread.index);
            let own = own.map_or(0, |own| own.count.samples);
            let most = (all > entries_max).then(|| share(own, all, entries_max));
            let mut entries = MergedSamples::new(most, mode == Mode::Wall);
            let mut add = |_, sample: &Sample, stack: &[LocationId]| {
                if !selected.filter.keeps(sample, stack) {
                    return;
                }
                let context = if has_context(sample) { contexts.number_of(sample) } else { 0 };
                // Every sample counts, late ones too, before the heaviest contexts are chosen.
                if contexts.has_too_many() {
                    return;
                }
                let frames = stack.iter().map(|location| StackStep::Frame(*location));
                let wait = waits.id(sample).map(StackStep::Wait);
                let process = thread.process.map(StackStep::Group);
                let outermost = process.into_iter().chain(mark_of(sample, stack));
                let call = growing.add(outermost.chain(frames).chain(wait), Count::default());
                entries.add(MergedSample {
                    time_us: sample.time_ns.saturating_sub(begin_ns) / 1000,
                    // Memory limits a tree to fewer calls than this type can count.
                    call: u32::try_from(call).unwrap_or(0),
                    context,
                    weight: sample.weight.into(),
                    samples: 1,
                });
            };
            for window in &selected.windows {
                let window = Window { threads: Some([thread.summary.id].into()), ..window.clone() };
                trace.for_each_sample(&window, &mut add)?;
            }
            let (entries, cell_us) = entries.finish();
            of_mode.threads.push(entries);
            of_mode.cell_us = of_mode.cell_us.max(cell_us);
        }
        modes.push(of_mode);
    }
    Ok(SamplePass { growing, waits, contexts, modes })
}

/// Returns the number of entries of a thread: its share of all, but at least 16.
fn share(own: u64, all: u64, most: u64) -> usize {
    let share = u128::from(most) * u128::from(own) / u128::from(all.max(1));
    usize::try_from(share).unwrap_or(usize::MAX).max(16)
}
