//! The residue of a recording in its target, found by comparison.
//!
//! The recorder reads the process before the attach and after the detach. Some differences can only
//! come from the recording: a segment, a disposition of one of our signals, a timer that raises
//! one, or a tracer. All others are reported as changes by the program itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use crate::proc::{self, Mapping, PosixTimer};

/// How long a difference may last before it counts.
///
/// A thread that was interrupted in a call, or that waits for a processor with a queued signal, is
/// restored only when it runs again.
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// The pause between two comparisons.
const RETRY: Duration = Duration::from_millis(20);
/// Bits of SIGKILL and SIGSTOP, which cannot be blocked.
const UNBLOCKABLE: u64 = 1 << 8 | 1 << 18;

/// Everything that an attach could change in a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    mappings: BTreeSet<String>,
    segments: BTreeSet<u64>,
    caught: u64,
    ignored: u64,
    tracer: i32,
    shared_pending: u64,
    /// Blocked and pending signals of each thread.
    threads: BTreeMap<i32, (u64, u64)>,
    descriptors: BTreeSet<String>,
    timers: BTreeSet<PosixTimer>,
}

impl Footprint {
    /// Reads a process; unreadable descriptors or timers are left out, before and after.
    pub(crate) fn of(pid: i32) -> io::Result<Footprint> {
        let status = proc::status(pid)?;
        let mappings = proc::mappings(pid)?;
        // Heap and stack are left out, since they grow at any time.
        let moves = |it: &&Mapping| it.path == *"[heap]" || it.path == *"[stack]";
        let line =
            |it: &Mapping| format!("{:x}-{:x} {}", it.start, it.end, it.path.to_string_lossy());
        let threads = proc::tasks(pid)?.into_iter().filter_map(|tid| {
            let status = proc::task_status(pid, tid).ok()?;
            Some((tid, (status.blocked, status.pending)))
        });
        let descriptors = proc::descriptors(pid).unwrap_or_default();
        Ok(Footprint {
            segments: mappings.iter().filter(|it| it.is_segment()).map(|it| it.inode).collect(),
            mappings: mappings.iter().filter(|it| !moves(it)).map(line).collect(),
            caught: status.caught,
            ignored: status.ignored,
            tracer: status.tracer,
            shared_pending: status.shared_pending,
            threads: threads.collect(),
            descriptors: descriptors
                .into_iter()
                .map(|(number, path)| format!("{number} {}", path.display()))
                .collect(),
            timers: proc::posix_timers(pid).unwrap_or_default().into_iter().collect(),
        })
    }

    /// Returns the differences in `after` that only a recording with these signals can cause.
    fn left_by(&self, after: &Footprint, signals: &[i32]) -> Vec<String> {
        let mut left = Vec::new();
        let segments = after.segments.difference(&self.segments);
        left.extend(segments.map(|id| format!("shared memory segment {id} is mapped")));
        if after.tracer != self.tracer && after.tracer != 0 {
            left.push(format!("process {} traces it", after.tracer));
        }
        for &signal in signals.iter().filter(|&&signal| signal > 0) {
            let bit = 1u64 << (signal - 1);
            let name = crate::proc::signal_name(signal);
            for (old, new, what) in
                [(self.caught, after.caught, "handled"), (self.ignored, after.ignored, "ignored")]
            {
                match (old & bit != 0, new & bit != 0) {
                    (false, true) => left.push(format!("{name} is {what}")),
                    (true, false) => left.push(format!("{name} is not {what} any more")),
                    _ => {}
                }
            }
            let is_new = |before: u64, after: u64| after & !before & bit != 0;
            if is_new(self.shared_pending, after.shared_pending) {
                left.push(format!("{name} is pending"));
            }
            let waits = after.threads.iter().filter(|(tid, (_, pending))| {
                is_new(self.threads.get(tid).map_or(0, |it| it.1), *pending)
            });
            left.extend(waits.map(|(tid, _)| format!("{name} is pending for thread {tid}")));
            let timers = after.timers.difference(&self.timers).filter(|it| it.signal == signal);
            left.extend(timers.map(|it| format!("timer {} raises {name}", it.id)));
        }
        // Our injected calls run with this mask.
        let all = !UNBLOCKABLE;
        let signal_blocked = after.threads.iter().filter(|(tid, (mask, _))| {
            *mask == all && self.threads.get(tid).is_some_and(|it| it.0 != all)
        });
        left.extend(signal_blocked.map(|(tid, _)| format!("thread {tid} blocks all signals")));
        left
    }

