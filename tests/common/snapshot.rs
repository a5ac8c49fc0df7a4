//! The state of a process seen from outside, to compare before and after.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Everything that a recording could change in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Mappings. Of stack and heap only the end that never moves is kept.
    mappings: BTreeSet<String>,
    /// For each task: signal masks, dispositions, tracer and pending signals.
    tasks: BTreeMap<i32, Vec<String>>,
    /// Descriptor number and the file that it refers to.
    descriptors: BTreeMap<String, String>,
    /// POSIX timers.
    timers: String,
    /// System V segments that this process attached or detached last, or that nobody uses or will
    /// remove.
    segments: BTreeSet<String>,
}

/// Lines of `/proc/PID/task/TID/status` that must not change.
const STATUS_KEYS: [&str; 9] = [
    "TracerPid:",
    "Threads:",
    "SigPnd:",
    "ShdPnd:",
    "SigBlk:",
    "SigIgn:",
    "SigCgt:",
    "Seccomp:",
    "NoNewPrivs:",
];

/// Signal sets that have more signals while a handler runs, or until it is entered.
const TRANSIENT_SETS: [&str; 3] = ["SigPnd", "ShdPnd", "SigBlk"];
/// Reads of these sets for one snapshot. A signal that a recorder leaves behind is in all of them.
const SET_READS: u32 = 3;
/// Pause between two reads.
const READ_PAUSE: Duration = Duration::from_millis(2);

impl Snapshot {
    pub(crate) fn take(pid: i32) -> Self {
        let dir = Path::new("/proc").join(pid.to_string());
        Self {
            mappings: mappings(&dir),
            tasks: tasks(&dir),
            descriptors: descriptors(&dir),
            timers: fs::read_to_string(dir.join("timers")).unwrap_or_default(),
            segments: segments(pid),
        }
    }

    /// Whether a thread blocks all signals, as one does that the C library has just started.
    pub(crate) fn may_have_new_threads(&self) -> bool {
        let blocks_all = |line: &String| line == "SigBlk:\tfffffffffffbfeff";
        self.tasks.values().flatten().any(blocks_all)
    }

    /// Returns the differences, one line each; empty if there are none.
    pub(crate) fn differences(&self, later: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut lost_and_new = |what: &str, old: &BTreeSet<String>, new: &BTreeSet<String>| {
            found.extend(old.difference(new).map(|line| format!("{what} lost: {line}")));
            found.extend(new.difference(old).map(|line| format!("{what} new: {line}")));
        };
        lost_and_new("mapping", &self.mappings, &later.mappings);
        lost_and_new("descriptor", &pairs(&self.descriptors), &pairs(&later.descriptors));
        lost_and_new("task", &flat(&self.tasks), &flat(&later.tasks));
        // A segment that disappeared belongs to another process: no target of these tests removes
        // one.
        let new_segments = later.segments.difference(&self.segments);
        found.extend(new_segments.map(|line| format!("segment new: {line}")));
        if self.timers != later.timers {
            found.push(format!("timers: {:?} -> {:?}", self.timers, later.timers));
        }
        found
    }
}

impl Snapshot {
    /// Returns the differences that only a recorder makes, in a process that also changes by
    /// itself: shared memory, timers, and the dispositions of threads that still exist. Masks are
    /// left out, because a thread changes its own in a handler and while it starts threads.
    pub(crate) fn marks_left(&self, later: &Self) -> Vec<String> {
        let own = |tid: &i32| self.tasks.contains_key(tid) && later.tasks.contains_key(tid);
        let keep = |one: &Self| Self {
            mappings: one.mappings.iter().filter(|line| is_shared_memory(line)).cloned().collect(),
            tasks: one.tasks.iter().filter(|(tid, _)| own(tid)).map(lasting_lines).collect(),
            descriptors: BTreeMap::new(),
            timers: one.timers.clone(),
            segments: one.segments.clone(),
        };
        keep(self).differences(&keep(later))
    }
}

fn is_shared_memory(mapping: &str) -> bool {
    mapping.contains("/SYSV") || mapping.contains("memfd:")
}

/// Leaves out lines that a runtime changes by itself: it starts and ends threads and sends itself
/// signals.
fn lasting_lines((tid, lines): (&i32, &Vec<String>)) -> (i32, Vec<String>) {
    let passing = |line: &String| {
        ["Threads:", "SigPnd:", "ShdPnd:", "SigBlk:"].iter().any(|key| line.starts_with(key))
    };
    (*tid, lines.iter().filter(|line| !passing(line)).cloned().collect())
}

fn pairs(map: &BTreeMap<String, String>) -> BTreeSet<String> {
    map.iter().map(|(key, value)| format!("{key} -> {value}")).collect()
}

fn flat(tasks: &BTreeMap<i32, Vec<String>>) -> BTreeSet<String> {
    tasks.iter().flat_map(|(tid, lines)| lines.iter().map(move |l| format!("{tid} {l}"))).collect()
}

fn mappings(dir: &Path) -> BTreeSet<String> {
    let maps = fs::read_to_string(dir.join("maps")).expect("maps of the target");
    maps.lines().map(normalize_mapping).collect()
}

