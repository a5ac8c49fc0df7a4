//! Thread starts, exits, renames and code mappings, reported by the kernel as they happen.
//!
//! Perf writes side-band records (`task` and `comm`) into one ring per core. With privilege, one
//! event per core covers all threads of the machine, and this module drops the records of other
//! processes. Without it, each thread at attach has one event per core, which the threads that it
//! starts inherit. Mappings (`mmap`) have events and rings of their own: a runtime that generates
//! code, in any process, causes more records than a ring holds, and these must not displace the
//! record of a thread's exit.
//!
//! # Invariants
//! - Times are CLOCK_MONOTONIC nanoseconds, ascending within one [`TaskEvents::drain`]; a core's
//!   late records come with the next one.
//! - A record is in the ring of the core that its thread ran on, so no ring has two writers.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::proc::{self, DescriptorUse, descriptor_limit};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::periodic::Periodic;
use crate::record::source::exit_times::ExitTimes;
use crate::record::source::kernel::cpus;
use crate::record::source::perf::{self, TaskRecords};
use crate::record::source::ring_buffer::RingBuffer;

/// The length of each ring in bytes: some five thousand records between two turns of the loop.
const RING_LEN: usize = 256 << 10;
/// The length of each ring of mappings in bytes: some six hundred records.
const CODE_RING_LEN: usize = 64 << 10;
/// Each kind of record may use one part in this many of the permitted descriptors; sampling events
/// matter more.
const DESCRIPTORS_SHARE: u64 = 8;
/// The interval between two readings of the CPU times of exits if no thread of the process exits.
/// They come from the whole machine, and their buffer holds some ten thousand.
const EXIT_DRAIN: Duration = Duration::from_millis(400);
const RECORD_MMAP: u32 = 1;
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
/// A flag in a record's `misc` (the lower half of the second word): an exec set the name.
const MISC_COMM_EXEC: u32 = 1 << 13;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;

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
    /// The thread executed another program; all other threads exited before that.
    Executed,
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

/// The task records of one process.
pub(crate) struct TaskEvents {
    pid: i32,
    lives: SideBand,
    code: SideBand,
    exit_times: Option<ExitTimes>,
    exit_drain: Periodic,
    /// The number of records that found a ring full; the next scan must make up for them.
    ///
    /// Each overrun of the records with CPU times also counts as one.
    pub(crate) lost: u64,
    /// The number of lost records of mappings; the next read of the mappings must make up for them.
    pub(crate) code_lost: u64,
}

/// The rings and events of one kind of record.
#[derive(Default)]
struct SideBand {
    rings: Vec<RingBuffer>,
    // Kept open until no more records are needed.
    events: Vec<OwnedFd>,
}

impl SideBand {
    fn ring_len(kind: TaskRecords) -> usize {
        match kind {
            TaskRecords::Lives => RING_LEN,
            TaskRecords::Code => CODE_RING_LEN,
        }
    }

    /// Opens one event per core for the whole machine.
    fn of_machine(kind: TaskRecords) -> io::Result<Self> {
        let (mut side_band, cpus) = (Self::default(), cpus());
        check_descriptors(cpus.len())?;
        for cpu in cpus {
            let event = perf::open_task(kind, None, cpu)?;
            side_band.rings.push(RingBuffer::map(&event, Self::ring_len(kind))?);
            side_band.events.push(event);
        }
        Ok(side_band)
    }

    /// Opens one event per core and thread; all events of a core share its ring.
    fn of_family(kind: TaskRecords, pid: i32) -> io::Result<Self> {
        let mut side_band = Self::default();
        let cpus = cpus();
        check_descriptors(proc::tasks(pid)?.len() * cpus.len())?;
        for cpu in cpus {
            let mut first = None;
            perf::each_thread(pid, |tid| {
                let event = match perf::open_task(kind, Some(tid), cpu) {
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
                    opened => opened?,
                };
                match first {
                    None => {
                        side_band.rings.push(RingBuffer::map(&event, Self::ring_len(kind))?);
                        first = Some(side_band.events.len());
                    }
                    Some(owner) => perf::share_output(&event, &side_band.events[owner])?,
                }
                side_band.events.push(event);
                Ok(true)
            })?;
        }
        Ok(side_band)
    }

