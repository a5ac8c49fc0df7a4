//! What a view has looked at: how much of which processes, when, and how good it is.
//!
//! # Invariants
//! - Memory is that of the threads, whatever the number of samples.
//! - What processes, parts of the time and ends of stacks have adds up to the samples.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use traceprof_abi::unwind::EndReason;

use super::calls::Count;
use super::context::is_told;
use super::mode::Mode;
use super::profile::Profile;
use super::recording::Recording;
use super::selection::Selected;
use super::states::StateTimes;
use super::strip::Strip;
use crate::trace::{LazyTrace, Sample, Thread, ThreadId, TraceError, Window};

/// The samples that were looked at.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) mode: Mode,
    pub(super) count: Count,
    /// Time by state, of wall clock time.
    states: StateTimes,
    /// How many threads have any.
    pub(super) threads: u64,
    /// How the unwinding ended: how many by the number of the [`EndReason`].
    pub(super) ends: BTreeMap<u16, u64>,
    /// How busy the target was when.
    pub(super) strip: Strip,
    /// By id: those of the threads that are looked at.
    pub(super) processes: BTreeMap<u32, SeenProcess>,
    /// Some sample has a context, whether or not it is looked at.
    pub(super) told: bool,
    /// Some sample that is looked at weighs other than one period. Of a profile nobody looked.
    pub(super) uneven: bool,
}

/// A process, as far as it was looked at.
#[derive(Debug, Default)]
pub(super) struct SeenProcess {
    /// That of its first thread; empty if that is not there.
    pub(super) name: String,
    /// How many of its threads have samples.
    pub(super) threads: u64,
    pub(super) count: Count,
}

impl Seen {
    /// All samples of a profile.
    pub(super) fn in_profile(profile: &Profile) -> Self {
        let (mode, strip, told) = (profile.mode, profile.strip.clone(), profile.told);
        let mut seen = Self { mode, strip, told, states: profile.states(), ..Self::default() };
        for profile in &profile.threads {
            seen.add_thread(&profile.thread, profile.count);
            for (reason, samples) in &profile.ends {
                *seen.ends.entry(*reason).or_default() += samples;
            }
        }
        seen
    }

    /// The samples of a trace that are selected, each looked at once; and the threads that have any.
    /// Stacks are not looked at.
    pub(super) fn selected(
        trace: &LazyTrace,
        selected: &Selected,
    ) -> Result<(Self, BTreeSet<ThreadId>), TraceError> {
        let mode = selected.filter.mode;
        let strip = Strip::new(&Recording::of(trace), selected);
        let mut seen = Self { mode, strip, ..Self::default() };
        let mut counts: HashMap<ThreadId, Count> = HashMap::new();
        selected.meter(trace);
        for window in &selected.windows {
            let mut add = |thread, sample: &Sample, _: &[_]| {
                seen.told |= is_told(sample);
                if selected.filter.has(sample) {
                    let count = Count { samples: 1, weight: u64::from(sample.weight) };
                    seen.uneven |= sample.weight != 1;
                    *counts.entry(thread).or_default() += count;
                    *seen.ends.entry(sample.end_reason).or_default() += 1;
                    seen.states.add(sample.state, count.weight);
                    seen.strip.add(mode, sample);
                }
            };
            // The index leads to what is in a window; of all there is, each frame is decoded once.
            if *window == Window::default() {
                trace.for_each_sample_as_written(window, &mut add)?;
            } else {
                trace.for_each_sample(window, &mut add)?;
            }
        }
        for summary in trace.threads().iter().filter(|thread| selected.covers(thread)) {
            let count = counts.get(&summary.id).copied().unwrap_or_default();
            seen.add_thread(&summary.thread, count);
        }
        Ok((seen, counts.into_keys().collect()))
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
    pub(super) fn periods(&self) -> Option<u64> {
        (self.mode == Mode::Cpu).then_some(self.count.weight)
    }

    /// Time by state, of wall clock time.
    pub(super) fn states(&self) -> Option<&StateTimes> {
        (self.mode == Mode::Wall).then_some(&self.states)
    }

    /// Samples whose stack reaches the root, and all.
    pub(super) fn rooted(&self) -> (u64, u64) {
        let rooted = self.ends.get(&(EndReason::Root as u16)).copied().unwrap_or(0);
        (rooted, self.ends.values().sum())
    }
}
