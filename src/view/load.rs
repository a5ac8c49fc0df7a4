//! From a trace to a profile.
//!
//! Invariant: memory is that of the distinct stacks and of the names, not of the samples.

use std::collections::BTreeMap;

use super::profile::{Profile, ThreadGrower};
use super::recording::Recording;
use super::selection::Selected;
use crate::trace::{LazyTrace, Objects, ThreadId, TraceError};

/// Aggregates the samples of what is selected.
pub fn load(trace: &LazyTrace, selected: &Selected) -> Result<Profile, TraceError> {
    let mut growers: BTreeMap<ThreadId, ThreadGrower> = BTreeMap::new();
    for window in &selected.windows {
        trace.for_each_sample_as_written(window, &mut |thread, sample, stack| {
            growers.entry(thread).or_default().add(sample, stack);
        })?;
    }
    let covered = trace.threads().iter().filter(|thread| selected.covers(thread));
    let threads = covered
        .map(|thread| growers.remove(&thread.id).unwrap_or_default().finish(thread.thread.clone()))
        .collect();
    let Objects { modules, methods, locations } = trace.load_objects()?;
    let recording = Recording::of(trace).showing(selected);
    Ok(Profile { recording, modules, methods, locations, threads })
}
