//! The wait of a thread that does not run, as the innermost step of its stack.

use std::collections::{HashMap, HashSet};

use crate::proc;
use crate::trace::{LazyTrace, RunState, Sample, TextId, TraceError};

use crate::view::recording::lock::{holds_lock, lock_name};
use crate::view::recording::mode::is_wall;
use crate::view::text::escape::escaped;

/// Time in which a thread did not run: its state, its system call and the object of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wait {
    /// The number of the [`RunState`].
    pub state: u8,
    /// The number of the system call, if known.
    pub syscall: Option<u32>,
    /// The object that the call waits on, if known.
    pub on: Option<TextId>,
    /// Whether the thread holds the lock of its language's runtime meanwhile.
    pub holds_lock: bool,
}

impl Wait {
    /// Returns the wait of a sample of wall clock time, or `None` if the thread ran.
    pub fn of(sample: &Sample) -> Option<Self> {
        if !is_wall(sample) || sample.state == RunState::Running as u8 {
            return None;
        }
        let Sample { state, syscall, waits_on: on, .. } = *sample;
        let holds_lock = holds_lock(sample);
        match RunState::from_number(state) {
            // A runnable or stopped thread does not wait for its system call.
            Some(RunState::Runnable | RunState::Stopped) => {
                Some(Self { state, syscall: None, on: None, holds_lock })
            }
            _ => Some(Self { state, syscall, on, holds_lock }),
        }
    }

    /// Returns the name in a tree, such as `[sleeping in epoll_wait on eventpoll]`. `text` is the
    /// object of the wait.
    pub fn label(&self, text: Option<&str>) -> String {
        let doing = doing(self.state, self.syscall, text);
        match self.holds_lock {
            true => format!("[{doing}, holding {}]", lock_name()),
            false => format!("[{doing}]"),
        }
    }
}

/// The index of a [`Wait`]. It keeps the many steps of stacks small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(u32);

/// All waits of a profile.
#[derive(Debug, Clone, Default)]
pub struct Waits {
    ids: HashMap<Wait, WaitId>,
    /// The waits by [`WaitId`], each with its name.
    all: Vec<(Wait, String)>,
    /// The waits for the lock of a language's runtime.
    for_lock: HashSet<WaitId>,
}

impl Waits {
    /// Returns the id of a sample's wait and adds it if necessary, or `None` if the thread ran.
    pub fn id(&mut self, sample: &Sample) -> Option<WaitId> {
        let wait = Wait::of(sample)?;
        if let Some(id) = self.ids.get(&wait) {
            return Some(*id);
        }
        // A trace cannot hold four billion waits.
        let id = WaitId(u32::try_from(self.all.len()).ok()?);
        self.ids.insert(wait, id);
        self.all.push((wait, wait.label(None)));
        Some(id)
    }

    /// Returns the id of a sample's wait, if it is already known.
    pub(in crate::view) fn find(&self, sample: &Sample) -> Option<WaitId> {
        self.ids.get(&Wait::of(sample)?).copied()
    }

    /// Adds the objects of system calls to the names.
    pub(in crate::view) fn resolve(&mut self, trace: &LazyTrace) -> Result<(), TraceError> {
        for (id, (wait, label)) in self.all.iter_mut().enumerate() {
            if let Some(on) = wait.on {
                let text = trace.text(on)?;
                *label = wait.label(Some(&text));
                if *text == *lock_name() {
                    self.for_lock.insert(WaitId(id as u32));
                }
            }
        }
        Ok(())
    }

    /// Returns all waits, each with its name.
    pub(in crate::view) fn iter(&self) -> impl Iterator<Item = (Wait, &str)> {
        self.all.iter().map(|(wait, label)| (*wait, label.as_str()))
    }

    /// Returns whether threads wait for the lock of their language's runtime.
    pub(in crate::view) fn is_for_lock(&self, id: WaitId) -> bool {
        self.for_lock.contains(&id)
    }

    /// Returns the wait with this id.
    pub(in crate::view) fn get(&self, id: WaitId) -> Option<Wait> {
        self.all.get(id.0 as usize).map(|(wait, _)| *wait)
    }

    /// Returns the name of the wait with this id.
    pub(in crate::view) fn name(&self, id: WaitId) -> &str {
        self.all.get(id.0 as usize).map_or("[waiting]", |(_, label)| label)
    }
}

/// Returns a text with the state, the system call and its object, escaped for display.
pub(in crate::view) fn doing(state: u8, syscall: Option<u32>, on: Option<&str>) -> String {
    let mut words = state_name(state);
    if let Some(number) = syscall {
        words.push_str(" in ");
        words.push_str(&call_name(number));
    }
    if let Some(on) = on {
        words.push_str(" on ");
        words.push_str(&escaped(on));
    }
    words
}

/// Returns the name of a state, or its number if it is unknown.
pub(in crate::view) fn state_name(state: u8) -> String {
    match RunState::from_number(state) {
        Some(state) => state.name().to_owned(),
        None => format!("state {state}"),
    }
}

/// Returns the name of a system call, or its number if it is unknown.
pub(in crate::view) fn call_name(number: u32) -> String {
    match proc::call_name(number.into()) {
        Some(name) => name.to_owned(),
        None => format!("system call {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use traceprof_abi::storage::log::flags::WALL;

    fn label(state: u8, syscall: Option<u32>, on: Option<&str>) -> Option<String> {
        let waits_on = on.map(|_| TextId(0));
        let sample = Sample { flags: WALL, state, syscall, waits_on, ..Sample::default() };
        Wait::of(&sample).map(|wait| wait.label(on.filter(|_| wait.on.is_some())))
    }

    #[test]
    fn waiting_has_one_wording() {
        for (state, syscall, on, expected) in [
            (2, Some(202), None, "[sleeping in futex]"),
            (2, Some(232), Some("eventpoll"), "[sleeping in epoll_wait on eventpoll]"),
            (3, Some(17), Some("/var/\u{1b}x"), "[disk in pread64 on /var/\\u{1b}x]"),
            (2, None, None, "[sleeping]"),
            (2, Some(9999), None, "[sleeping in system call 9999]"),
            (1, Some(202), Some("pipe"), "[runnable]"),
            (4, Some(0), None, "[stopped]"),
            (9, None, None, "[state 9]"),
        ] {
            assert_eq!(label(state, syscall, on).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_thread_that_runs_waits_for_nothing() {
        assert_eq!(label(0, Some(202), None), None);
        assert_eq!(Wait::of(&Sample { state: 2, ..Sample::default() }), None, "no wall clock time");
    }
}
