//! The labels of threads, or of their processes, in a tree or table of all threads.

use std::collections::{BTreeSet, HashMap};

use crate::view::profile::processes::Processes;
use crate::view::profile::thread_profile::{Profile, ThreadProfile};

/// The kind of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::view) enum LabelBy {
    Threads,
    Processes,
    /// The processes of each program together.
    Programs,
}

/// The threads, the processes or their programs in a view.
#[derive(Debug)]
pub(in crate::view) struct ThreadLabels {
    of: LabelBy,
    processes: Processes,
    /// The indices of labels by process id.
    indices: HashMap<u32, usize>,
    /// The indices of labels by program, and its processes.
    programs: HashMap<String, (usize, BTreeSet<u32>)>,
    /// The labels, escaped for display.
    labels: Vec<String>,
}

impl ThreadLabels {
    /// Creates an empty set of labels.
    pub(in crate::view) fn new(profile: &Profile, of: LabelBy) -> Self {
        let (indices, programs, labels) = Default::default();
        Self { of, processes: Processes::of(profile), indices, programs, labels }
    }

    /// Adds a thread and returns the index of its label, or of its process's label.
    pub(in crate::view) fn add(&mut self, thread: &ThreadProfile) -> usize {
        if self.of == LabelBy::Threads {
            self.labels.push(thread.title());
            return self.labels.len() - 1;
        }
        let Self { labels, processes, indices, programs, of } = self;
        let pid = thread.thread.pid;
        if let Some(known) = indices.get(&pid) {
            return *known;
        }
        let mut push = || {
            labels.push(processes.title(pid.into()));
            labels.len() - 1
        };
        let index = match of {
            LabelBy::Programs => {
                let program = processes.program_of(pid).to_owned();
                let (index, pids) =
                    programs.entry(program).or_insert_with(|| (push(), BTreeSet::new()));
                pids.insert(pid);
                *index
            }
            LabelBy::Threads | LabelBy::Processes => push(),
        };
        indices.insert(pid, index);
        index
    }

    /// Returns all labels.
    pub(in crate::view) fn labels(self) -> Vec<String> {
        let Self { mut labels, processes, programs, .. } = self;
        for (index, pids) in programs.into_values() {
            labels[index] = processes.program_title(&pids);
        }
        labels
    }
}

impl LabelBy {
    /// Returns the noun for one, and for several.
    pub(in crate::view) fn nouns(self) -> [&'static str; 2] {
        match self {
            Self::Threads => ["thread", "threads"],
            Self::Processes => ["process", "processes"],
            Self::Programs => ["program", "programs"],
        }
    }
}
