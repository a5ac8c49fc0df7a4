//! From a trace to a profile.
//!
//! Invariant: memory is that of the distinct stacks and of the names, not of the samples.

use std::collections::BTreeMap;

use super::profile::{Profile, ThreadGrower, ThreadProfile};
use super::recording::Recording;
use super::selection::Selected;
use super::waits::Waits;
use crate::trace::{LazyTrace, LocationId, Objects, Sample, ThreadId, TraceError, Window};

/// Aggregates the samples of what is selected.
pub fn load(trace: &LazyTrace, selected: &Selected) -> Result<Profile, TraceError> {
    let filter = &selected.filter;
    let mut growers: BTreeMap<ThreadId, ThreadGrower> = BTreeMap::new();
    let mut waits = Waits::default();
    for window in &selected.windows {
        let mut add = |thread, sample: &Sample, stack: &[LocationId]| {
            if !filter.has(sample) {
                return;
            }
            let grower = growers.entry(thread).or_insert_with(|| ThreadGrower::new(filter.mode));
            grower.add(sample, stack, waits.id(sample));
        };
        // The index leads to what is in a window; of all there is, each frame is decoded once.
        if *window == Window::default() {
            trace.for_each_sample_as_written(window, &mut add)?;
        } else {
            trace.for_each_sample(window, &mut add)?;
        }
    }
    waits.resolve(trace)?;
    // Now that all is read: what is lost is known.
    let recording = Recording::of(trace).showing(selected);
    let covered = trace.threads().iter().filter(|thread| selected.covers(thread));
    let threads = covered
        .map(|thread| {
            let grower = growers.remove(&thread.id).unwrap_or_default();
            let inner_ids = recording.inner_ids(thread.id);
            ThreadProfile { inner_ids, ..grower.finish(thread.thread.clone()) }
        })
        .collect();
    let Objects { modules, methods, locations } = trace.load_objects()?;
    let (mode, narrow) = (filter.mode, filter.is_narrow());
    Ok(Profile { recording, mode, narrow, waits, modules, methods, locations, threads })
}
