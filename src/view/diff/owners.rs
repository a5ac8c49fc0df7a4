//! What the processes of both sides are called, so that those that are the same meet.
//!
//! # Invariants
//! - Two processes of one side never have one name, unless it ends with `/*`, which says that it is of
//!   several.
//! - Where each side has one process, nothing is called anything: their stacks meet whoever they are.

use std::collections::HashMap;

use super::side::Process;

/// The names of the processes of both sides, as each side has them; none if there are no two to be told
/// apart.
///
/// A process that is on both sides is `NAME/PID`. Others were started anew: they meet by their names.
pub(super) fn labels(sides: [&[Process]; 2]) -> [Vec<String>; 2] {
    if sides.iter().all(|side| side.len() < 2) {
        return Default::default();
    }
    let [before, after] = sides;
    let is_on_both = |process: &Process| [before, after].iter().all(|side| side.contains(process));
    let mut most: HashMap<&str, usize> = HashMap::new();
    for side in sides {
        let mut of_name: HashMap<&str, usize> = HashMap::new();
        for process in side.iter().filter(|process| !is_on_both(process)) {
            let count = of_name.entry(&process.name).or_default();
            *count += 1;
            let most = most.entry(&process.name).or_default();
            *most = (*most).max(*count);
        }
    }
    let label = |process: &Process| {
        let name = if process.name.is_empty() { "process" } else { &process.name };
        match most.get(process.name.as_str()) {
            _ if is_on_both(process) => format!("{name}/{}", process.pid),
            Some(0 | 1) | None => name.to_owned(),
            Some(_) => format!("{name}/*"),
        }
    };
    sides.map(|side| side.iter().map(label).collect())
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
            [&[("worker", 7, 1), ("worker", 8, 1)], &[("worker", 7, 1), ("worker", 9, 1)]],
            [&["worker/7", "worker"], &["worker/7", "worker"]],
        );
    }
}
