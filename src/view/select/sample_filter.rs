//! Keeps samples by mode, state, system call, context and stack.

use std::collections::BTreeSet;
use std::str::FromStr;

use crate::proc;
use crate::trace::{LocationId, RunState, Sample};
use crate::view::recording::lock::{holds_lock, lock_name};
use crate::view::recording::mode::{Mode, is_wall};
use crate::view::recording::waits::call_name;
use crate::view::select::context_filter::ContextFilter;
use crate::view::select::stack_filter::StackFilter;

/// Maximum number of names that a message proposes.
const PROPOSED: usize = 3;

/// A system call by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallNumber(pub u32);

impl FromStr for CallNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.parse() {
            return Ok(Self(number));
        }
        let named = proc::call_names().find(|(_, name)| *name == text);
        let number = named.and_then(|(number, _)| u32::try_from(number).ok());
        number.map(Self).ok_or_else(|| {
            let nearest = nearest(text, proc::call_names().map(|(_, name)| name));
            format!("no system call has this name; the nearest are {}", nearest.join(", "))
        })
    }
}

/// A run state by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateName(pub RunState);

impl FromStr for StateName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = RunState::ALL.into_iter().find(|state| state.name() == text);
        known.map(Self).ok_or_else(|| {
            let nearest = nearest(text, RunState::ALL.iter().map(|state| state.name()));
            let near = nearest.first().copied().unwrap_or_default();
            let all = RunState::ALL.map(RunState::name).join(", ");
            format!("the states are {all}; the nearest is {near}")
        })
    }
}

/// The samples that a view keeps. The default keeps CPU time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampleFilter {
    /// The measured time.
    pub mode: Mode,
    /// The wanted states. Empty keeps all.
    pub states: BTreeSet<RunState>,
    /// The numbers of the wanted system calls. Empty keeps all samples.
    pub calls: BTreeSet<u32>,
    /// Whether to keep only samples of threads that held the lock of their language's runtime.
    pub holders: bool,
    /// The wanted contexts.
    pub context: ContextFilter,
    /// The wanted stacks.
    pub stacks: StackFilter,
}

impl SampleFilter {
    /// Returns whether the filter keeps a sample with this stack.
    pub fn keeps(&self, sample: &Sample, stack: &[LocationId]) -> bool {
        self.has(sample) && self.stacks.has(stack)
    }

    /// Returns whether the filter keeps a sample, whatever its stack.
    pub fn has(&self, sample: &Sample) -> bool {
        // Each mode has its own samples, with weights in another unit.
        if is_wall(sample) != (self.mode == Mode::Wall) {
            return false;
        }
        let in_state =
            || RunState::from_number(sample.state).is_some_and(|it| self.states.contains(&it));
        let in_call = || sample.syscall.is_some_and(|call| self.calls.contains(&call));
        (self.states.is_empty() || in_state())
            && (self.calls.is_empty() || in_call())
            && (!self.holders || holds_lock(sample))
            && self.context.has(sample)
    }

    /// Returns whether the filter keeps only a part of the measured time.
    pub fn is_narrow(&self) -> bool {
        self.is_of_waits() || self.holders || !self.context.is_empty() || !self.stacks.is_empty()
    }

    /// Returns whether the filter needs wall clock time.
    pub(in crate::view) fn is_of_waits(&self) -> bool {
        !self.states.is_empty() || !self.calls.is_empty()
    }

    /// Returns the filter as text.
    pub(in crate::view) fn texts(&self) -> impl Iterator<Item = String> {
        let states: Vec<&str> = self.states.iter().map(|state| state.name()).collect();
        let calls: Vec<String> = self.calls.iter().map(|number| call_name(*number)).collect();
        let states =
            (!states.is_empty()).then(|| format!("threads that are {}", states.join(" or ")));
        let calls = (!calls.is_empty()).then(|| format!("in {}", calls.join(" or ")));
        let holders = self.holders.then(|| format!("threads that held {}", lock_name()));
        let states = states.into_iter().chain(calls).chain(holders);
        states.chain(self.context.texts()).chain(self.stacks.texts())
    }
}

/// Returns the names most similar to `text`, nearest first.
fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<(usize, &str)> =
        names.map(|name| (distance(text.as_bytes(), name.as_bytes()), name)).collect();
    names.sort();
    names.into_iter().take(PROPOSED).map(|(_, name)| name).collect()
}

/// Returns the edit distance of two texts, in bytes.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, byte) in one.iter().enumerate() {
        let mut diagonal = line;
        let mut left = line + 1;
        for (above, same) in row.iter_mut().skip(1).zip(other.iter().map(|it| it == byte)) {
            let changed = diagonal + usize::from(!same);
            diagonal = *above;
            left = changed.min(left + 1).min(diagonal + 1);
            *above = left;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use traceprof_abi::storage::log::flags::WALL;

    #[test]
    fn calls_have_names_or_numbers() {
        assert_eq!("futex".parse(), Ok(CallNumber(202)));
        assert_eq!("202".parse(), Ok(CallNumber(202)));
        assert_eq!("clone3".parse(), Ok(CallNumber(435)));
        let error = "epol_wait".parse::<CallNumber>().unwrap_err();
        assert!(error.contains("the nearest are epoll_wait, epoll_pwait"), "{error}");
        for text in ["", "-1", "99999999999", "FUTEX", "x".repeat(10_000).as_str()] {
            assert!(text.parse::<CallNumber>().is_err(), "{text}");
        }
    }

    #[test]
    fn states_have_names() {
        for state in RunState::ALL {
            assert_eq!(state.name().parse(), Ok(StateName(state)));
        }
        let error = "sleping".parse::<StateName>().unwrap_err();
        assert!(error.ends_with("the nearest is sleeping"), "{error}");
    }

    #[test]
    fn distances_are_numbers_of_changes() {
        for (one, other, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("epol_wait", "epoll_wait", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one.as_bytes(), other.as_bytes()), expected, "{one} {other}");
        }
    }

    #[test]
    fn a_filter_keeps_samples_that_match_all_conditions() {
        let sample = |flags, state, syscall| Sample { flags, state, syscall, ..Sample::default() };
        let samples = [
            sample(0, 0, None),
            sample(WALL, 2, Some(202)),
            sample(WALL, 2, Some(232)),
            sample(WALL, 3, Some(17)),
            sample(WALL, 1, None),
            sample(WALL, 0, None),
        ];
        let kept = |mode, states: &[RunState], calls: &[u32]| {
            let states = states.iter().copied().collect();
            let calls = calls.iter().copied().collect();
            let filter = SampleFilter { mode, states, calls, ..SampleFilter::default() };
            samples.iter().map(|sample| u8::from(filter.has(sample))).collect::<Vec<_>>()
        };
        assert_eq!(kept(Mode::Cpu, &[], &[]), [1, 0, 0, 0, 0, 0]);
        assert_eq!(kept(Mode::Wall, &[], &[]), [0, 1, 1, 1, 1, 1]);
        assert_eq!(kept(Mode::Wall, &[RunState::Sleeping], &[]), [0, 1, 1, 0, 0, 0]);
        assert_eq!(kept(Mode::Wall, &[RunState::Running, RunState::Disk], &[]), [0, 0, 0, 1, 0, 1]);
        assert_eq!(kept(Mode::Wall, &[], &[17, 202]), [0, 1, 0, 1, 0, 0]);
        assert_eq!(kept(Mode::Wall, &[RunState::Disk], &[202]), [0, 0, 0, 0, 0, 0]);
    }
}
