//! The descendants of processes.
//!
//! The kernel reports each process that is started on the machine, if that is permitted. Elsewhere,
//! scans find new processes by their parent ids, and miss one whose parent exits before the first
//! scan that sees the process: it then has another parent.
//!
//! # Invariants
//! - Each process is checked once, and its parent at that time decides.
//! - The recorder and its own children are no descendants, except for a program to record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::proc;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::source::machine_tasks::MachineTasks;

/// A descendant of a recorded process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) pid: i32,
    pub(super) parent: i32,
}

/// The start of a process.
#[derive(Debug, Clone, Copy)]
struct Birth {
    parent: i32,
    /// When it was started or found, in CLOCK_MONOTONIC nanoseconds.
    time_ns: u64,
}

/// Some processes and their descendants.
pub(super) struct Family {
    /// The processes, and since when each is known in CLOCK_MONOTONIC nanoseconds.
    members: BTreeMap<i32, u64>,
    /// All processes of the machine that the last scan saw.
    seen: BTreeSet<i32>,
    own: i32,
    tasks: Arc<MachineTasks>,
    /// Whether the kernel reports new processes.
    has_reports: bool,
    /// Reported processes whose parents were not descendants. A core may report late that they are.
    strangers: BTreeMap<i32, Birth>,
}

impl Family {
    /// Starts with these processes. The first scan finds their descendants.
    pub(super) fn of(roots: &[i32], tasks: &Arc<MachineTasks>) -> Self {
        let now_ns = monotonic_now_ns();
        Self {
            seen: roots.iter().copied().collect(),
            members: roots.iter().map(|pid| (*pid, now_ns)).collect(),
            own: std::process::id() as i32,
            tasks: Arc::clone(tasks),
            has_reports: tasks.keep_forks(),
            strangers: BTreeMap::new(),
        }
    }

    /// Returns whether the kernel reports new processes.
    pub(super) fn has_reports(&self) -> bool {
        self.has_reports
    }

    /// Returns the new descendants that the kernel has reported since the last call, or that a scan
    /// finds if reports are missing.
    pub(super) fn turn(&mut self) -> Vec<Child> {
        let Some(forks) = self.has_reports.then(|| self.tasks.take_forks()).flatten() else {
            return self.scan();
        };
        self.add_births(forks.iter().map(|fork| {
            let birth = Birth { parent: fork.parent, time_ns: fork.time_ns };
            (fork.pid, birth)
        }))
    }

    /// Adds processes that were started, and returns the descendants among them.
    fn add_births(&mut self, births: impl Iterator<Item = (i32, Birth)>) -> Vec<Child> {
        let mut fresh = std::mem::take(&mut self.strangers);
        let mut new = BTreeMap::new();
        for (pid, birth) in births {
            match self.members.get(&pid) {
                // It is known already.
                Some(since) if birth.time_ns <= *since => continue,
                // Another process had the id.
                Some(_) => drop(self.members.remove(&pid)),
                None => {}
            }
            fresh.remove(&pid);
            new.insert(pid, birth);
        }
        fresh.extend(new.iter().map(|(pid, birth)| (*pid, *birth)));
        let found = self.sort_out(&mut fresh);
        // The others get a second chance.
        fresh.retain(|pid, _| new.contains_key(pid));
        self.strangers = fresh;
        self.seen.extend(found.iter().map(|child| child.pid));
        found
    }

    /// Adds a process.
    pub(super) fn add(&mut self, pid: i32) {
        self.members.insert(pid, monotonic_now_ns());
        self.seen.insert(pid);
    }

    /// Returns the descendants that were not seen before.
    pub(super) fn scan(&mut self) -> Vec<Child> {
        let there: BTreeSet<i32> = proc::processes().unwrap_or_default().into_iter().collect();
        let time_ns = monotonic_now_ns();
        let birth = |pid: i32| Some(Birth { parent: proc::parent(pid).ok()?, time_ns });
        let fresh = there.difference(&self.seen).copied().filter(|pid| *pid != self.own);
        let mut fresh = fresh.filter_map(|pid| Some((pid, birth(pid)?))).collect();
        // A member that exited is removed, because another process may get its id.
        self.members.retain(|pid, _| there.contains(pid));
        self.seen = there;
        self.sort_out(&mut fresh)
    }

