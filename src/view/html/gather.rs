//! All samples of what is selected, thread after thread, with the tree of their stacks.

use std::collections::{BTreeMap, BTreeSet};

use super::PageOptions;
use super::columns::Columns;
use super::entries::{Entries, Entry};
use crate::trace::meter::{self, Unit};
use crate::trace::{LazyTrace, LocationId, Sample, ThreadSummary, TraceError, Window};
use crate::view::calls::{CallTree, Count, Grower, Step};
use crate::view::context::is_told;
use crate::view::groups::{GroupId, Grouper, Grouping, Groups};
use crate::view::idle::idle_threads;
use crate::view::mode::Mode;
use crate::view::processes::Processes;
use crate::view::profile::{Profile, mark_of};
use crate::view::recording::Recording;
use crate::view::selection::Selected;
use crate::view::waits::Waits;

/// What a page is made of.
pub(super) struct Gathered<'a> {
    /// The threads that have samples in it.
    pub(super) threads: Vec<Shown<'a>>,
    /// What their processes are called, if there are several: then stacks begin with a group for each.
    pub(super) processes: Vec<String>,
    /// The stacks of all of them.
    pub(super) tree: CallTree<LocationId>,
    pub(super) waits: Waits,
    /// What they worked on.
    pub(super) contexts: Groups,
    /// How many contexts there are; 0 of an entry is none, and the one after the last is all others.
    pub(super) context_count: usize,
    /// By mode.
    pub(super) modes: Vec<ModeEntries>,
    /// When the time of entries begins.
    pub(super) begin_ns: u64,
}

/// A thread of the page.
pub(super) struct Shown<'a> {
    pub(super) summary: &'a ThreadSummary,
    /// Its place in the profiles.
    place: usize,
    /// It only waits for work.
    pub(super) idle: bool,
    /// Its process, if there are several.
    process: Option<GroupId>,
}

/// The samples of a mode.
#[derive(Debug)]
pub(super) struct ModeEntries {
    pub(super) mode: Mode,
    /// By thread of the page.
    pub(super) threads: Vec<Vec<Entry>>,
    /// How far apart samples may have been that are one entry; 0 if none are merged.
    pub(super) cell_us: u64,
    /// How many entries there should be.
    most: u64,
}

impl ModeEntries {
    /// That there are far more than there should be, if so: what a browser is slow with.
    pub(super) fn excess(&self) -> Option<String> {
        let (count, most) = (self.all().count() as u64, self.most);
        (count > most.saturating_mul(2)).then(|| {
            format!(
                "{count} entries of {} time, where {most} are meant to be: stacks and threads differ so \
                 much that no more can be merged; browsers are slow with them, choose less with --from, \
                 --to, --thread or --process",
                self.mode.name()
            )
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.threads.iter().flatten()
    }
}

/// One look at all samples.
struct Look<'a> {
    growing: Grower<LocationId>,
    waits: Waits,
    contexts: Grouper<'a>,
    modes: Vec<ModeEntries>,
}

impl<'a> Gathered<'a> {
    /// Those of what is selected of each mode.
    pub(super) fn new(
        trace: &'a LazyTrace,
        sides: &[(&Selected, &Profile)],
        options: &PageOptions,
    ) -> Result<Self, TraceError> {
        let recording = Recording::of(trace);
        let begin_ns = recording.begin_ns().unwrap_or(0);
        let mut threads = shown(trace, sides, options);
        let processes = tell_apart(&mut threads, sides);
        let by = Grouping::by_context().heaviest(options.contexts_max);
        let entries_max = options.entries_max;
        let look = |contexts| look(trace, sides, (&threads, begin_ns, entries_max), contexts);
        let mut seen = look(Grouper::new(&by))?;
        if seen.contexts.has_too_many() {
            seen = look(seen.contexts.heaviest())?;
        }
        let Look { growing, mut waits, contexts, modes } = seen;
        waits.resolve(trace)?;
        let context_count = contexts.len();
        let contexts = contexts.finish(trace, &recording.tags())?;
        let tree = growing.finish();
        Ok(Self { threads, processes, tree, waits, contexts, context_count, modes, begin_ns })
    }

