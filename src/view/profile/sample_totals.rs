//! The totals of the selected samples: by process, by time, and by end of the unwinding.
//!
//! # Invariants
//! - Memory grows with the threads, not with the samples.
//! - The totals by process, by time and by end of the stacks add up to the samples.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use traceprof_abi::unwind::EndReason;

use crate::trace::{LazyTrace, Sample, TextId, Thread, ThreadId, TraceError, Window};
use crate::view::profile::activity::ActivityProfile;
use crate::view::profile::call_tree::{Count, StackStep};
use crate::view::profile::languages::Languages;
use crate::view::profile::states::StateTimes;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::context::has_context;
use crate::view::recording::lock::{holds_lock, lock_name};
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::waits::Wait;
use crate::view::select::selection::Selected;

/// The totals of the selected samples.
#[derive(Debug, Default)]
pub(in crate::view) struct SampleTotals {
    pub(in crate::view) mode: Mode,
    pub(in crate::view) count: Count,
    /// The time by state, for wall clock time only.
    states: StateTimes,
    /// The number of threads with samples.
    pub(in crate::view) threads: u64,
    /// The number of samples by the number of the [`EndReason`] of their unwinding.
    pub(in crate::view) ends: BTreeMap<u16, u64>,
    /// The activity over time.
    pub(in crate::view) activity: ActivityProfile,
    /// The processes of the selected threads, by their ids.
    pub(in crate::view) processes: BTreeMap<u32, ProcessTotals>,
    /// Whether a sample has a context, kept by the filter or not.
    pub(in crate::view) has_contexts: bool,
    /// The languages of the innermost functions, for a profile only.
    pub(in crate::view) languages: Languages,
    /// The samples in which the thread held the lock of its language's runtime.
    pub(in crate::view) held: Count,
    /// The samples of threads that waited for that lock.
    pub(in crate::view) waited: Count,
    /// Whether a kept sample has another weight than one period. Unset for a profile.
    pub(in crate::view) uneven: bool,
}

/// The totals of a process.
#[derive(Debug, Default)]
pub(in crate::view) struct ProcessTotals {
    /// The name of the first thread, empty if that thread is missing.
    pub(in crate::view) name: String,
    /// The number of its threads with samples.
    pub(in crate::view) threads: u64,
    pub(in crate::view) count: Count,
}

impl SampleTotals {
    /// Returns the totals of a profile.
    pub(in crate::view) fn in_profile(profile: &Profile) -> Self {
        let (mode, activity, has_contexts) =
            (profile.mode, profile.activity.clone(), profile.has_contexts);
        let (states, languages) = (profile.states(), Languages::of(profile));
        let mut totals =
            Self { mode, activity, has_contexts, states, languages, ..Self::default() };
        for thread in &profile.threads {
            for call in thread.tree.calls() {
                if let StackStep::Wait(id) = call.step
                    && profile.waits.is_for_lock(id)
                {
                    totals.waited += call.own;
                }
            }
        }
        for profile in &profile.threads {
            totals.add_thread(&profile.thread, profile.count);
            totals.held += profile.held;
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
        let activity = ActivityProfile::new(&RecordingInfo::of(trace), selected);
        let mut totals = Self { mode, activity, ..Self::default() };
        let mut counts: HashMap<ThreadId, Count> = HashMap::new();
        let mut waited_on: HashMap<TextId, Count> = HashMap::new();
        selected.meter(trace);
        for window in &selected.windows {
            let mut add = |thread, sample: &Sample, _: &[_]| {
                totals.has_contexts |= has_context(sample);
                if selected.filter.has(sample) {
                    let count = Count { samples: 1, weight: u64::from(sample.weight) };
                    totals.uneven |= sample.weight != 1;
                    totals.held += if holds_lock(sample) { count } else { Count::default() };
                    let wait = Wait::of(sample).and_then(|wait| wait.on);
                    wait.into_iter().for_each(|on| *waited_on.entry(on).or_default() += count);
                    *counts.entry(thread).or_default() += count;
                    *totals.ends.entry(sample.end_reason).or_default() += 1;
                    totals.states.add(sample.state, count.weight);
                    totals.activity.add(mode, sample);
                }
            };
            // A window is read through the index. A complete trace in file order decodes each frame
            // once.
            if *window == Window::default() {
                trace.for_each_sample_as_written(window, &mut add)?;
            } else {
                trace.for_each_sample(window, &mut add)?;
            }
        }
        for (on, count) in waited_on {
            totals.waited += if trace.text(on)? == lock_name() { count } else { Count::default() };
        }
        for summary in trace.threads().iter().filter(|thread| selected.covers(thread)) {
            let count = counts.get(&summary.id).copied().unwrap_or_default();
            totals.add_thread(&summary.thread, count);
        }
        Ok((totals, counts.into_keys().collect()))
    }

    fn add_thread(&mut self, thread: &Thread, count: Count) {
        let process = self.processes.entry(thread.pid).or_default();
        // A process has the name of its first thread.
        if thread.tid == thread.pid {
            process.name.clone_from(&thread.name);
        }
        let has_any = u64::from(count.samples > 0);
        process.threads += has_any;
        process.count += count;
        self.threads += has_any;
        self.count += count;
    }

    /// Returns the number of sampling periods, for CPU time only.
    pub(in crate::view) fn periods(&self) -> Option<u64> {
        (self.mode == Mode::Cpu).then_some(self.count.weight)
    }

    /// Returns the time by state, for wall clock time only.
    pub(in crate::view) fn states(&self) -> Option<&StateTimes> {
        (self.mode == Mode::Wall).then_some(&self.states)
    }

    /// Returns the number of samples whose stack reaches the root, and of all samples.
    pub(in crate::view) fn rooted(&self) -> (u64, u64) {
        let rooted = self.ends.get(&(EndReason::Root as u16)).copied().unwrap_or(0);
        (rooted, self.ends.values().sum())
    }
}
