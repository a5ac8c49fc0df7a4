//! Reads samples thread by thread, for formats that list every sample.

use super::ExportOptions;
use crate::trace::meter::{self, PassUnit};
use crate::trace::{LazyTrace, LocationId, Sample, ThreadId, ThreadSummary, TraceError, Window};
use crate::view::profile::idle::idle_threads;
use crate::view::profile::thread_profile::Profile;
use crate::view::select::selection::Selected;

/// Returns the threads with selected samples. `profile` was loaded from the same selection.
///
/// Idle threads are left out if the options say so. This also starts the progress meter.
pub(super) fn threads<'a>(
    trace: &'a LazyTrace,
    (selected, profile): (&Selected, &Profile),
    options: &ExportOptions,
) -> Vec<&'a ThreadSummary> {
    let idle = if options.no_idle { idle_threads(profile) } else { Vec::new() };
    let covered = trace.threads().iter().filter(|thread| selected.covers(thread));
    let is_shown = |index: usize| {
        let is_idle = idle.get(index).copied().unwrap_or(false);
        !is_idle && profile.threads.get(index).is_some_and(|it| it.count.samples > 0)
    };
    let shown: Vec<&ThreadSummary> =
        covered.enumerate().filter(|(index, _)| is_shown(*index)).map(|(_, it)| it).collect();
    let samples = shown.iter().fold(0u64, |sum, thread| sum.saturating_add(thread.samples));
    meter::pass("exporting", PassUnit::Samples, samples);
    shown
}

/// Calls `f` with the selected samples of one thread and their stacks, root first, in the order in
/// which they were taken.
pub(super) fn of_thread(
    trace: &LazyTrace,
    selected: &Selected,
    thread: ThreadId,
    f: &mut dyn FnMut(&Sample, &[LocationId]),
) -> Result<(), TraceError> {
    for window in &selected.windows {
        if window.threads.as_ref().is_some_and(|threads| !threads.contains(&thread)) {
            continue;
        }
        let window = Window { threads: Some([thread].into()), ..window.clone() };
        trace.for_each_sample(&window, &mut |_, sample, stack| {
            if selected.filter.keeps(sample, stack) {
                f(sample, stack);
            }
        })?;
    }
    Ok(())
}