    /// Adds the columns of the samples: of each mode, thread after thread.
    pub(super) fn write(&self, columns: &mut Columns) {
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

/// The threads that have samples in any mode.
fn shown<'a>(
    trace: &'a LazyTrace,
    sides: &[(&Selected, &Profile)],
    options: &PageOptions,
) -> Vec<Shown<'a>> {
    let idle: Vec<Vec<bool>> = sides.iter().map(|(_, profile)| idle_threads(profile)).collect();
    // Profiles have the threads that their selections cover, which are the same in each.
    let covered = trace
        .threads()
        .iter()
        .filter(|thread| sides.first().is_some_and(|(selected, _)| selected.covers(thread)));
    let has_samples = |place: usize| {
        sides.iter().any(|(_, profile)| {
            profile.threads.get(place).is_some_and(|thread| thread.count.samples > 0)
        })
    };
    let of = |(place, summary): (usize, &'a ThreadSummary)| {
        let idle = idle.iter().any(|idle| idle.get(place).copied().unwrap_or(false));
        (has_samples(place) && !(idle && options.no_idle)).then_some(Shown {
            summary,
            place,
            idle,
            process: None,
        })
    };
    covered.enumerate().filter_map(of).collect()
}

/// Gives each thread its process, if there are several, and says what these are called.
fn tell_apart(threads: &mut [Shown<'_>], sides: &[(&Selected, &Profile)]) -> Vec<String> {
    let pids: BTreeSet<u32> = threads.iter().map(|shown| shown.summary.thread.pid).collect();
    let Some((_, profile)) = sides.first().filter(|_| pids.len() > 1) else { return Vec::new() };
    let places: BTreeMap<u32, GroupId> =
        pids.iter().copied().zip((0..).map(GroupId::new)).collect();
    for shown in threads {
        shown.process = places.get(&shown.summary.thread.pid).copied();
    }
    let processes = Processes::of(profile);
    let label = |pid: &u32| processes.label(*pid).unwrap_or_else(|| format!("process/{pid}"));
    pids.iter().map(label).collect()
}

/// Looks at all samples once. If there are too many contexts, they are all that it knows.
fn look<'a>(
    trace: &LazyTrace,
    sides: &[(&Selected, &Profile)],
    (threads, begin_ns, entries_max): (&[Shown<'_>], u64, u64),
    mut contexts: Grouper<'a>,
) -> Result<Look<'a>, TraceError> {
    let (mut growing, mut waits) = (Grower::default(), Waits::default());
    let mut modes = Vec::new();
    let samples = threads.iter().fold(0u64, |sum, it| sum.saturating_add(it.summary.samples));
    meter::pass("drawing", Unit::Samples, samples.saturating_mul(sides.len() as u64));
    for (selected, profile) in sides.iter().copied() {
        let mode = selected.filter.mode;
        let mut of_mode = ModeEntries { mode, threads: Vec::new(), cell_us: 0, most: entries_max };
        let all = profile.count().samples;
        for thread in threads {
            let own = profile.threads.get(thread.place);
            let own = own.map_or(0, |own| own.count.samples);
            let most = (all > entries_max).then(|| share(own, all, entries_max));
            let mut entries = Entries::new(most, mode == Mode::Wall);
            let mut add = |_, sample: &Sample, stack: &[LocationId]| {
                if !selected.filter.keeps(sample, stack) {
                    return;
                }
                let context = if is_told(sample) { contexts.number_of(sample) } else { 0 };
                // All are weighed, the late ones too, before the heaviest are chosen.
                if contexts.has_too_many() {
                    return;
                }
                let frames = stack.iter().map(|location| Step::Frame(*location));
                let wait = waits.id(sample).map(Step::Wait);
                let process = thread.process.map(Step::Group);
                let outermost = process.into_iter().chain(mark_of(sample, stack));
                let call = growing.add(outermost.chain(frames).chain(wait), Count::default());
                entries.add(Entry {
                    time_us: sample.time_ns.saturating_sub(begin_ns) / 1000,
                    // A tree has no more calls than fit.
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
    Ok(Look { growing, waits, contexts, modes })
}

/// How many entries a thread has of all, so that each has its share and none has nothing.
fn share(own: u64, all: u64, most: u64) -> usize {
    let share = u128::from(most) * u128::from(own) / u128::from(all.max(1));
    usize::try_from(share).unwrap_or(usize::MAX).max(16)
}
