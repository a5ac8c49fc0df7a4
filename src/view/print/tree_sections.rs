//! The trees of a profile, and the threads in each.
//!
//! # Invariants
//! - Every shown thread is in one section, among the light or the idle threads, or without a
//!   sample. The weights of all add up to the profile's.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::view::print::inverted_tree::inverted;
use crate::view::print::options::{Split, TreeOptions};
use crate::view::profile::call_tree::{CallTree, CallTreeBuilder, Count, StackStep};
use crate::view::profile::flat_profile::RowType;
use crate::view::profile::idle;
use crate::view::profile::processes::Processes;
use crate::view::profile::step_names::{NameId, StepNames};
use crate::view::profile::thread_labels::ThreadLabels;
use crate::view::profile::thread_profile::{Profile, ThreadProfile};
use crate::view::recording::unit::{Scale, WeightUnit};
use crate::view::select::groups::{GroupId, Groups};
use crate::view::text::escape::escaped;
use crate::view::text::number::counted;

/// Threads that share one tree.
pub(in crate::view) struct TreeSection<'a> {
    pub(in crate::view) title: String,
    pub(in crate::view) threads: Vec<&'a ThreadProfile>,
    pub(in crate::view) count: Count,
}

impl<'a> TreeSection<'a> {
    fn new(title: String, threads: Vec<&'a ThreadProfile>) -> Self {
        let mut count = Count::default();
        for thread in &threads {
            count += thread.count;
        }
        Self { title, threads, count }
    }
}

/// All trees of a profile, sorted.
pub(in crate::view) struct TreeSections<'a> {
    pub(in crate::view) profile: &'a Profile,
    pub(in crate::view) options: &'a TreeOptions,
    pub(in crate::view) names: StepNames,
    pub(in crate::view) scale: Scale,
    /// The sections, the heaviest first. The light threads share the last one.
    pub(in crate::view) sections: Vec<TreeSection<'a>>,
    /// Threads that only wait for work.
    pub(in crate::view) idle: Vec<&'a ThreadProfile>,
    /// Threads without a sample.
    pub(in crate::view) without: Vec<&'a ThreadProfile>,
    /// The first-level group of each thread of the section, if there is one.
    parts: Vec<GroupId>,
}

impl<'a> TreeSections<'a> {
    /// Creates the trees of a profile.
    pub(in crate::view) fn new(profile: &'a Profile, options: &'a TreeOptions) -> Self {
        let mut names = match (options.steps, options.verbose) {
            (RowType::Module, _) => StepNames::of_modules(profile),
            (RowType::Line, _) => StepNames::of_lines(profile),
            (RowType::Language, _) => StepNames::of_languages(profile),
            (_, true) => StepNames::of_locations(profile),
            (_, false) => StepNames::of_functions(profile),
        };
        let loops = if options.idle { Vec::new() } else { idle::idle_threads(profile) };
        let is_loop = |index: usize| loops.get(index).copied().unwrap_or(false);
        let (mut busy, mut idle) = (Vec::new(), Vec::new());
        for (index, thread) in profile.threads.iter().enumerate() {
            if is_loop(index) { idle.push(thread) } else { busy.push(thread) }
        }
        busy.sort_by_key(heaviest);
        let sampled = busy.partition_point(|thread| thread.count.samples > 0);
        let without = busy.split_off(sampled);
        let of = match idle.iter().any(|thread| thread.count.weight > 0) {
            true => "all but the idle",
            false => "all",
        };
        let processes = match options.split {
            Split::PoolsOfPrograms => Some(Processes::of(profile)),
            _ => None,
        };
        let sections = sections(&busy, options, (&names, processes.as_ref(), of));
        let mut of_threads = Vec::new();
        if let Some(part) = options.split.part() {
            let mut parts = ThreadLabels::new(profile, part);
            // Thread ids have 32 bits, so there are fewer threads.
            let mut index = |thread| u32::try_from(parts.add(thread)).unwrap_or(u32::MAX);
            of_threads = busy.iter().map(|thread| GroupId::new(index(*thread))).collect();
            names.group_by(Arc::new(Groups::named(part.nouns(), parts.labels())));
        }
        let scale = Scale {
            all: profile.count().weight,
            unit: WeightUnit::new(profile.mode, &profile.recording),
        };
        Self { profile, options, names, scale, sections, idle, without, parts: of_threads }
    }

    /// Returns the tree of a section.
    pub(in crate::view) fn tree(&self, section: &TreeSection<'_>) -> CallTree<NameId> {
        let mut grower = CallTreeBuilder::<NameId>::default();
        let merges = matches!(self.options.steps, RowType::Module | RowType::Language);
        for (index, thread) in section.threads.iter().enumerate() {
            let group = self.parts.get(index).copied().map(StackStep::Group);
            grower.graft_below(group, &thread.tree, (merges, |location| self.names.id(location)));
        }
        let tree = grower.finish();
        match self.options.inverted {
            true => inverted(&tree, &self.options.limits),
            false => tree,
        }
    }