/// The stack grows downwards and the heap upwards while the program runs, so only their fixed end
/// is compared.
fn normalize_mapping(line: &str) -> String {
    let Some((range, rest)) = line.split_once(' ') else { return line.to_owned() };
    let Some((start, end)) = range.split_once('-') else { return line.to_owned() };
    match rest.rsplit(' ').next() {
        Some("[stack]") => format!("*-{end} {rest}"),
        Some("[heap]") => format!("{start}-* {rest}"),
        _ => line.to_owned(),
    }
}

fn tasks(dir: &Path) -> BTreeMap<i32, Vec<String>> {
    let mut tasks = tasks_now(dir);
    for _ in 1..SET_READS {
        std::thread::sleep(READ_PAUSE);
        let again = tasks_now(dir);
        for (tid, lines) in &mut tasks {
            let pairs = lines.iter_mut().zip(again.get(tid).into_iter().flatten());
            pairs.for_each(|(line, other)| keep_common_signals(line, other));
        }
    }
    tasks
}

fn tasks_now(dir: &Path) -> BTreeMap<i32, Vec<String>> {
    let entries = fs::read_dir(dir.join("task")).expect("tasks of the target");
    let tids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    tids.map(|tid: i32| {
        let status = fs::read_to_string(dir.join(format!("task/{tid}/status"))).unwrap_or_default();
        let kept =
            status.lines().filter(|line| STATUS_KEYS.iter().any(|key| line.starts_with(key)));
        (tid, kept.map(str::to_owned).collect())
    })
    .collect()
}

/// Keeps the signals that are in both reads of a set, if a running handler changes that set.
fn keep_common_signals(line: &mut String, other: &str) {
    if let (Some((key, one)), Some((other_key, other))) =
        (transient_set(line), transient_set(other))
        && key == other_key
    {
        *line = format!("{key}:\t{:016x}", one & other);
    }
}

/// Returns name and signals of a line of `status` that shows one of [`TRANSIENT_SETS`].
fn transient_set(line: &str) -> Option<(&'static str, u64)> {
    let (key, set) = line.split_once(':')?;
    let key = TRANSIENT_SETS.into_iter().find(|name| *name == key)?;
    Some((key, u64::from_str_radix(set.trim(), 16).ok()?))
}

fn descriptors(dir: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(dir.join("fd")).expect("descriptors of the target");
    let entries = entries.filter_map(Result::ok).map(|entry| {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        (entry.file_name().to_string_lossy().into_owned(), link.to_string_lossy().into_owned())
    });
    entries.collect()
}

/// Returns `key shmid` of each segment that would be residue if it were new.
fn segments(pid: i32) -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    residue(&table, pid, |pid| Path::new("/proc").join(pid.to_string()).exists())
}

fn residue(table: &str, pid: i32, is_alive: impl Fn(i32) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [key, id, _, _, creator, last, attached, ..] = fields[..] else { continue };
        let is = |field: &str, pid: i32| field.parse() == Ok(pid);
        let creator_is_dead = creator.parse().is_ok_and(|creator| !is_alive(creator));
        if is(last, pid) || (creator_is_dead && attached == "0") {
            found.insert(format!("{key} {id}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_stack_and_heap_are_no_difference() {
        let stack = "7ffc0000-7ffd0000 rw-p 00000000 00:00 0          [stack]";
        assert!(normalize_mapping(stack).starts_with("*-7ffd0000 rw-p"));
        let heap = "55550000-55560000 rw-p 00000000 00:00 0          [heap]";
        assert!(normalize_mapping(heap).starts_with("55550000-* rw-p"));
        let file = "7f000000-7f001000 r-xp 00000000 08:01 42 /usr/lib/x.so";
        assert_eq!(normalize_mapping(file), file);
    }

    #[test]
    fn signals_that_are_blocked_for_a_moment_are_not_kept() {
        for (one, other, kept) in [
            ("SigBlk:\t0000000000004010", "SigBlk:\t0000000000004000", 0x4000),
            ("SigBlk:\t0000000000004000", "SigBlk:\t0000000000004010", 0x4000),
            ("ShdPnd:\t0000000000000200", "ShdPnd:\t0000000000000200", 0x200),
            ("SigIgn:\t0000000000000001", "SigIgn:\t0000000000000000", 1),
        ] {
            let mut line = one.to_owned();
            keep_common_signals(&mut line, other);
            assert!(line.ends_with(&format!("{kept:016x}")), "{line}");
        }
    }

    #[test]
    fn residue_is_what_the_target_touched_or_nobody_owns() {
        let table = "key shmid perms size cpid lpid nattch uid\n\
                     0 1 600 4096 100 200 1 0\n\
                     0 2 600 4096 100 300 1 0\n\
                     0 3 600 4096 999 300 0 0\n\
                     0 4 600 4096 999 300 2 0\n";
        let found = residue(table, 200, |pid| pid != 999);
        assert_eq!(found, BTreeSet::from(["0 1".to_owned(), "0 3".to_owned()]));
    }

    /// A snapshot that never saw a difference would pass every test of `harm`.
    #[test]
    fn own_changes_are_seen() {
        let pid = std::process::id() as i32;
        let before = Snapshot::take(pid);
        let file = fs::File::open("/proc/self/exe").unwrap();
        // SAFETY: a new private mapping of a file that stays open across the call.
        let mapping = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        let differences = before.differences(&Snapshot::take(pid));
        assert!(differences.iter().any(|line| line.starts_with("mapping new")), "{differences:?}");
        assert!(differences.iter().any(|line| line.starts_with("descriptor new")));
        drop(mapping);
    }
}