    /// Adds new events in any order, and returns the number of lost records.
    fn drain(&mut self, kind: TaskRecords, pid: i32, out: &mut Vec<TaskEvent>) -> u64 {
        let mut lost = 0;
        // Events for mappings report starts and exits as well.
        let is_of_kind = |change: &TaskChange| {
            matches!(change, TaskChange::Mapped { .. }) == (kind == TaskRecords::Code)
        };
        for ring in &mut self.rings {
            ring.drain(|record| match parse(record, pid) {
                Some(ParsedRecord::Event(event)) if !is_of_kind(&event.change) => {}
                Some(ParsedRecord::Event(event)) => out.push(event),
                Some(ParsedRecord::Lost(count)) => lost += count,
                None => {}
            });
        }
        lost
    }
}

/// Checks that so many events are within their share of the descriptors.
fn check_descriptors(wanted: usize) -> io::Result<()> {
    if wanted as u64 > descriptor_limit() / DESCRIPTORS_SHARE {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    DescriptorUse::Savings.check(wanted as u64)
}

impl TaskEvents {
    /// Starts the records of all threads of the process.
    ///
    /// Unavailable kinds of records are left out.
    pub(crate) fn open(pid: i32) -> Self {
        // First, since it starts a thread in this process.
        let exit_times = ExitTimes::open(pid).ok();
        // Fails without permission, or if the sampling events need the descriptors.
        let open = |kind| SideBand::of_machine(kind).or_else(|_| SideBand::of_family(kind, pid));
        Self {
            pid,
            lives: open(TaskRecords::Lives).unwrap_or_default(),
            code: open(TaskRecords::Code).unwrap_or_default(),
            exit_times,
            exit_drain: Periodic::new(EXIT_DRAIN),
            lost: 0,
            code_lost: 0,
        }
    }

    /// Returns whether starts and exits are reported.
    pub(crate) fn has_lives(&self) -> bool {
        !self.lives.rings.is_empty()
    }

    /// Returns whether the CPU time of exiting threads is reported.
    #[cfg(test)]
    pub(crate) fn has_cpu_times(&self) -> bool {
        self.exit_times.is_some()
    }

    #[cfg(test)]
    pub(crate) fn close(&mut self) {
        self.lives = SideBand::default();
    }

    /// Replaces the contents of `out` with all changes since the last call, in order.
    pub(crate) fn drain(&mut self, out: &mut Vec<TaskEvent>) {
        out.clear();
        let (lost, has_lives) = (self.lost, self.has_lives());
        self.lost += self.lives.drain(TaskRecords::Lives, self.pid, out);
        self.code_lost += self.code.drain(TaskRecords::Code, self.pid, out);
        out.sort_by_key(|event| event.time_ns);
        let Some(times) = &mut self.exit_times else { return };
        let is_exit = |event: &TaskEvent| matches!(event.change, TaskChange::Exited { .. });
        if has_lives && self.lost == lost && !self.exit_drain.is_due() && !out.iter().any(is_exit) {
            return;
        }
        // After the rings: the kernel has sent the CPU time of each exit that they reported by now.
        if times.drain().is_err() {
            self.exit_times = None;
            return;
        }
        self.lost += std::mem::take(&mut times.overruns);
        for event in out.iter_mut() {
            if let TaskChange::Exited { cpu_ns } = &mut event.change {
                *cpu_ns = times.take(event.tid);
            }
        }
        if !has_lives || self.lost > lost {
            // Their exits were not reported, so a later thread with the same id would get these
            // times.
            let time_ns = monotonic_now_ns();
            out.extend(times.take_all().into_iter().map(|(tid, cpu_ns)| {
                let change = TaskChange::Exited { cpu_ns: Some(cpu_ns) };
                TaskEvent { time_ns, tid, change }
            }));
        }
    }
}

/// A record of a ring.
enum ParsedRecord {
    Event(TaskEvent),
    /// The number of records that were lost.
    Lost(u64),
}

fn parse(record: &[u8], process: i32) -> Option<ParsedRecord> {
    let word = |offset: usize| -> Option<u32> {
        record.get(offset..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    };
    let long = |offset: usize| -> Option<u64> {
        record.get(offset..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
    };
    let kind = word(0)?;
    if kind == RECORD_LOST {
        return long(16).map(ParsedRecord::Lost);
    }
    let event = |tid: u32, time_ns: u64, change: TaskChange| {
        Some(ParsedRecord::Event(TaskEvent { time_ns, tid: tid as i32, change }))
    };
    let pid = word(8)?;
    if pid != process as u32 {
        return None;
    }
    match kind {
        // A fork of a child process has another pid here and is left out.
        RECORD_FORK if word(12)? == pid => {
            event(word(16)?, long(24)?, TaskChange::Started { parent: word(20)? as i32 })
        }
        RECORD_MMAP => {
            let range = long(16)?..long(16)?.saturating_add(long(24)?);
            let name = record.get(40..)?;
            // A runtime that maps its code twice, to write through one mapping, uses a memfd.
            let is_file = name.starts_with(b"/") && !name.starts_with(b"/memfd:");
            let is_anonymous = !is_file || name.starts_with(b"//");
            let change = TaskChange::Mapped { range, is_anonymous };
            event(word(12)?, long(record.len().checked_sub(8)?)?, change)
        }
        RECORD_EXIT => event(word(16)?, long(24)?, TaskChange::Exited { cpu_ns: None }),
        RECORD_COMM if word(4)? & MISC_COMM_EXEC != 0 => {
            event(word(12)?, long(record.len().checked_sub(8)?)?, TaskChange::Executed)
        }
        RECORD_COMM => {
            let name = record.get(16..)?.split(|byte| *byte == 0).next()?;
            let name = String::from_utf8_lossy(name).into_owned();
            event(word(12)?, long(record.len().checked_sub(8)?)?, TaskChange::Renamed(name))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    fn own() -> i32 {
        std::process::id() as i32
    }

    /// Drains until a thread has exited, and returns its changes in order.
    fn life(events: &mut TaskEvents, tid: i32) -> Vec<(u64, TaskChange)> {
        let (mut life, mut out) = (Vec::new(), Vec::new());
        let until = Instant::now() + Duration::from_secs(5);
        while !life.iter().any(|(_, change)| matches!(change, TaskChange::Exited { .. })) {
            events.drain(&mut out);
            let mine = out.drain(..).filter(|event| event.tid == tid);
            life.extend(mine.map(|event| (event.time_ns, event.change)));
            assert!(Instant::now() < until, "no end: {life:?}");
        }
        life.sort_by_key(|(time, _)| *time);
        life
    }

    /// Checks that events opened this way report a thread's start, name and exit.
    fn check(open: impl FnOnce() -> io::Result<SideBand>) {
        let mut events = TaskEvents::open(own());
        match open() {
            Ok(side_band) => events.lives = side_band,
            Err(error) => {
                // Only privileged users may see other users' threads.
                assert!(!nix::unistd::geteuid().is_root(), "{error}");
                return;
            }
        }
        let (before, (send, receive)) = (monotonic_now_ns(), channel());
        let thread = std::thread::Builder::new().name("kind".to_string());
        let thread = thread.spawn(move || send.send(nix::unistd::gettid().as_raw())).unwrap();
        let tid = receive.recv().unwrap();
        thread.join().unwrap().unwrap();
        let life = life(&mut events, tid);
        let after = monotonic_now_ns();
        assert!(life.iter().all(|(time, _)| (before..=after).contains(time)), "{life:?}");
        let changes: Vec<&TaskChange> = life.iter().map(|(_, change)| change).collect();
        let name = TaskChange::Renamed("kind".to_string());
        let [TaskChange::Started { .. }, renamed, TaskChange::Exited { cpu_ns }] = changes[..]
        else {
            panic!("{life:?}");
        };
        assert_eq!(*renamed, name);
        assert_eq!(cpu_ns.is_some(), events.has_cpu_times(), "{cpu_ns:?}");
        assert_eq!(events.lost, 0);
    }

    #[test]
    fn events_of_the_whole_machine_report_a_threads_life() {
        check(|| SideBand::of_machine(TaskRecords::Lives));
    }

    #[test]
    fn inherited_events_report_a_threads_life() {
        check(|| SideBand::of_family(TaskRecords::Lives, own()));
    }

    /// Makes memory executable and writable again this many times, and returns its address.
    fn code_turned_on_and_off(times: usize) -> u64 {
        let mut memory = memmap2::MmapMut::map_anon(4096).unwrap();
        let address = memory.as_ptr() as u64;
        for _ in 0..times {
            memory = memory.make_exec().unwrap().make_mut().unwrap();
        }
        address
    }

    #[test]
    fn code_mappings_are_reported_and_displace_no_thread_exit() {
        let mut events = TaskEvents::open(own());
        if !events.has_lives() {
            return;
        }
        // Each processor has a ring of its own.
        let mut one = CpuSet::new();
        one.set(sched_getcpu().unwrap()).unwrap();
        sched_setaffinity(Pid::from_raw(0), &one).unwrap();
        let before = monotonic_now_ns();
        // More than any ring holds.
        let address = code_turned_on_and_off(5_000);
        let after = monotonic_now_ns();
        let tid = std::thread::spawn(nix::unistd::gettid).join().unwrap().as_raw();
        let mut out = Vec::new();
        events.drain(&mut out);
        let is_reported = |event: &TaskEvent| match &event.change {
            TaskChange::Mapped { range, is_anonymous } => {
                let is_then = (before..=after).contains(&event.time_ns);
                range.start == address && *is_anonymous && is_then
            }
            _ => false,
        };
        assert!(out.iter().any(is_reported));
        let is_end = |event: &TaskEvent| matches!(event.change, TaskChange::Exited { .. });
        assert!(out.iter().any(|event| event.tid == tid && is_end(event)));
        // The kernel reports a loss with the next record that finds room.
        code_turned_on_and_off(1);
        events.drain(&mut out);
        assert!(events.code_lost > 0 && events.lost == 0, "{} {}", events.code_lost, events.lost);
    }

    #[test]
    fn dropped_cpu_times_count_as_lost() {
        let mut events = TaskEvents::open(std::process::id() as i32);
        // Records of CPU times are not permitted everywhere.
        let Some(times) = &mut events.exit_times else { return };
        times.overruns = 2;
        events.exit_drain = Periodic::new(Duration::ZERO);
        let before = events.lost;
        events.drain(&mut Vec::new());
        assert!(events.lost >= before + 2);
        let after = events.lost;
        events.drain(&mut Vec::new());
        assert!(events.lost < after + 2, "counted once");
    }

    #[test]
    fn a_name_set_by_an_exec_is_reported_as_an_exec() {
        let change = |misc: u32| {
            let name = u32::from_ne_bytes(*b"prog");
            let words = [RECORD_COMM, misc, 1, 7, name, 0, 9, 0];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            match parse(&bytes, 1) {
                Some(ParsedRecord::Event(event)) => Some((event.tid, event.time_ns, event.change)),
                _ => None,
            }
        };
        let size = 32 << 16;
        assert_eq!(change(size), Some((7, 9, TaskChange::Renamed("prog".to_owned()))));
        assert_eq!(change(size | MISC_COMM_EXEC), Some((7, 9, TaskChange::Executed)));
    }

    #[test]
    fn other_processes_and_garbage_are_left_out() {
        let record = |kind: u32, pid: u32, parent: u32| -> Vec<u8> {
            let words = [kind, 0, pid, parent, 7, 6, 5, 0, 9, 0];
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        assert!(parse(&record(RECORD_FORK, 1, 1), 1).is_some());
        assert!(parse(&record(RECORD_FORK, 1, 1), 2).is_none());
        assert!(parse(&record(RECORD_FORK, 2, 1), 2).is_none(), "a child process");
        for kind in 0..16 {
            let complete = record(kind, 1, 1);
            for len in 0..complete.len() {
                let _ = parse(&complete[..len], 1);
            }
        }
    }
}