    /// Returns the counts of changes that the program made itself.
    fn changed(&self, after: &Footprint) -> Vec<String> {
        let differ = |before: &BTreeSet<String>, after: &BTreeSet<String>| {
            before.symmetric_difference(after).count()
        };
        let counted = |count: usize, what: &str| {
            (count > 0).then(|| format!("{count} {what}{}", if count == 1 { "" } else { "s" }))
        };
        let ids = |it: &Footprint| it.threads.keys().copied().collect::<BTreeSet<i32>>();
        let threads = ids(self).symmetric_difference(&ids(after)).count();
        let masks = self
            .threads
            .iter()
            .filter(|(tid, before)| after.threads.get(tid).is_some_and(|now| now.0 != before.0));
        let dispositions = (self.caught ^ after.caught) | (self.ignored ^ after.ignored);
        let parts = [
            counted(differ(&self.mappings, &after.mappings), "mapping"),
            counted(threads, "thread"),
            counted(masks.count(), "signal mask"),
            counted(dispositions.count_ones() as usize, "disposition"),
            counted(differ(&self.descriptors, &after.descriptors), "descriptor"),
            counted(self.timers.symmetric_difference(&after.timers).count(), "timer"),
        ];
        parts.into_iter().flatten().collect()
    }
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResidueReport {
    /// Differences that can only be ours.
    pub(crate) left: Vec<String>,
    text: String,
}

impl ResidueReport {
    /// Compares a process after the detach with `before`; returns `None` if it has exited.
    pub(crate) fn compare(pid: i32, before: &Footprint, signals: &[i32]) -> Option<ResidueReport> {
        let since = Instant::now();
        loop {
            let after = Footprint::of(pid).ok()?;
            let left = before.left_by(&after, signals);
            if !left.is_empty() && since.elapsed() < SETTLE_MAX {
                std::thread::sleep(RETRY);
                continue;
            }
            let changed = before.changed(&after);
            let seen = format!(
                "{} mappings, {} threads, {} descriptors and {} timers compared",
                after.mappings.len(),
                after.threads.len(),
                after.descriptors.len(),
                after.timers.len()
            );
            let text = match (left.is_empty(), changed.is_empty()) {
                (false, _) => format!("LEFT IN THE TARGET: {}; {seen}", left.join("; ")),
                (true, true) => format!("the target is as it was; {seen}"),
                (true, false) => format!(
                    "nothing is left in the target; {seen}; changed by the program itself: {}",
                    changed.join(", ")
                ),
            };
            return Some(ResidueReport { left, text });
        }
    }

    /// Returns the line for the closing report.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footprint() -> Footprint {
        Footprint {
            mappings: ["1000-2000 /bin/x".to_owned()].into(),
            caught: 1 << 1,
            threads: BTreeMap::from([(7, (0, 0)), (8, (0, 0))]),
            descriptors: ["0 /dev/null".to_owned()].into(),
            ..Footprint::default()
        }
    }

    #[test]
    fn our_changes_are_distinguished_from_those_of_the_program() {
        const SIGNALS: [i32; 2] = [libc::SIGTRAP, 0];
        let before = footprint();
        assert_eq!(before.left_by(&before, &SIGNALS), Vec::<String>::new());
        assert_eq!(before.changed(&before), Vec::<String>::new());
        let mut after = footprint();
        after.mappings.insert("3000-4000 ".to_owned());
        after.descriptors.clear();
        after.caught |= 1 << 14;
        after.threads.insert(9, (0, 0));
        after.threads.insert(8, (1 << 3, 0));
        assert_eq!(before.left_by(&after, &SIGNALS), Vec::<String>::new());
        let expected = ["1 mapping", "1 thread", "1 signal mask", "1 disposition", "1 descriptor"];
        assert_eq!(before.changed(&after), expected);
    }

    #[test]
    fn each_possible_residue_is_found() {
        const SIGNALS: [i32; 2] = [libc::SIGTRAP, 40];
        let before = footprint();
        let check = |change: fn(&mut Footprint), expected: &str| {
            let mut after = footprint();
            change(&mut after);
            let left = before.left_by(&after, &SIGNALS);
            assert!(left.len() == 1 && left[0].contains(expected), "{left:?}");
        };
        check(|it| _ = it.segments.insert(5), "segment 5");
        check(|it| it.tracer = 77, "process 77");
        check(|it| it.caught |= 1 << 4, "SIGTRAP is handled");
        check(|it| it.ignored |= 1 << 39, "ignored");
        check(|it| it.shared_pending |= 1 << 39, "pending");
        check(|it| _ = it.threads.insert(7, (0, 1 << 4)), "pending for thread 7");
        check(|it| _ = it.timers.insert(PosixTimer { id: 3, signal: 40, value: 0 }), "timer 3");
        check(|it| _ = it.threads.insert(7, (!UNBLOCKABLE, 0)), "thread 7 blocks all");
        let mut other = footprint();
        other.timers.insert(PosixTimer { id: 3, signal: 14, value: 0 });
        assert!(before.left_by(&other, &SIGNALS).is_empty());
    }
}
