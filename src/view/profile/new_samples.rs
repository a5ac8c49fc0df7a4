//! Finds the new samples of a trace that is still being written.

use std::collections::BTreeMap;

use crate::trace::{LazyTrace, ThreadId, TraceError, Window};
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::select::selection::{Selected, Selection};

/// Keeps track of the samples that were already shown.
#[derive(Debug, Default)]
pub struct NewSamples {
    selection: Selection,
    /// The selected times. Percentages refer to the recording as it was at the first call.
    times: Option<(u64, u64)>,
    shown: BTreeMap<ThreadId, ShownThread>,
    /// The number of samples since then, 0 if the selection is limited in time.
    came: u64,
}

/// The state of a thread when it was last shown.
#[derive(Debug, Clone, Copy)]
struct ShownThread {
    samples: u64,
    last_ns: u64,
}

impl NewSamples {
    /// Starts with nothing shown: all selected samples are new.
    pub fn new(selection: Selection) -> Self {
        Self { selection, ..Self::default() }
    }

    /// Returns the samples that arrived since the last call, with a window per thread and a
    /// heading, or `None` if there are none.
    ///
    /// # Errors
    /// A message for the user, as from [`Selection::resolve`]. Missing threads are no error,
    /// because they may still appear.
    pub fn next(&mut self, trace: &LazyTrace) -> Result<Option<Selected>, String> {
        let recording = RecordingInfo::of(trace);
        let (from_ns, to_ns) = match self.times {
            Some(times) => times,
            None => self.selection.times(&recording)?,
        };
        self.times = Some((from_ns, to_ns));
        let chosen = self.selection.choose(trace.threads());
        let mut windows = Vec::new();
        let mut span_ns = (u64::MAX, 0);
        self.came = 0;
        for thread in trace.threads() {
            let (Some(first_ns), Some(last_ns)) = (thread.first_ns, thread.last_ns) else {
                continue;
            };
            let shown = self.shown.get(&thread.id).copied();
            let is_chosen = chosen.as_ref().is_none_or(|chosen| chosen.contains(&thread.id));
            let is_known = shown.is_some_and(|shown| shown.samples == thread.samples);
            // Each thread has its own limit, so that a late thread does not cost samples of others.
            let new_ns = shown.map_or(first_ns, |shown| shown.last_ns.saturating_add(1));
            self.shown.insert(thread.id, ShownThread { samples: thread.samples, last_ns });
            if is_chosen && (from_ns, to_ns) == (0, u64::MAX) {
                let before = shown.map_or(0, |shown| shown.samples);
                self.came += thread.samples.saturating_sub(before);
            }
            let (begin_ns, end_ns) = (new_ns.max(from_ns), last_ns.min(to_ns));
            if is_known || !is_chosen || begin_ns > end_ns {
                continue;
            }
            span_ns = (span_ns.0.min(begin_ns), span_ns.1.max(end_ns));
            let threads = Some([thread.id].into());
            windows.push(Window { threads, from_ns: begin_ns, to_ns: end_ns });
        }
        let base_ns = recording.begin_ns().unwrap_or(0);
        let since = |time_ns: u64| time_ns.saturating_sub(base_ns) as f64 / 1e9;
        let text = Some(format!("{:.3} s to {:.3} s", since(span_ns.0), since(span_ns.1)));
        let (filter, by) = self.selection.resolve_filter(trace)?;
        Ok((!windows.is_empty()).then_some(Selected { windows, filter, by, text }))
    }

    /// Returns an empty selection, for a trace without samples.
    pub fn none_yet(&self, trace: &LazyTrace) -> Result<Selected, String> {
        let (filter, by) = self.selection.resolve_filter(trace)?;
        Ok(Selected { windows: Vec::new(), filter, by, text: None })
    }

    /// Returns the number of new samples that [`Self::next`] left out because they are older than
    /// shown ones.
    ///
    /// A recorder may write samples with incomplete stacks later than others.
    pub fn late(&self, trace: &LazyTrace, selected: Option<&Selected>) -> Result<u64, TraceError> {
        let mut count = 0;
        for window in selected.iter().flat_map(|selected| &selected.windows) {
            trace.for_each_sample(window, &mut |_, _, _| count += 1)?;
        }
        Ok(self.came.saturating_sub(count))
    }

    /// Returns whether later samples than the shown ones are selected.
    pub fn wants_more(&self) -> bool {
        let (last_ns, to_ns) = (self.shown.values().map(|shown| shown.last_ns).max(), self.times);
        last_ns.zip(to_ns).is_none_or(|(last_ns, (_, to_ns))| last_ns <= to_ns)
    }
}
