//! Aggregates a trace into a profile.
//!
//! Invariant: memory grows with the distinct stacks (of each group if samples are grouped) and with
//! the names, not with the samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::trace::{LazyTrace, LocationId, Objects, Sample, ThreadId, TraceError, Window};
use crate::view::profile::activity::ActivityProfile;
use crate::view::profile::thread_profile::{Profile, ThreadProfile, ThreadProfileBuilder};
use crate::view::recording::context::has_context;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::waits::Waits;
use crate::view::select::error::ViewError;
use crate::view::select::groups::{Grouper, Grouping};
use crate::view::select::selection::Selected;

/// Maximum number of contexts that are steps of stacks.
const CONTEXTS_MAX: usize = 1 << 16;

/// Aggregates the selected samples.
///
/// # Errors
/// Errors of reading, and [`ViewError::NoContext`] if the user asks for contexts and there are
/// none.
pub fn load(trace: &LazyTrace, selected: &Selected) -> Result<Profile, ViewError> {
    load_with(trace, selected, None)
}

/// Aggregates the selected samples, with the heaviest contexts as steps of their stacks.
///
/// Memory grows with the distinct pairs of a context and a stack.
///
/// # Errors
/// The errors of [`load`].
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
    let LoadedSamples { mut growers, mut waits, groupers, has_contexts, times_ns, activity } =
        gathered;
    waits.resolve(trace)?;
    // All samples are read now, so the losses are known.
    let recording = RecordingInfo::of(trace).showing(selected.text.clone());
    selected.check_contexts(&recording, has_contexts)?;
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
    let seen = Profile { mode, narrow, has_contexts, times_ns, activity, ..Profile::default() };
    let recorded = Profile { recording, ..seen };
    let objects = Profile { modules, methods, locations, ..recorded };
    Ok(Profile { groups, contexts, waits, threads, ..objects })
}

/// The samples of one pass.
#[derive(Debug, Default)]
struct LoadedSamples<'a> {
    growers: BTreeMap<ThreadId, ThreadProfileBuilder>,
    waits: Waits,
    /// The user's grouping, and the grouping by context.
    groupers: [Option<Grouper<'a>>; 2],
    /// Whether a sample has a context.
    has_contexts: bool,
    times_ns: Option<(u64, u64)>,
    activity: ActivityProfile,
}

/// Reads all samples once. If there are too many groups, only the groups are collected.
fn gather<'a>(
    trace: &LazyTrace,
    selected: &Selected,
    groupers: [Option<Grouper<'a>>; 2],
) -> Result<LoadedSamples<'a>, TraceError> {
    let filter = &selected.filter;
    let activity = ActivityProfile::new(&RecordingInfo::of(trace), selected);
    let mut gathered = LoadedSamples { groupers, activity, ..LoadedSamples::default() };
    let LoadedSamples { growers, waits, groupers, has_contexts, times_ns, activity } =
        &mut gathered;
    selected.meter(trace);
    for window in &selected.windows {
        let mut add = |thread, sample: &Sample, stack: &[LocationId]| {
            *has_contexts |= has_context(sample);
            if !filter.keeps(sample, stack) {
                return;
            }
            let (first_ns, last_ns) = times_ns.unwrap_or((u64::MAX, 0));
            *times_ns = Some((first_ns.min(sample.time_ns), last_ns.max(sample.time_ns)));
            activity.add(filter.mode, sample);
            let [group, context] = groupers;
            let group = group.as_mut().map(|grouper| grouper.of(sample));
            let context = context.as_mut().filter(|_| has_context(sample)).map(|it| it.of(sample));
            if groupers.iter().flatten().any(Grouper::has_too_many) {
                growers.clear();
                return;
            }
            let grower =
                growers.entry(thread).or_insert_with(|| ThreadProfileBuilder::new(filter.mode));
            grower.add_in((group, context), sample, stack, waits.id(sample));
        };
        // A window is read through the index. A complete trace in file order decodes each frame
        // once.
        if *window == Window::default() {
            trace.for_each_sample_as_written(window, &mut add)?;
        } else {
            trace.for_each_sample(window, &mut add)?;
        }
    }
    Ok(gathered)
}