    /// Takes out and adds the processes that descend from members, parents first.
    fn sort_out(&mut self, fresh: &mut BTreeMap<i32, Birth>) -> Vec<Child> {
        let mut found = Vec::new();
        loop {
            let known = found.len();
            fresh.retain(|&pid, &mut Birth { parent, time_ns }| {
                let is_child = self.members.contains_key(&parent);
                if is_child {
                    self.members.insert(pid, time_ns);
                    found.push(Child { pid, parent });
                }
                !is_child
            });
            if found.len() == known {
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn descendants_are_found_whatever_order_their_numbers_are_in() {
        let mut family = Family::of(&[100], &Arc::default());
        let child = |pid, parent| Child { pid, parent };
        let births = |pairs: &[(i32, i32)]| -> BTreeMap<i32, Birth> {
            pairs.iter().map(|(pid, parent)| (*pid, born(*parent, 1))).collect()
        };
        let mut fresh = births(&[(50, 60), (60, 70), (70, 100), (80, 1), (90, 80)]);
        assert_eq!(family.sort_out(&mut fresh), [child(70, 100), child(60, 70), child(50, 60)]);
        let mut later = births(&[(91, 50), (92, 90)]);
        assert_eq!(family.sort_out(&mut later), [child(91, 50)]);
    }

    fn born(parent: i32, time_ns: u64) -> Birth {
        Birth { parent, time_ns }
    }

    #[test]
    fn reports_that_come_late_are_in_time_once() {
        let mut family = Family::of(&[100], &Arc::default());
        let child = |pid, parent| Child { pid, parent };
        let now_ns = monotonic_now_ns();
        let mut add = |births: &[(i32, Birth)]| family.add_births(births.iter().copied());
        // The start of 101 comes with the next reports.
        assert_eq!(add(&[(102, born(101, now_ns + 2))]), []);
        assert_eq!(add(&[(101, born(100, now_ns + 1))]), [child(101, 100), child(102, 101)]);
        assert_eq!(add(&[(201, born(200, now_ns))]), []);
        assert_eq!(add(&[]), []);
        assert_eq!(add(&[(200, born(100, now_ns))]), [child(200, 100)], "not 201, two turns later");
        // The report of one that is known, and of another one with its id.
        assert_eq!(add(&[(101, born(100, now_ns + 1))]), []);
        assert_eq!(add(&[(101, born(1, now_ns + 9)), (103, born(101, now_ns + 10))]), []);
    }

    #[test]
    fn a_child_that_is_gone_before_any_scan_is_reported() {
        let mut family = Family::of(&[std::process::id() as i32], &Arc::default());
        if !family.has_reports() {
            return;
        }
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let pid = child.id() as i32;
        assert!(family.turn().iter().any(|child| child.pid == pid));
        assert!(family.turn().iter().all(|child| child.pid != pid), "twice");
    }

    #[test]
    fn children_are_found_once_and_the_recorder_is_not_among_them() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & echo; read x; kill $!"]);
        let mut shell = shell
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = shell.id() as i32;
        let line = &mut [0];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), line).unwrap();
        let mut family = Family::of(&[pid], &Arc::default());
        let found = family.scan();
        assert!(found.len() == 1 && found[0].parent == pid, "{found:?}");
        assert!(family.scan().is_empty(), "found twice");
        // This process started the shell.
        let mut whole =
            Family::of(&[proc::parent(std::process::id() as i32).unwrap()], &Arc::default());
        assert!(whole.scan().iter().all(|it| ![std::process::id() as i32, pid].contains(&it.pid)));
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
