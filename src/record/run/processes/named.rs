//! The processes that a name means.
//!
//! # Invariants
//! - The recorder and its ancestors are never meant: the shell that it was typed in has the name in
//!   its command line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use regex_lite::Regex;

use crate::record::contract::error::RecordError;
use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::contract::options::Named;
use crate::record::contract::stop::Stop;
use crate::record::run::opened::Process;
use crate::record::run::settled::is_settled;
use crate::{inject, proc};

/// Between two looks while a process is waited for.
const LOOK: Duration = Duration::from_millis(10);
/// As long as this a process is looked at again and again: it may be about to execute the program.
const YOUNG: Duration = Duration::from_secs(2);
/// Between two looks at all others, which may execute it at any time.
const ALL: Duration = Duration::from_secs(1);
/// Longest wait for an exec to be over.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// Processes that are named because they are similar.
const SIMILAR: usize = 5;

/// The processes that match: of several those that this user may record, if there are any.
pub(crate) fn find(named: &Named) -> Result<Vec<i32>, RecordError> {
    let found = matching(&regex(named)?, &Lineage::of_own(), proc::processes().unwrap_or_default());
    let permitted: Vec<i32> = found.iter().copied().filter(|pid| may_be(*pid)).collect();
    match (found.is_empty(), permitted.is_empty()) {
        (true, _) => Err(RecordError::TargetGone(anyhow!("{}", nothing(&named.pattern)))),
        (false, true) => Ok(found),
        (false, false) => Ok(permitted),
    }
}

/// It may be recorded, as far as a look at it tells.
fn may_be(pid: i32) -> bool {
    inject::preflight_to_capture(pid).is_ok()
}

/// The same; if there is none that this user may record it is waited for, where that is wanted: so
/// long since `since`. If `is_again` those that were found have ended before they could be attached
/// to.
pub(super) fn find_or_wait(
    named: &Named,
    (since, is_again): (Instant, bool),
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Vec<Process>, RecordError> {
    let running = |pids: Vec<i32>, is_new: bool| {
        pids.into_iter().map(|pid| Process::Running { pid, is_new }).collect()
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
        // Why those that are there may not be recorded is the better answer.
        if let (false, Ok(found)) = (stop.is_requested(), find(named)) {
            return Ok(running(found, false));
        }
        let until = match patience.filter(|_| !stop.is_requested()) {
            Some(patience) => format!(
                "within {} s: wait longer, or look for its name with `ps -e -o pid,comm,args`",
                patience.as_secs_f64()
            ),
            None => "before the recording was ended".to_owned(),
        };
        let matched = if is_again {
            "no process that matched --name could be attached to before it ended: none of"
        } else {
            "no process matched --name"
        };
        return Err(RecordError::TargetGone(anyhow!("{matched} {pattern} {until}")));
    }
    Ok(running(found, true))
}

fn regex(named: &Named) -> Result<Regex, RecordError> {
    let pattern = &named.pattern;
    Regex::new(pattern).map_err(|error| RecordError::Usage(format!("--name {pattern}: {error}")))
}

/// This process, its ancestors and what it has started.
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

/// Those of the processes that match.
fn matching(regex: &Regex, lineage: &Lineage, pids: Vec<i32>) -> Vec<i32> {
    let is_meant = |pid: &i32| {
        let Ok(status) = proc::status(*pid) else { return false };
        // A kernel thread, or one that has ended.
        status.has_memory
            && (regex.is_match(&status.name) || regex.is_match(&words(*pid)))
            && !lineage.has(*pid)
    };
    pids.into_iter().filter(is_meant).collect()
}

/// The command line as one text.
fn words(pid: i32) -> String {
    let words = proc::command_line(pid).unwrap_or_default();
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Waits until there is one that this user may record.
fn wait_for(regex: &Regex, patience: Option<Duration>, stop: &Stop) -> Vec<i32> {
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
            all_due = now + ALL;
        }
        let mut is_due = |pid: &i32| {
            let first = *since.entry(*pid).or_insert(now);
            is_all || now.duration_since(first) < YOUNG && first > begin + LOOK
        };
        let due: Vec<i32> = there.into_iter().filter(|pid| is_due(pid)).collect();
        let found = matching(regex, &lineage, due);
        let found: Vec<i32> = found.into_iter().filter(|pid| may_be(*pid)).collect();
        if !found.is_empty() {
            return found;
        }
        std::thread::sleep(LOOK);
    }
    Vec::new()
}

/// Waits for the end of its exec.
fn settle(pid: i32) {
    let deadline = Instant::now() + SETTLED_MAX;
    while !is_settled(pid) && proc::start_time(pid).is_ok() && Instant::now() < deadline {
        std::thread::sleep(LOOK / 10);
    }
}

/// Why there is none, and what to do.
fn nothing(pattern: &str) -> String {
    let lineage = Lineage::of_own();
    let pids = proc::processes().unwrap_or_default().into_iter();
    let pids = pids.filter(|pid| !lineage.has(*pid));
    let names = pids.filter_map(|pid| Some((pid, proc::status(pid).ok()?)));
    let names = names.filter(|(_, status)| status.has_memory);
    let names: Vec<(i32, String)> = names.map(|(pid, it)| (pid, it.name)).collect();
    let similar = similar(pattern, &names);
    let similar = match similar.is_empty() {
        true => "`ps -e -o pid,comm,args` lists what there is".to_owned(),
        false => format!("similar ones are {}", similar.join(", ")),
    };
    format!(
        "no process has a name or a command line that matches {pattern}; {similar}, and --wait \
         waits \
         for one"
    )
}

/// Processes whose names are nearly what was asked for.
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
    similar.map(|(pid, name)| format!("{name} ({pid})")).take(SIMILAR).collect()
}

/// Letters to be put in, left out or changed to make one of the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (place, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], place + 1);
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
    fn a_name_that_is_nearly_there_is_found() {
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
    fn the_recorder_and_its_ancestors_are_never_meant() {
        let lineage = Lineage::of_own();
        let own = std::process::id() as i32;
        assert!(lineage.has(own) && lineage.has(proc::parent(own).unwrap()));
        let regex = Regex::new(".").unwrap();
        let found = matching(&regex, &lineage, proc::processes().unwrap());
        assert!(!found.contains(&own), "{found:?}");
    }
}
