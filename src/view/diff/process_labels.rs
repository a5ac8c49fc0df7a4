//! Labels processes of both sides, so that the same process has one label on both.
//!
//! # Invariants
//! - Two processes of one side never share a label, except `NAME/*`, which stands for all processes
//!   of that name.
//! - If each side has one process, there are no labels: the stacks match whatever the processes'
//!   names.

use std::collections::{BTreeMap, BTreeSet};

use super::side::SideProcess;

/// Returns the labels of the processes of each side, none if both sides have at most one process.
///
/// A process on both sides is `NAME/PID`. Other processes were restarted and match by name.
pub(super) fn labels(sides: [&[SideProcess]; 2]) -> [Vec<String>; 2] {
    if sides.iter().all(|side| side.len() < 2) {
        return Default::default();
    }
    let owners: [Vec<ProcessIdentity<'_>>; 2] =
        sides.map(|side| side.iter().map(|process| ProcessIdentity::new(process, sides)).collect());
    let mut most: BTreeMap<&ProcessIdentity<'_>, usize> = BTreeMap::new();
    for side in &owners {
        let mut of_side: BTreeMap<&ProcessIdentity<'_>, usize> = BTreeMap::new();
        for owner in side {
            let count = of_side.entry(owner).or_default();
            *count += 1;
            let most = most.entry(owner).or_default();
            *most = (*most).max(*count);
        }
    }
    let (mut labels, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for (owner, most) in most {
        let mut label = match owner {
            ProcessIdentity::Same(name, pid) => format!("{name}/{pid}"),
            ProcessIdentity::Named(name) if most > 1 => format!("{name}/*"),
            ProcessIdentity::Named(name) => (*name).to_owned(),
        };
        // The name of a process may look like the label of another one.
        while !taken.insert(label.clone()) {
            label.push('\'');
        }
        labels.insert(owner, label);
    }
    let label = |owner: &ProcessIdentity<'_>| labels.get(owner).cloned().unwrap_or_default();
    owners.each_ref().map(|side| side.iter().map(label).collect())
}

/// The processes that share a label. If two labels collide, the first variant keeps its plain
/// label.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ProcessIdentity<'a> {
    /// A process that is on both sides.
    Same(&'a str, u32),
    /// All other processes of a name.
    Named(&'a str),
}

impl<'a> ProcessIdentity<'a> {
    fn new(process: &'a SideProcess, sides: [&[SideProcess]; 2]) -> Self {
        let name = if process.name.is_empty() { "process" } else { &process.name };
        let is_on_both = sides.iter().all(|side| side.contains(process));
        if is_on_both { Self::Same(name, process.pid) } else { Self::Named(name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns processes with these names, ids and start times.
    fn side(processes: &[(&str, u32, u64)]) -> Vec<SideProcess> {
        let process = |(name, pid, started): &(&str, u32, u64)| SideProcess {
            pid: *pid,
            started: Some(*started),
            name: (*name).to_owned(),
        };
        processes.iter().map(process).collect()
    }

    fn check(sides: [&[(&str, u32, u64)]; 2], expected: [&[&str]; 2]) {
        let [before, after] = sides.map(side);
        assert_eq!(labels([&before, &after]), expected);
    }

    #[test]
    fn one_process_a_side_needs_no_name() {
        check([&[("front", 7, 1)], &[("back", 8, 1)]], [&[], &[]]);
    }

    #[test]
    fn the_same_process_has_its_id_and_others_match_by_name() {
        check(
            [&[("front", 7, 1), ("back", 8, 1)], &[("front", 7, 1), ("back", 9, 2)]],
            [&["front/7", "back"], &["front/7", "back"]],
        );
        // A reused id belongs to another process.
        check(
            [&[("front", 7, 1), ("back", 8, 1)], &[("front", 7, 5)]],
            [&["front", "back"], &["front"]],
        );
    }

    #[test]
    fn one_name_of_several_says_so_on_both_sides() {
        check(
            [&[("worker", 7, 1)], &[("worker", 8, 2), ("worker", 9, 2), ("", 10, 2)]],
            [&["worker/*"], &["worker/*", "worker/*", "process"]],
        );
        check(
            [&[("worker", 7, 1), ("worker", 8, 1)], &[("worker", 9, 2)]],
            [&["worker/*", "worker/*"], &["worker/*"]],
        );
        check(
            [&[("worker", 7, 1), ("worker", 8, 1)], &[("worker", 7, 1), ("worker", 9, 1)]],
            [&["worker/7", "worker"], &["worker/7", "worker"]],
        );
    }

    #[test]
    fn a_name_that_looks_like_another_label_is_distinguished() {
        check(
            [&[("front", 7, 1), ("front/7", 8, 1)], &[("front", 7, 1), ("front/7", 9, 2)]],
            [&["front/7", "front/7'"], &["front/7", "front/7'"]],
        );
        check(
            [&[("front/7", 8, 1), ("front", 7, 1)], &[("front", 7, 1)]],
            [&["front/7'", "front/7"], &["front/7"]],
        );
        // A process without a name gets this label, too.
        check(
            [&[("", 7, 1), ("process", 8, 1)], &[("", 9, 2)]],
            [&["process/*", "process/*"], &["process/*"]],
        );
        check(
            [&[("w", 7, 1), ("w", 8, 1), ("w/*", 9, 1)], &[("w", 10, 2)]],
            [&["w/*", "w/*", "w/*'"], &["w/*"]],
        );
    }
}
