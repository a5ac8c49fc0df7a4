//! The labels of threads, or of their processes, in a tree or table of all threads.

use std::collections::HashMap;

use crate::view::profile::processes::Processes;
use crate::view::profile::thread_profile::{Profile, ThreadProfile};

/// The kind of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::view) enum LabelBy {
    Threads,
    Processes,
}

/// The threads, or the processes, of a view.
#[derive(Debug)]
pub(in crate::view) struct ThreadLabels {
    of: LabelBy,
    processes: Processes,
    /// The indices of labels by process id.
    indices: HashMap<u32, usize>,
    /// The labels, escaped for display.
    labels: Vec<String>,
}

impl ThreadLabels {
    /// Creates an empty set of labels.
    pub(in crate::view) fn new(profile: &Profile, of: LabelBy) -> Self {
        let (indices, labels) = Default::default();
        Self { of, processes: Processes::of(profile), indices, labels }
    }

    /// Adds a thread and returns the index of its label, or of its process's label.
    pub(in crate::view) fn add(&mut self, thread: &ThreadProfile) -> usize {
        if self.of == LabelBy::Threads {
            self.labels.push(thread.title());
            return self.labels.len() - 1;
        }
        let Self { labels, processes, .. } = self;
        let pid = thread.thread.pid;
        *self.indices.entry(pid).or_insert_with(|| {
            labels.push(processes.title(pid.into()));
            labels.len() - 1
        })
    }

    /// Returns all labels.
    pub(in crate::view) fn labels(self) -> Vec<String> {
        self.labels
    }
}

impl LabelBy {
    /// Returns the noun for one, and for several.
    pub(in crate::view) fn nouns(self) -> [&'static str; 2] {
        match self {
            Self::Threads => ["thread", "threads"],
            Self::Processes => ["process", "processes"],
        }
    }
}
