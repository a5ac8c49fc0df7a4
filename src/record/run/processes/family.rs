//! The descendants of processes, found by their parent ids.
//!
//! # Invariants
//! - Each process is checked once, and its parent at that time decides.
//! - The recorder and its own children are no descendants, except for a program to record.
//!
//! # Does not
//! - find a process whose parent exits before the first scan that sees the process: it then has
//!   another parent.

use std::collections::{BTreeMap, BTreeSet};

use crate::proc;

/// A descendant of a recorded process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) pid: i32,
    pub(super) parent: i32,
}

/// Some processes and their descendants.
pub(super) struct Family {
    members: BTreeSet<i32>,
    /// All processes of the machine that the last scan saw.
    seen: BTreeSet<i32>,
    own: i32,
}

impl Family {
    /// Starts with these processes. The first scan finds their descendants.
    pub(super) fn of(roots: &[i32]) -> Self {
        let members: BTreeSet<i32> = roots.iter().copied().collect();
        Self { seen: members.clone(), members, own: std::process::id() as i32 }
    }

    /// Adds a process.
    pub(super) fn add(&mut self, pid: i32) {
        self.members.insert(pid);
        self.seen.insert(pid);
    }

    /// Returns the descendants that the previous scan did not see.
    pub(super) fn scan(&mut self) -> Vec<Child> {
        let there: BTreeSet<i32> = proc::processes().unwrap_or_default().into_iter().collect();
        let parent = |pid: &i32| proc::parent(*pid).ok();
        let fresh = there.difference(&self.seen).copied().filter(|pid| *pid != self.own);
        let fresh: BTreeMap<i32, i32> =
            fresh.filter_map(|pid| Some((pid, parent(&pid)?))).collect();
        // A member that exited is removed, because another process may get its id.
        self.members.retain(|pid| there.contains(pid));
        self.seen = there;
        self.sort_out(fresh)
    }

    /// Adds the processes that descend from members, parents first.
    fn sort_out(&mut self, mut fresh: BTreeMap<i32, i32>) -> Vec<Child> {
        let mut found = Vec::new();
        loop {
            let known = found.len();
            fresh.retain(|&pid, &mut parent| {
                let is_child = self.members.contains(&parent);
                if is_child {
                    self.members.insert(pid);
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
        let mut family = Family::of(&[100]);
        let child = |pid, parent| Child { pid, parent };
        let fresh = [(50, 60), (60, 70), (70, 100), (80, 1), (90, 80)].into();
        assert_eq!(family.sort_out(fresh), [child(70, 100), child(60, 70), child(50, 60)]);
        let later = [(91, 50), (92, 90)].into();
        assert_eq!(family.sort_out(later), [child(91, 50)]);
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
        let mut family = Family::of(&[pid]);
        let found = family.scan();
        assert!(found.len() == 1 && found[0].parent == pid, "{found:?}");
        assert!(family.scan().is_empty(), "found twice");
        // This process started the shell.
        let mut whole = Family::of(&[proc::parent(std::process::id() as i32).unwrap()]);
        assert!(whole.scan().iter().all(|it| ![std::process::id() as i32, pid].contains(&it.pid)));
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
