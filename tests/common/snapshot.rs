//! A process as seen from outside, to compare before and after.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Everything that a recording could have changed in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Mappings without the two that a program resizes by itself at one end.
    mappings: BTreeSet<String>,
    /// Per task: masks, dispositions, tracer, pending signals.
    tasks: BTreeMap<i32, Vec<String>>,
    /// Descriptor number and what it refers to.
    descriptors: BTreeMap<String, String>,
    /// POSIX timers.
    timers: String,
    /// System V segments that this process touched last, or that nobody uses or will remove.
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

    /// What differs, one line each; empty if nothing does.
    pub(crate) fn differences(&self, later: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut lost_and_new = |what: &str, old: &BTreeSet<String>, new: &BTreeSet<String>| {
            found.extend(old.difference(new).map(|line| format!("{what} lost: {line}")));
            found.extend(new.difference(old).map(|line| format!("{what} new: {line}")));
        };
        lost_and_new("mapping", &self.mappings, &later.mappings);
        lost_and_new("descriptor", &pairs(&self.descriptors), &pairs(&later.descriptors));
        lost_and_new("task", &flat(&self.tasks), &flat(&later.tasks));
        // One that went is somebody else's: a target of these tests never frees any.
        let new_segments = later.segments.difference(&self.segments);
        found.extend(new_segments.map(|line| format!("segment new: {line}")));
        if self.timers != later.timers {
            found.push(format!("timers: {:?} -> {:?}", self.timers, later.timers));
        }
        found
    }
}

impl Snapshot {
    /// What differs of what only a recorder changes, in a process that changes by itself: shared
    /// memory, timers, and the dispositions of the threads that are still there. A thread that is
    /// in a handler or starts others has another mask than before.
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

/// A runtime starts and ends threads, and signals itself.
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

/// The stack grows downwards and the heap upwards as the program runs: only their fixed end counts.
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

fn descriptors(dir: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(dir.join("fd")).expect("descriptors of the target");
    let entries = entries.filter_map(Result::ok).map(|entry| {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        (entry.file_name().to_string_lossy().into_owned(), link.to_string_lossy().into_owned())
    });
    entries.collect()
}

/// `key shmid` of segments that would be residue if they were new.
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
    fn residue_is_what_the_target_touched_or_nobody_owns() {
        let table = "key shmid perms size cpid lpid nattch uid\n\
                     0 1 600 4096 100 200 1 0\n\
                     0 2 600 4096 100 300 1 0\n\
                     0 3 600 4096 999 300 0 0\n\
                     0 4 600 4096 999 300 2 0\n";
        let found = residue(table, 200, |pid| pid != 999);
        assert_eq!(found, BTreeSet::from(["0 1".to_owned(), "0 3".to_owned()]));
    }

    /// A snapshot that saw no difference anywhere would pass every test of harm.
    #[test]
    fn own_changes_are_seen() {
        let pid = std::process::id() as i32;
        let before = Snapshot::take(pid);
        let file = fs::File::open("/proc/self/exe").unwrap();
        // SAFETY: a fresh private mapping of a file that stays open across the call.
        let mapping = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        let differences = before.differences(&Snapshot::take(pid));
        assert!(differences.iter().any(|line| line.starts_with("mapping new")), "{differences:?}");
        assert!(differences.iter().any(|line| line.starts_with("descriptor new")));
        drop(mapping);
    }
}
