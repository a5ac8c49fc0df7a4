//! The processes of samples, if a recording has several.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::trace::Thread;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::text::escape::escaped;

/// Maximum number of processes in a title.
const NAMED_MAX: usize = 4;

/// Returns the name of each process by its id, not escaped: from the recorder's list, else from its
/// first thread.
pub(in crate::view) fn names<'a>(
    threads: impl Iterator<Item = &'a Thread>,
    recording: &'a RecordingInfo,
) -> BTreeMap<u64, &'a str> {
    let mut names = BTreeMap::new();
    for thread in threads {
        let name = names.entry(u64::from(thread.pid)).or_insert("");
        if thread.tid == thread.pid {
            *name = thread.name.as_str();
        }
    }
    for process in recording.processes() {
        names.insert(process.pid, process.name);
    }
    names
}

/// The names of the processes of a profile, escaped for display.
#[derive(Debug, Default)]
pub(in crate::view) struct Processes {
    /// The names by process id.
    names: BTreeMap<u64, String>,
    /// The names of their programs, of those that have another name.
    programs: BTreeMap<u64, String>,
    /// The processes with threads in the profile, the heaviest first.
    shown: Vec<u64>,
    /// The number of shown processes that have samples.
    sampled: usize,
    /// The recorded program, if only one process was recorded.
    program: Option<String>,
}

impl Processes {
    /// Collects the processes from the recorder's list, which is bounded, and from all threads.
    pub(in crate::view) fn of(profile: &Profile) -> Self {
        let mut weights: BTreeMap<u64, u64> = BTreeMap::new();
        for profile in &profile.threads {
            let weight = weights.entry(profile.thread.pid.into()).or_default();
            *weight = weight.saturating_add(profile.count.weight);
        }
        let threads = profile.threads.iter().map(|profile| &profile.thread);
        let names = names(threads, &profile.recording).into_iter();
        let names = names.map(|(pid, name)| (pid, escaped(name).into_owned())).collect();
        let listed = profile.recording.processes().into_iter();
        let programs = listed.map(|it| (it.pid, escaped(it.program).into_owned())).collect();
        let sampled = weights.values().filter(|weight| **weight > 0).count();
        let mut shown: Vec<(u64, u64)> = weights.into_iter().collect();
        shown.sort_by_key(|(pid, weight)| (Reverse(*weight), *pid));
        let shown = shown.into_iter().map(|(pid, _)| pid).collect();
        Self { names, programs, shown, sampled, program: profile.recording.program() }
    }

    /// Returns whether there are several processes, so that a thread's name alone is ambiguous.
    pub(in crate::view) fn are_several(&self) -> bool {
        self.names.len() > 1
    }

    /// Returns whether several processes have samples, so that stacks alone are ambiguous.
    pub(in crate::view) fn are_several_shown(&self) -> bool {
        self.sampled > 1
    }

    /// Returns the name of a process. If there is only one, returns the name of its program.
    pub(in crate::view) fn name(&self, pid: u32) -> Option<&str> {
        if !self.are_several() {
            return self.program.as_deref();
        }
        self.names.get(&pid.into()).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the label `name/pid` of a process, if there are several.
    pub(in crate::view) fn label(&self, pid: u32) -> Option<String> {
        self.are_several().then(|| match self.name(pid) {
            Some(name) => format!("{name}/{pid}"),
            None => format!("process/{pid}"),
        })
    }

    /// Returns the title of a process.
    pub(in crate::view) fn title(&self, pid: u64) -> String {
        match self.names.get(&pid) {
            Some(name) if !name.is_empty() => format!("{name} ({pid})"),
            _ => format!("process {pid}"),
        }
    }

    /// Returns the name of the program of a process: the same for equal programs, whatever they
    /// call their processes.
    pub(in crate::view) fn program_of(&self, pid: u32) -> &str {
        let pid = u64::from(pid);
        let name = self.programs.get(&pid).or_else(|| self.names.get(&pid));
        name.map(String::as_str).filter(|name| !name.is_empty()).unwrap_or("process")
    }

    /// Returns the title of processes with one program.
    pub(in crate::view) fn program_title(&self, pids: &BTreeSet<u32>) -> String {
        match (pids.first(), pids.len()) {
            (None, _) => String::new(),
            (Some(pid), 1) => self.title((*pid).into()),
            (Some(pid), number) => format!("{} x{number}", self.program_of(*pid)),
        }
    }

    /// Returns the subject of the profile for a title, or `None` if the trace does not name it.
    pub(in crate::view) fn subject(&self) -> Option<String> {
        if !self.are_several() {
            return self.program.clone();
        }
        let named = self.shown.iter().take(NAMED_MAX).map(|pid| self.title(*pid));
        let named: Vec<String> = named.collect();
        let named = named.join(", ");
        match self.shown.len() {
            0 => None,
            1 => Some(named),
            count if count <= NAMED_MAX => Some(format!("{count} processes: {named}")),
            count => Some(format!("{count} processes: {named} and {} more", count - NAMED_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Sample, Thread};
    use crate::view::ThreadProfileBuilder;

    /// Returns the processes of threads given as pid, tid, name and weight.
    fn processes(threads: &[(u32, u32, &str, u32)]) -> Processes {
        let thread = |&(pid, tid, name, weight): &(u32, u32, &str, u32)| {
            let mut grower = ThreadProfileBuilder::default();
            grower.add(&Sample { weight, ..Sample::default() }, &[], None);
            grower.finish(Thread { pid, tid, name: name.to_owned(), ..Thread::default() })
        };
        let threads = threads.iter().map(thread).collect();
        Processes::of(&Profile { threads, ..Profile::default() })
    }

    #[test]
    fn a_process_without_a_recorded_name_has_the_name_of_its_first_thread() {
        let two = processes(&[(1, 2, "worker", 5), (1, 1, "se\u{1b}rver", 1), (7, 8, "x", 9)]);
        assert_eq!(two.label(1).as_deref(), Some("se\\u{1b}rver/1"));
        // The first thread of this process is missing.
        assert_eq!(two.label(7).as_deref(), Some("process/7"));
        assert_eq!(two.subject().as_deref(), Some("2 processes: process 7, se\\u{1b}rver (1)"));
        let one = processes(&[(1, 1, "server", 1)]);
        assert_eq!((one.label(1), one.subject()), (None, None), "one process needs no label");
    }

    #[test]
    fn the_heaviest_processes_are_named_and_the_others_counted() {
        let name = |pid| ["", "a", "b", "c", "d", "e", "f"][pid as usize];
        let of = |count| (1..=count).map(|pid| (pid, pid, name(pid), 10 * pid));
        let subject = |count| processes(&of(count).collect::<Vec<_>>()).subject();
        assert_eq!(subject(4).as_deref(), Some("4 processes: d (4), c (3), b (2), a (1)"));
        let six = "6 processes: f (6), e (5), d (4), c (3) and 2 more";
        assert_eq!(subject(6).as_deref(), Some(six));
    }
}
