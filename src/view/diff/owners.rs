//! What the processes of both sides are called, so that those that are the same meet.
//!
//! # Invariants
//! - Two processes of one side never have one name, unless it is `NAME/*`, which says that it is of all
//!   that are called so.
//! - Where each side has one process, nothing is called anything: their stacks meet whoever they are.

use std::collections::{BTreeMap, BTreeSet};

use super::side::Process;

/// The names of the processes of both sides, as each side has them; none if there are no two to be told
/// apart.
///
/// A process that is on both sides is `NAME/PID`. Others were started anew: they meet by their names.
pub(super) fn labels(sides: [&[Process]; 2]) -> [Vec<String>; 2] {
    if sides.iter().all(|side| side.len() < 2) {
        return Default::default();
    }
    let owners: [Vec<Owner<'_>>; 2] =
        sides.map(|side| side.iter().map(|process| Owner::new(process, sides)).collect());
    let mut most: BTreeMap<&Owner<'_>, usize> = BTreeMap::new();
    for side in &owners {
        let mut of_side: BTreeMap<&Owner<'_>, usize> = BTreeMap::new();
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
            Owner::Same(name, pid) => format!("{name}/{pid}"),
            Owner::Named(name) if most > 1 => format!("{name}/*"),
            Owner::Named(name) => (*name).to_owned(),
        };
        // A process may be called as if it were another one.
        while !taken.insert(label.clone()) {
            label.push('\'');
        }
        labels.insert(owner, label);
    }
    let label = |owner: &Owner<'_>| labels.get(owner).cloned().unwrap_or_default();
    owners.each_ref().map(|side| side.iter().map(label).collect())
}

/// Whose stacks have one label: the first ones have it as it is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner<'a> {
    /// A process that is on both sides.
    Same(&'a str, u32),
    /// All others of a name.
    Named(&'a str),
}

impl<'a> Owner<'a> {
    fn new(process: &'a Process, sides: [&[Process]; 2]) -> Self {
        let name = if process.name.is_empty() { "process" } else { &process.name };
        let is_on_both = sides.iter().all(|side| side.contains(process));
        if is_on_both { Self::Same(name, process.pid) } else { Self::Named(name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `NAME PID STARTED`.
    fn side(processes: &[(&str, u32, u64)]) -> Vec<Process> {
        let process = |(name, pid, started): &(&str, u32, u64)| Process {
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
    fn the_same_process_has_its_id_and_others_meet_by_name() {
        check(
            [&[("front", 7, 1), ("back", 8, 1)], &[("front", 7, 1), ("back", 9, 2)]],
            [&["front/7", "back"], &["front/7", "back"]],
        );
        // An id that was used again is of another process.
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
    fn a_name_that_looks_like_another_ones_is_told_from_it() {
        check(
            [&[("front", 7, 1), ("front/7", 8, 1)], &[("front", 7, 1), ("front/7", 9, 2)]],
            [&["front/7", "front/7'"], &["front/7", "front/7'"]],
        );
        check(
            [&[("front/7", 8, 1), ("front", 7, 1)], &[("front", 7, 1)]],
            [&["front/7'", "front/7"], &["front/7"]],
        );
        // One without a name is called so, too.
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
