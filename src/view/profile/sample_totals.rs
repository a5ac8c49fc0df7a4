//! The totals of the selected samples: by process, by time, and by end of the unwinding.
//!
//! # Invariants
//! - Memory grows with the threads, not with the samples.
//! - The totals by process, by time and by end of the stacks add up to the samples.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use traceprof_abi::unwind::EndReason;

use crate::trace::{LazyTrace, Sample, Thread, ThreadId, TraceError, Window};
use crate::view::profile::activity::Activity;
use crate::view::profile::call_tree::Count;
use crate::view::profile::states::StateTimes;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::context::has_context;
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::select::selection::Selected;

/// The totals of the selected samples.
#[derive(Debug, Default)]
pub(in crate::view) struct SampleTotals {
    pub(in crate::view) mode: Mode,
    pub(in crate::view) count: Count,
    /// Time by state, of wall clock time.
    states: StateTimes,
    /// The number of threads with samples.
    pub(in crate::view) threads: u64,
    /// The samples by the number of the [`EndReason`] of their unwinding.
    pub(in crate::view) ends: BTreeMap<u16, u64>,
    /// The activity over time.
    pub(in crate::view) activity: Activity,
    /// The processes of the selected threads by their ids.
    pub(in crate::view) processes: BTreeMap<u32, ProcessTotals>,
    /// Some sample has a context, whether or not the filter keeps it.
    pub(in crate::view) has_contexts: bool,
    /// Some kept sample weighs other than one period; unset for a profile.
    pub(in crate::view) uneven: bool,
}

/// The totals of a process.
#[derive(Debug, Default)]
pub(in crate::view) struct ProcessTotals {
    /// The name of the first thread; empty if that is missing.
    pub(in crate::view) name: String,
    /// The number of its threads with samples.
    pub(in crate::view) threads: u64,
    pub(in crate::view) count: Count,
}

impl SampleTotals {
    /// The totals of a profile.
    pub(in crate::view) fn in_profile(profile: &Profile) -> Self {
        let (mode, activity, has_contexts) =
            (profile.mode, profile.activity.clone(), profile.has_contexts);
        let mut totals =
            Self { mode, activity, has_contexts, states: profile.states(), ..Self::default() };
        for profile in &profile.threads {
            totals.add_thread(&profile.thread, profile.count);
            for (reason, samples) in &profile.ends {
                *totals.ends.entry(*reason).or_default() += samples;
            }
        }
        totals
    }

    /// Reads the selected samples once, without their stacks.
    ///
    /// Returns the totals and the threads with samples.
    pub(in crate::view) fn selected(
        trace: &LazyTrace,
        selected: &Selected,
    ) -> Result<(Self, BTreeSet<ThreadId>), TraceError> {
        let mode = selected.filter.mode;
        let activity = Activity::new(&RecordingInfo::of(trace), selected);
        let mut totals = Self { mode, activity, ..Self::default() };
        let mut counts: HashMap<ThreadId, Count> = HashMap::new();
        selected.meter(trace);
        for window in &selected.windows {
            let mut add = |thread, sample: &Sample, _: &[_]| {
                totals.has_contexts |= has_context(sample);
                if selected.filter.has(sample) {
                    let count = Count { samples: 1, weight: u64::from(sample.weight) };
                    totals.uneven |= sample.weight != 1;
                    *counts.entry(thread).or_default() += count;
                    *totals.ends.entry(sample.end_reason).or_default() += 1;
                    totals.states.add(sample.state, count.weight);
                    totals.activity.add(mode, sample);
                }
            };
            // A window is read through the index; a whole trace in file order decodes each frame
            // once.
            if *window == Window::default() {
                trace.for_each_sample_as_written(window, &mut add)?;
            } else {
                trace.for_each_sample(window, &mut add)?;
            }
        }
        for summary in trace.threads().iter().filter(|thread| selected.covers(thread)) {
            let count = counts.get(&summary.id).copied().unwrap_or_default();
            totals.add_thread(&summary.thread, count);
        }
        Ok((totals, counts.into_keys().collect()))
    }

    fn add_thread(&mut self, thread: &Thread, count: Count) {
        let process = self.processes.entry(thread.pid).or_default();
        // A process is called as its first thread.
        if thread.tid == thread.pid {
            process.name.clone_from(&thread.name);
        }
        let has_any = u64::from(count.samples > 0);
        process.threads += has_any;
        process.count += count;
        self.threads += has_any;
        self.count += count;
    }

    /// Sampling periods, of CPU time.
    pub(in crate::view) fn periods(&self) -> Option<u64> {
        (self.mode == Mode::Cpu).then_some(self.count.weight)
    }

    /// Time by state, of wall clock time.
    pub(in crate::view) fn states(&self) -> Option<&StateTimes> {
        (self.mode == Mode::Wall).then_some(&self.states)
    }

    /// Samples whose stack reaches the root, and all.
    pub(in crate::view) fn rooted(&self) -> (u64, u64) {
        let rooted = self.ends.get(&(EndReason::Root as u16)).copied().unwrap_or(0);
        (rooted, self.ends.values().sum())
    }
}
