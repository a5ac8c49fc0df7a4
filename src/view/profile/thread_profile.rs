//! An aggregated trace: the stack tree of each thread, and the tables of names.

use std::collections::BTreeMap;
use std::sync::Arc;

use traceprof_abi::storage::log::flags;
use traceprof_abi::unwind::EndReason;

use crate::trace::{Location, LocationId, Method, MethodId, Module, Sample, Thread};
use crate::view::profile::activity::ActivityProfile;
use crate::view::profile::call_tree::{CallTree, CallTreeBuilder, Count, StackStep};
use crate::view::profile::states::StateTimes;
use crate::view::recording::lock::holds_lock;
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::waits::{WaitId, Waits};
use crate::view::select::groups::{GroupId, Groups};
use crate::view::text::escape::escaped;
use crate::view::text::module_name::module_name;

/// The id of a call trace that was dropped because the storage was full.
const DROPPED_TRACE_ID: u64 = 1;

/// All samples of one thread.
#[derive(Debug)]
pub struct ThreadProfile {
    /// The thread.
    pub thread: Thread,
    /// The stacks.
    pub tree: CallTree<LocationId>,
    /// The sum of the samples.
    pub count: Count,
    /// The sum of the samples in which it held the lock of its language's runtime.
    pub held: Count,
    /// The number of samples by the [`EndReason`] number of their unwinding.
    pub ends: BTreeMap<u16, u64>,
    /// The time by state, for wall clock time only.
    pub states: StateTimes,
    /// The ids of the process and the thread as the target sees them, if they differ.
    pub inner_ids: Option<(u64, u64)>,
}

impl ThreadProfile {
    /// Returns the title of the thread, escaped for display.
    pub(in crate::view) fn title(&self) -> String {
        let thread = &self.thread;
        let name = escaped(thread.shown_name());
        let process = if thread.pid == thread.tid {
            String::new()
        } else {
            format!(" of process {}", thread.pid)
        };
        format!("thread {} \"{name}\"{process}", thread.tid)
    }
}

/// Everything in a trace, aggregated by stack.
#[derive(Debug, Default)]
pub struct Profile {
    /// The recording.
    pub recording: RecordingInfo,
    /// The measured time.
    pub mode: Mode,
    /// Whether the profile has only samples of some states, system calls or contexts.
    pub narrow: bool,
    /// Whether a sample has a context, kept by the filter or not.
    pub has_contexts: bool,
    /// The times of the first and the last sample of the profile.
    pub times_ns: Option<(u64, u64)>,
    /// The activity over time.
    pub activity: ActivityProfile,
    /// The groups of the samples, if they are grouped.
    pub groups: Option<Arc<Groups>>,
    /// The contexts, if they are steps of the stacks.
    pub contexts: Option<Arc<Groups>>,
    /// The waits of all threads.
    pub waits: Waits,
    /// Modules by id.
    pub modules: Vec<Module>,
    /// Methods by id.
    pub methods: Vec<Method>,
    /// Locations by id.
    pub locations: Vec<Location>,
    /// The threads that are shown, by id.
    pub threads: Vec<ThreadProfile>,
}

impl Profile {
    /// Returns the time of all threads by state.
    pub fn states(&self) -> StateTimes {
        let mut states = StateTimes::default();
        for thread in &self.threads {
            states += thread.states;
        }
        states
    }

    /// Returns the sum of all samples.
    pub fn count(&self) -> Count {
        let mut count = Count::default();
        for thread in &self.threads {
            count += thread.count;
        }
        count
    }

    /// Returns the method of a location.
    pub fn method_of(&self, location: LocationId) -> Option<MethodId> {
        self.locations.get(location.0 as usize).map(|location| location.method)
    }

    /// Returns a method, or `None` if the trace is corrupt.
    pub fn method(&self, id: MethodId) -> Option<&Method> {
        self.methods.get(id.0 as usize)
    }

    /// Returns the last part of the path of a method's module.
    pub fn module_name(&self, method: &Method) -> Option<&str> {
        let path = &self.modules.get(method.module?.0 as usize)?.path;
        Some(module_name(path))
    }
}

/// Returns the placeholder for the unknown callers of a stack.
pub(in crate::view) fn mark_of(
    sample: &Sample,
    stack: &[LocationId],
) -> Option<StackStep<LocationId>> {
    // Time of a thread that ended before it had a sample has no stack, and none was dropped.
    if sample.trace_id == DROPPED_TRACE_ID && sample.flags & flags::REMAINDER == 0 {
        Some(StackStep::Dropped)
    } else if stack.is_empty() {
        Some(StackStep::Empty)
    } else if sample.end_reason != EndReason::Root as u16 {
        Some(StackStep::Truncated)
    } else {
        None
    }
}

/// Collects the samples of one thread.
#[derive(Debug, Default)]
pub struct ThreadProfileBuilder {
    mode: Mode,
    tree: CallTreeBuilder<LocationId>,
    count: Count,
    held: Count,
    ends: BTreeMap<u16, u64>,
    states: StateTimes,
}

impl ThreadProfileBuilder {
    /// Creates a builder for samples of this mode.
    pub fn new(mode: Mode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// Adds a sample with its own stack, root first, and the thread's wait if it did not run.
    pub fn add(&mut self, sample: &Sample, stack: &[LocationId], wait: Option<WaitId>) {
        self.add_in((None, None), sample, stack, wait);
    }

    /// Adds a sample of a group, with its context as a step.
    pub fn add_in(
        &mut self,
        (group, context): (Option<GroupId>, Option<GroupId>),
        sample: &Sample,
        stack: &[LocationId],
        wait: Option<WaitId>,
    ) {
        let count = Count { samples: 1, weight: u64::from(sample.weight) };
        let frames = stack.iter().map(|location| StackStep::Frame(*location));
        let outermost = group.map(StackStep::Group).into_iter().chain(mark_of(sample, stack));
        let innermost =
            context.map(StackStep::ContextText).into_iter().chain(wait.map(StackStep::Wait));
        self.tree.add(outermost.chain(frames).chain(innermost), count);
        if self.mode == Mode::Wall {
            self.states.add(sample.state, count.weight);
        }
        self.count += count;
        self.held += if holds_lock(sample) { count } else { Count::default() };
        *self.ends.entry(sample.end_reason).or_default() += 1;
    }

    /// Returns the thread with its samples.
    pub fn finish(self, thread: Thread) -> ThreadProfile {
        let Self { tree, count, held, ends, states, .. } = self;
        let tree = tree.finish();
        ThreadProfile { thread, tree, count, held, ends, states, inner_ids: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sample_whose_stack_had_no_room_has_lost_it() {
        let mark = |trace_id, flags| {
            let end_reason = EndReason::NoModule as u16;
            mark_of(&Sample { trace_id, flags, end_reason, ..Sample::default() }, &[])
        };
        assert_eq!(mark(DROPPED_TRACE_ID, 0), Some(StackStep::Dropped));
        assert_eq!(mark(DROPPED_TRACE_ID, flags::REMAINDER), Some(StackStep::Empty));
        assert_eq!(mark(2, 0), Some(StackStep::Empty));
    }
}
