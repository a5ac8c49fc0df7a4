//! What threads are told apart by, where all of them are in one tree or table: each, or its process.

use std::collections::HashMap;

use super::forest::describe;
use super::processes::Processes;
use super::profile::{Profile, ThreadProfile};

/// What tells threads apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartOf {
    Threads,
    Processes,
}

/// The threads, or the processes, of a view.
#[derive(Debug)]
pub(super) struct Parts {
    of: PartOf,
    processes: Processes,
    /// By the id of a process.
    places: HashMap<u32, usize>,
    /// By place, safe to show.
    labels: Vec<String>,
}

impl Parts {
    /// Those of no thread yet.
    pub(super) fn new(profile: &Profile, of: PartOf) -> Self {
        let (places, labels) = Default::default();
        Self { of, processes: Processes::of(profile), places, labels }
    }

    /// Adds a thread, and says what its place is, or that of its process.
    pub(super) fn add(&mut self, thread: &ThreadProfile) -> usize {
        if self.of == PartOf::Threads {
            self.labels.push(describe(thread));
            return self.labels.len() - 1;
        }
        let Self { labels, processes, .. } = self;
        let pid = thread.thread.pid;
        *self.places.entry(pid).or_insert_with(|| {
            labels.push(processes.title(pid.into()));
            labels.len() - 1
        })
    }

    /// What each is called.
    pub(super) fn labels(self) -> Vec<String> {
        self.labels
    }
}

impl PartOf {
    /// What one is, and many are.
    pub(super) fn nouns(self) -> [&'static str; 2] {
        match self {
            Self::Threads => ["thread", "threads"],
            Self::Processes => ["process", "processes"],
        }
    }
}
