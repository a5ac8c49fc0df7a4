//! The processes that match `--name`.
//!
//! # Invariants
//! - The recorder and its ancestors never match: the shell that runs it may have the pattern in its
//!   own command line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use regex_lite::Regex;

use crate::record::contract::error::RecordError;
use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::contract::options::NamedProcesses;
use crate::record::contract::stop::StopCondition;
use crate::record::run::exec_in_progress::is_settled;
use crate::record::run::opened::TargetProcess;
use crate::{inject, proc};

/// Interval between scans during a wait for a process.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long a new process is checked in every scan: it may be about to execute the program.
const YOUNG_AGE: Duration = Duration::from_secs(2);
/// Interval between checks of all older processes, which may execute the program at any time.
const SCAN_ALL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the end of an exec.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// The number of processes with similar names that an error lists.
const SIMILAR_MAX: usize = 5;

/// Returns the processes that match: those that this user may record, or all if there is none.
pub(crate) fn find(named: &NamedProcesses) -> Result<Vec<i32>, RecordError> {
    let found = matching(&regex(named)?, &Lineage::of_own(), proc::processes().unwrap_or_default());
    let permitted: Vec<i32> = found.iter().copied().filter(|pid| may_be(*pid)).collect();
    match (found.is_empty(), permitted.is_empty()) {
        (true, _) => Err(RecordError::TargetGone(anyhow!("{}", nothing(&named.pattern)))),
        (false, true) => Ok(found),
        (false, false) => Ok(permitted),
    }
}

/// Whether a preflight check permits a recording of the process.
fn may_be(pid: i32) -> bool {
    inject::preflight_to_capture(pid).is_ok()
}

/// Returns the processes that match. With `--wait`, and without a process that this user may
/// record, it waits for one until the patience since `since` is used up. `is_again` means that the
/// processes found before exited before the attach.
pub(super) fn find_or_wait(
    named: &NamedProcesses,
    (since, is_again): (Instant, bool),
    stop: &StopCondition,
    observer: &mut dyn Observer,
) -> Result<Vec<TargetProcess>, RecordError> {
    let running = |pids: Vec<i32>, is_new: bool| {
        pids.into_iter().map(|pid| TargetProcess::Running { pid, is_new }).collect()
    };
    let pattern = &named.pattern;
    let patience = match named.wait {
        Some(patience) if is_again => patience,
        wait => match (find(named), wait) {
            (Err(RecordError::TargetGone(_)), Some(patience)) => {
                let text =
                    format!("waiting for a process whose name or command line matches {pattern}");
                observer.event(Event::Notice(text));
                patience
            }
            (Ok(found), Some(patience)) if !found.iter().any(|pid| may_be(*pid)) => {
                let first = found.first().map_or_else(String::new, i32::to_string);
                let text = format!(
                    "process {first} matches {pattern}, but may not be recorded: waiting for \
                     another one"
                );
                observer.event(Event::Notice(text));
                patience
            }
            (found, _) => return found.map(|pids| running(pids, false)),
        },
    };
    let left = patience.map(|patience| patience.saturating_sub(since.elapsed()));
    let found = wait_for(&regex(named)?, left, stop);
    found.iter().for_each(|pid| settle(*pid));
    if found.is_empty() {
        // For existing processes, the reason why they may not be recorded is the better answer.
        if let (false, Ok(found)) = (stop.is_requested(), find(named)) {
            return Ok(running(found, false));
        }
        let until = match patience.filter(|_| !stop.is_requested()) {
            Some(patience) => format!(
                "within {} s: wait longer, or look for its name with `ps -e -o pid,comm,args`",
                patience.as_secs_f64()
            ),
            None => "before the request to end the recording".to_owned(),
        };
        let matched = if is_again {
            "every match exited before the attach, and no other process matched --name"
        } else {
            "no process matched --name"
        };
        return Err(RecordError::TargetGone(anyhow!("{matched} {pattern} {until}")));
    }
    Ok(running(found, true))
}

fn regex(named: &NamedProcesses) -> Result<Regex, RecordError> {
    let pattern = &named.pattern;
    Regex::new(pattern).map_err(|error| RecordError::Usage(format!("--name {pattern}: {error}")))
}

/// This process, its ancestors and its children.
struct Lineage(BTreeSet<i32>);

impl Lineage {
    fn of_own() -> Self {
        let own = std::process::id() as i32;
        let mut line = BTreeSet::from([own]);
        let mut pid = own;
        while let Ok(parent) = proc::parent(pid)
            && parent > 0
            && line.insert(parent)
        {
            pid = parent;
        }
        Self(line)
    }

    fn has(&self, pid: i32) -> bool {
        let own = std::process::id() as i32;
        self.0.contains(&pid) || proc::parent(pid).is_ok_and(|parent| parent == own)
    }
}

/// Returns the processes that match.
fn matching(regex: &Regex, lineage: &Lineage, pids: Vec<i32>) -> Vec<i32> {
    let is_meant = |pid: &i32| {
        let Ok(status) = proc::status(*pid) else { return false };
        // Kernel threads and zombies have no memory.
        status.has_memory
            && (regex.is_match(&status.name) || regex.is_match(&words(*pid)))
            && !lineage.has(*pid)
    };
    pids.into_iter().filter(is_meant).collect()
}

