//! From a trace to a profile.
//!
//! Invariant: memory is that of the distinct stacks and of the names, not of the samples.

use std::collections::BTreeMap;

use super::profile::{Profile, ThreadGrower, ThreadProfile};
use super::recording::Recording;
use super::selection::Selected;
use crate::trace::{LazyTrace, LocationId, Objects, Sample, ThreadId, TraceError, Window};

/// Aggregates the samples of what is selected.
pub fn load(trace: &LazyTrace, selected: &Selected) -> Result<Profile, TraceError> {
    let mut growers: BTreeMap<ThreadId, ThreadGrower> = BTreeMap::new();
    for window in &selected.windows {
        let mut add = |thread, sample: &Sample, stack: &[LocationId]| {
            growers.entry(thread).or_default().add(sample, stack);
        };
        // The index leads to what is in a window; of all there is, each frame is decoded once.
        if *window == Window::default() {
            trace.for_each_sample_as_written(window, &mut add)?;
        } else {
            trace.for_each_sample(window, &mut add)?;
        }
    }
    let covered = trace.threads().iter().filter(|thread| selected.covers(thread));
    let recording = Recording::of(trace).showing(selected);
    let threads = covered
        .map(|thread| {
            let grower = growers.remove(&thread.id).unwrap_or_default();
            let inner_ids = recording.inner_ids(thread.id);
            ThreadProfile { inner_ids, ..grower.finish(thread.thread.clone()) }
        })
        .collect();
    let Objects { modules, methods, locations } = trace.load_objects()?;
    Ok(Profile { recording, modules, methods, locations, threads })
}