    /// Returns whether all threads are in one tree.
    pub(in crate::view) fn is_one(&self) -> bool {
        self.names.groups().is_some() || self.options.split == Split::Together
    }
}

/// Returns the threads of each tree. `busy` are those that have samples.
fn sections<'a>(
    busy: &[&'a ThreadProfile],
    options: &TreeOptions,
    (names, processes, of): (&StepNames, Option<&Processes>, &str),
) -> Vec<TreeSection<'a>> {
    if busy.is_empty() {
        return Vec::new();
    }
    let number = counted(busy.len() as u64, "thread");
    let whole = |title| vec![TreeSection::new(title, busy.to_vec())];
    let split = match (names.groups(), options.split) {
        (Some(groups), _) => return whole(format!("{number} by {}", groups.noun())),
        (None, Split::ByThread) => return whole(format!("{number} by thread")),
        (None, Split::ByProcess) => return whole(format!("{number} by process")),
        (None, Split::ByProgram) => return whole(format!("{number} by program")),
        (None, Split::Together) => return whole(format!("{number} together")),
        (None, Split::Threads) => busy.iter().map(|it| (it.title(), vec![*it])).collect(),
        (None, Split::Pools | Split::PoolsOfPrograms) => pools(busy, processes),
    };
    let mut all: Vec<TreeSection<'a>> =
        split.into_iter().map(|(title, threads)| TreeSection::new(title, threads)).collect();
    // Sections of equal weight stay in the order of their heaviest threads.
    all.sort_by_key(|section| Reverse(section.count.weight));
    // Idle threads do not count here: next to a thousand of them every other thread would be light.
    let shown: u64 = all.iter().map(|section| section.count.weight).sum();
    let least = options.limits.min_percent / 100.0 * shown as f64;
    let heavy = all.partition_point(|section| section.count.weight as f64 >= least);
    if heavy + 1 < all.len() {
        let light = all.split_off(heavy).into_iter().flat_map(|section| section.threads);
        let light: Vec<&ThreadProfile> = light.collect();
        let number = counted(light.len() as u64, "thread");
        let percent = options.limits.min_percent;
        all.push(TreeSection::new(format!("{number} below {percent} % of {of}, together"), light));
    }
    all
}

/// The threads that share a tree: of a process or of a program, the main threads or others, with
/// this stem of their names.
type PoolKey<'a> = ((u32, &'a str), bool, &'a str);

/// Groups threads by the stems of their names, within a process or, with `merged`, within a
/// program. The main thread stays separate: it does other work, whatever its name.
fn pools<'a>(
    threads: &[&'a ThreadProfile],
    merged: Option<&Processes>,
) -> Vec<(String, Vec<&'a ThreadProfile>)> {
    let mut pools: BTreeMap<PoolKey<'_>, Vec<&'a ThreadProfile>> = BTreeMap::new();
    for profile in threads {
        let thread = &profile.thread;
        let is_main = thread.pid == thread.tid;
        let stem = stem(thread.shown_name());
        let key = match merged {
            Some(processes) => {
                let program = (0, processes.program_of(thread.pid));
                // Equal programs may give their processes different titles.
                (program, is_main, if is_main { "" } else { stem })
            }
            None => ((thread.pid, ""), is_main, stem),
        };
        pools.entry(key).or_default().push(*profile);
    }
    let has_others: BTreeSet<(u32, &str)> =
        pools.keys().filter(|(_, is_main, _)| !is_main).map(|(owner, ..)| *owner).collect();
    let mut titled: Vec<_> = pools
        .into_iter()
        .map(|((owner, is_main, stem), threads)| {
            let first = threads[0].thread.pid;
            let pids: BTreeSet<u32> = threads.iter().map(|it| it.thread.pid).collect();
            let title = match merged.filter(|_| pids.len() > 1) {
                Some(processes) if is_main => {
                    let main = if has_others.contains(&owner) { "main threads of " } else { "" };
                    format!("{main}{}", processes.program_title(&pids))
                }
                Some(processes) => {
                    format!("{} of {}", pool_name(&threads, stem), processes.program_title(&pids))
                }
                None if threads.len() == 1 => threads[0].title(),
                None => format!("{} of process {first}", pool_name(&threads, stem)),
            };
            (title, threads)
        })
        .collect();
    titled.sort_by_key(|(_, threads)| threads.first().map(heaviest));
    titled
}

/// Returns the name of a pool with the number of its threads, escaped for display.
fn pool_name(threads: &[&ThreadProfile], stem: &str) -> String {
    let first = threads[0].thread.shown_name();
    let (name, star) = match threads.iter().any(|it| it.thread.shown_name() != first) {
        true => (stem, "*"),
        false => (first, ""),
    };
    format!("pool \"{}{star}\" ({})", escaped(name), counted(threads.len() as u64, "thread"))
}

/// Returns the common part of the names of a pool's threads: all but the trailing digits.
pub(in crate::view) fn stem(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// Returns the sort key of threads: the heaviest first.
fn heaviest(profile: &&ThreadProfile) -> (Reverse<u64>, u32, u32) {
    (Reverse(profile.count.weight), profile.thread.pid, profile.thread.tid)
}
