//! From a trace to a profile.
//!
//! Invariant: memory is that of the distinct stacks, of each group if samples are grouped, and of the
//! names, not of the samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::context::is_told;
use super::error::ViewError;
use super::groups::{Grouper, Grouping};
use super::profile::{Profile, ThreadGrower, ThreadProfile};
use super::recording::Recording;
use super::selection::Selected;
use super::strip::Strip;
use super::waits::Waits;
use crate::trace::{LazyTrace, LocationId, Objects, Sample, ThreadId, TraceError, Window};

/// Contexts that are steps of stacks.
const CONTEXTS_MAX: usize = 1 << 16;

/// Aggregates the samples of what is selected.
///
/// # Errors
/// Those of reading; [`ViewError::NoContext`] if contexts are asked for and there are none.
pub fn load(trace: &LazyTrace, selected: &Selected) -> Result<Profile, ViewError> {
    load_with(trace, selected, None)
}

/// The same, with the contexts that samples have as steps of their stacks, the heaviest: memory is that of
/// the distinct pairs of a context and a stack.
///
/// # Errors
/// As [`load`].
pub fn load_with_contexts(trace: &LazyTrace, selected: &Selected) -> Result<Profile, ViewError> {
    load_with(trace, selected, Some(&Grouping::by_context().heaviest(CONTEXTS_MAX)))
}

fn load_with(
    trace: &LazyTrace,
    selected: &Selected,
    contexts: Option<&Grouping>,
) -> Result<Profile, ViewError> {
    let filter = &selected.filter;
    let groupers = [selected.by.as_ref().map(Grouper::new), contexts.map(Grouper::new)];
    let mut gathered = gather(trace, selected, groupers)?;
    if gathered.groupers.iter().flatten().any(Grouper::has_too_many) {
        let heaviest = gathered.groupers.map(|grouper| grouper.map(Grouper::heaviest));
        gathered = gather(trace, selected, heaviest)?;
    }
    let Gathered { mut growers, mut waits, groupers, told, times_ns, strip } = gathered;
    waits.resolve(trace)?;
    // Now that all is read: what is lost is known.
    let recording = Recording::of(trace).showing(selected);
    selected.check_told(&recording, told)?;
    let covered = trace.threads().iter().filter(|thread| selected.covers(thread));
    let threads = covered
        .map(|thread| {
            let grower = growers.remove(&thread.id).unwrap_or_default();
            let inner_ids = recording.inner_ids(thread.id);
            ThreadProfile { inner_ids, ..grower.finish(thread.thread.clone()) }
        })
        .collect();
    let Objects { modules, methods, locations } = trace.load_objects()?;
    let tags = recording.tags();
    let named = |grouper: Option<Grouper<'_>>| {
        grouper.map(|it| it.finish(trace, &tags).map(Arc::new)).transpose()
    };
    let [groups, contexts] = groupers.map(named);
    let (groups, contexts) = (groups?, contexts?);
    let (mode, narrow) = (filter.mode, filter.is_narrow());
    let seen = Profile { mode, narrow, told, times_ns, strip, ..Profile::default() };
    let recorded = Profile { recording, ..seen };
    let objects = Profile { modules, methods, locations, ..recorded };
    Ok(Profile { groups, contexts, waits, threads, ..objects })
}

/// What samples come to.
#[derive(Debug, Default)]
struct Gathered<'a> {
    growers: BTreeMap<ThreadId, ThreadGrower>,
    waits: Waits,
    /// By what was asked for, and by contexts.
    groupers: [Option<Grouper<'a>>; 2],
    /// Some have a context.
    told: bool,
    times_ns: Option<(u64, u64)>,
    strip: Strip,
}

/// Looks at all samples once. If there are too many groups, they are all that it knows.
fn gather<'a>(
    trace: &LazyTrace,
    selected: &Selected,
    groupers: [Option<Grouper<'a>>; 2],
) -> Result<Gathered<'a>, TraceError> {
    let filter = &selected.filter;
    let strip = Strip::new(&Recording::of(trace), selected);
    let mut gathered = Gathered { groupers, strip, ..Gathered::default() };
    let Gathered { growers, waits, groupers, told, times_ns, strip } = &mut gathered;
    selected.meter(trace);
    for window in &selected.windows {
        let mut add = |thread, sample: &Sample, stack: &[LocationId]| {
            *told |= is_told(sample);
            if !filter.keeps(sample, stack) {
                return;
            }
            let (first_ns, last_ns) = times_ns.unwrap_or((u64::MAX, 0));
            *times_ns = Some((first_ns.min(sample.time_ns), last_ns.max(sample.time_ns)));
            strip.add(filter.mode, sample);
            let [group, context] = groupers;
            let group = group.as_mut().map(|grouper| grouper.of(sample));
            let context = context.as_mut().filter(|_| is_told(sample)).map(|it| it.of(sample));
            if groupers.iter().flatten().any(Grouper::has_too_many) {
                growers.clear();
                return;
            }
            let grower = growers.entry(thread).or_insert_with(|| ThreadGrower::new(filter.mode));
            grower.add_in((group, context), sample, stack, waits.id(sample));
        };
        // The index leads to what is in a window; of all there is, each frame is decoded once.
        if *window == Window::default() {
            trace.for_each_sample_as_written(window, &mut add)?;
        } else {
            trace.for_each_sample(window, &mut add)?;
        }
    }
    Ok(gathered)
}