/// Returns the command line as one text.
fn words(pid: i32) -> String {
    let words = proc::command_line(pid).unwrap_or_default();
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Waits until a process matches that this user may record.
fn wait_for(regex: &Regex, patience: Option<Duration>, stop: &StopCondition) -> Vec<i32> {
    let lineage = Lineage::of_own();
    let begin = Instant::now();
    let mut since: BTreeMap<i32, Instant> = BTreeMap::new();
    let mut all_due = begin;
    while !stop.is_requested() && patience.is_none_or(|patience| begin.elapsed() < patience) {
        let there = proc::processes().unwrap_or_default();
        let now = Instant::now();
        since.retain(|pid, _| there.binary_search(pid).is_ok());
        let is_all = now >= all_due;
        if is_all {
            all_due = now + SCAN_ALL_INTERVAL;
        }
        let mut is_due = |pid: &i32| {
            let first = *since.entry(*pid).or_insert(now);
            is_all || now.duration_since(first) < YOUNG_AGE && first > begin + POLL_INTERVAL
        };
        let due: Vec<i32> = there.into_iter().filter(|pid| is_due(pid)).collect();
        let found = matching(regex, &lineage, due);
        let found: Vec<i32> = found.into_iter().filter(|pid| may_be(*pid)).collect();
        if !found.is_empty() {
            return found;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Vec::new()
}

/// Waits for the end of a process's exec.
fn settle(pid: i32) {
    let deadline = Instant::now() + SETTLED_MAX;
    while !is_settled(pid) && proc::start_time(pid).is_ok() && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL / 10);
    }
}

/// Returns the message that no process matches, with what to do.
fn nothing(pattern: &str) -> String {
    let lineage = Lineage::of_own();
    let pids = proc::processes().unwrap_or_default().into_iter();
    let pids = pids.filter(|pid| !lineage.has(*pid));
    let names = pids.filter_map(|pid| Some((pid, proc::status(pid).ok()?)));
    let names = names.filter(|(_, status)| status.has_memory);
    let names: Vec<(i32, String)> = names.map(|(pid, it)| (pid, it.name)).collect();
    let similar = similar(pattern, &names);
    let similar = match similar.is_empty() {
        true => "`ps -e -o pid,comm,args` lists all processes".to_owned(),
        false => format!("similar names are {}", similar.join(", ")),
    };
    format!(
        "no process has a name or a command line that matches {pattern}; {similar}, and --wait \
         waits \
         for one"
    )
}

/// Returns processes with names similar to the pattern.
fn similar(pattern: &str, names: &[(i32, String)]) -> Vec<String> {
    let wanted: String =
        pattern.chars().filter(|it| it.is_alphanumeric() || "-_".contains(*it)).collect();
    let wanted = wanted.to_lowercase();
    let distance_max = (wanted.chars().count() / 3).min(3);
    let is_similar = |name: &str| {
        let name = name.to_lowercase();
        let begins_alike = wanted.chars().count() >= 4
            && name.chars().zip(wanted.chars()).take_while(|(one, other)| one == other).count()
                >= 4;
        !wanted.is_empty()
            && (name.contains(&wanted)
                || (name.chars().count() >= 3 && wanted.contains(&name))
                || begins_alike
                || distance(&name, &wanted) <= distance_max)
    };
    let similar = names.iter().filter(|(_, name)| is_similar(name));
    similar.map(|(pid, name)| format!("{name} ({pid})")).take(SIMILAR_MAX).collect()
}

/// Returns the Levenshtein distance: insertions, deletions and substitutions of letters.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, known) in other.iter().enumerate() {
            let change = diagonal + usize::from(letter != *known);
            diagonal = row[column + 1];
            row[column + 1] = change.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted_in_letters() {
        for (one, other, expected) in
            [("", "", 0), ("a", "", 1), ("redis", "reddis", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!((distance(one, other), distance(other, one)), (expected, expected), "{one}");
        }
    }

    #[test]
    fn a_similar_name_is_found() {
        let names = ["redis-server", "python3", "sh", "postgres"];
        let names: Vec<_> = (1..).zip(names.map(str::to_owned)).collect();
        let check = |pattern, expected: &[&str]| assert_eq!(similar(pattern, &names), expected);
        check("^Redis$", &["redis-server (1)"]);
        check("pyhton3", &["python3 (2)"]);
        check("postgresql", &["postgres (4)"]);
        check("nginx", &[]);
        check(".*", &[]);
    }

    #[test]
    fn the_recorder_and_its_ancestors_never_match() {
        let lineage = Lineage::of_own();
        let own = std::process::id() as i32;
        assert!(lineage.has(own) && lineage.has(proc::parent(own).unwrap()));
        let regex = Regex::new(".").unwrap();
        let found = matching(&regex, &lineage, proc::processes().unwrap());
        assert!(!found.contains(&own), "{found:?}");
    }
}
