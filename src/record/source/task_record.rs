//! The kernel's records of what threads do, as perf writes them.

use std::ops::Range;

const RECORD_MMAP: u32 = 1;
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
/// A flag in a record's `misc` (the lower half of the second word): an exec set the name.
const MISC_COMM_EXEC: u32 = 1 << 13;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;

/// The distance of the time from the end of a record that ends with nothing but its time.
pub(crate) const TIME_ALONE: usize = 8;

/// A change that a thread made or went through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TaskChange {
    /// Another thread started it; it has that thread's name.
    Started {
        /// The thread that started it.
        parent: i32,
    },
    /// The thread changed its name.
    Renamed(String),
    /// The thread mapped code, or made memory executable.
    Mapped {
        /// The mapped addresses.
        range: Range<u64>,
        /// Whether no file backs the mapping.
        is_anonymous: bool,
    },
    /// The thread executed another program, by which it has this name; all other threads exited
    /// before that.
    Executed(String),
    /// The thread exited.
    Exited {
        /// Its CPU time in nanoseconds, if the kernel reported it.
        cpu_ns: Option<u64>,
    },
}

/// A change of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskEvent {
    /// The time in CLOCK_MONOTONIC nanoseconds.
    pub(crate) time_ns: u64,
    /// The outer thread id.
    pub(crate) tid: i32,
    /// The change.
    pub(crate) change: TaskChange,
}

/// A process that another one started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForkedProcess {
    /// The time in CLOCK_MONOTONIC nanoseconds.
    pub(crate) time_ns: u64,
    pub(crate) pid: i32,
    pub(crate) parent: i32,
}

/// A record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TaskRecord {
    /// A change of a thread of this process.
    Changed(i32, TaskEvent),
    Forked(ForkedProcess),
    /// The number of records that were lost.
    Lost(u64),
}

/// Reads 32 bits of a record.
pub(crate) fn u32_at(record: &[u8], offset: usize) -> Option<u32> {
    record.get(offset..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Reads 64 bits of a record.
pub(crate) fn u64_at(record: &[u8], offset: usize) -> Option<u64> {
    record.get(offset..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

/// Reads a record; `None` for other kinds, and for garbage. Its time is the word that begins
/// `time_from_end` bytes before its end.
pub(crate) fn parse(record: &[u8], time_from_end: usize) -> Option<TaskRecord> {
    let (word, long) = (|offset| u32_at(record, offset), |offset| u64_at(record, offset));
    let kind = word(0)?;
    if kind == RECORD_LOST {
        return long(16).map(TaskRecord::Lost);
    }
    let pid = word(8)? as i32;
    let time_ns = || long(record.len().checked_sub(time_from_end)?);
    let event = |tid: u32, time_ns: u64, change: TaskChange| {
        Some(TaskRecord::Changed(pid, TaskEvent { time_ns, tid: tid as i32, change }))
    };
    match kind {
        RECORD_FORK => {
            let (parent, started_ns) = (word(12)? as i32, long(24)?);
            if parent == pid {
                return event(
                    word(16)?,
                    started_ns,
                    TaskChange::Started { parent: word(20)? as i32 },
                );
            }
            Some(TaskRecord::Forked(ForkedProcess { time_ns: started_ns, pid, parent }))
        }
        RECORD_MMAP => {
            let range = long(16)?..long(16)?.saturating_add(long(24)?);
            let name = record.get(40..)?;
            // A runtime that maps its code twice, to write through one mapping, uses a memfd.
            let is_file = name.starts_with(b"/") && !name.starts_with(b"/memfd:");
            let is_anonymous = !is_file || name.starts_with(b"//");
            let change = TaskChange::Mapped { range, is_anonymous };
            event(word(12)?, time_ns()?, change)
        }
        RECORD_EXIT => event(word(16)?, long(24)?, TaskChange::Exited { cpu_ns: None }),
        RECORD_COMM => {
            let name = record.get(16..)?.split(|byte| *byte == 0).next()?;
            let name = String::from_utf8_lossy(name).into_owned();
            let change = match word(4)? & MISC_COMM_EXEC {
                0 => TaskChange::Renamed(name),
                _ => TaskChange::Executed(name),
            };
            event(word(12)?, time_ns()?, change)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_set_by_an_exec_is_reported_as_an_exec() {
        let change = |misc: u32| {
            let name = u32::from_ne_bytes(*b"prog");
            let words = [RECORD_COMM, misc, 1, 7, name, 0, 9, 0];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            parse(&bytes, TIME_ALONE).unwrap()
        };
        let event = |change| TaskRecord::Changed(1, TaskEvent { time_ns: 9, tid: 7, change });
        let size = 32 << 16;
        assert_eq!(change(size), event(TaskChange::Renamed("prog".to_owned())));
        assert_eq!(change(size | MISC_COMM_EXEC), event(TaskChange::Executed("prog".to_owned())));
    }

    #[test]
    fn threads_and_processes_are_told_apart_and_garbage_is_left_out() {
        let record = |kind: u32, pid: u32, parent: u32| -> Vec<u8> {
            let words = [kind, 0, pid, parent, 7, 6, 5, 0, 9, 0];
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let thread = parse(&record(RECORD_FORK, 1, 1), TIME_ALONE).unwrap();
        let change = TaskChange::Started { parent: 6 };
        assert_eq!(thread, TaskRecord::Changed(1, TaskEvent { time_ns: 5, tid: 7, change }));
        let process = ForkedProcess { time_ns: 5, pid: 2, parent: 1 };
        assert_eq!(
            parse(&record(RECORD_FORK, 2, 1), TIME_ALONE),
            Some(TaskRecord::Forked(process))
        );
        for kind in 0..16 {
            let complete = record(kind, 1, 1);
            for len in 0..complete.len() {
                let _ = parse(&complete[..len], TIME_ALONE);
            }
        }
    }
}
