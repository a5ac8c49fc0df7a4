//! Threads that start, end, change their name or map code, told by the kernel as it happens.
//!
//! Side-band records of perf (`task` and `comm`) into one ring per core. With the privilege for it one
//! event per core sees all threads of the machine, and those of others are left out here; without it
//! each thread at attach has one per core, which the threads that it starts inherit. Mappings (`mmap`)
//! have events and rings of their own: a runtime that makes code, in whichever process, tells of more
//! than a ring holds, and must not push out the end of a thread.
//!
//! # Invariants
//! - Times are CLOCK_MONOTONIC nanoseconds, ascending within one [`TaskEvents::drain`]; what one core
//!   told late comes with the next one.
//! - A thread's record lies in the ring of the core that it was on: no ring has two writers.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use super::clock::monotonic_now_ns;
use super::exit_times::ExitTimes;
use super::kernel::cpus;
use super::perf::{self, Told};
use super::ring::Ring;
use crate::proc;

/// Bytes of each ring: some five thousand records between two turns of the loop.
const RING_LEN: usize = 256 << 10;
/// The same of mappings: some six hundred.
const CODE_RING_LEN: usize = 64 << 10;
/// Of the descriptors that are allowed, one in so many may be spent on each kind: the events that sample
/// are more important.
const DESCRIPTORS_SHARE: u64 = 8;
const RECORD_MMAP: u32 = 1;
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
/// In a record's `misc`, the lower half of the second word: the new name is that of a program.
const MISC_COMM_EXEC: u32 = 1 << 13;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;

/// What a thread did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TaskChange {
    /// Its first instant, on behalf of another thread, whose name it begins with.
    Started {
        /// That thread.
        parent: i32,
    },
    /// It has another name now.
    Renamed(String),
    /// It has mapped code, or made memory executable.
    Mapped {
        /// Its addresses.
        range: Range<u64>,
        /// It is no file's.
        is_anonymous: bool,
    },
    /// It has executed another program. All other threads have ended before.
    Executed,
    /// Its last instant, and all CPU time it has used, where the kernel tells.
    Ended {
        /// In nanoseconds.
        cpu_ns: Option<u64>,
    },
}

/// A change of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskEvent {
    /// CLOCK_MONOTONIC nanoseconds.
    pub(super) time_ns: u64,
    /// As the recorder sees it.
    pub(super) tid: i32,
    /// What it did.
    pub(super) change: TaskChange,
}

/// The events of one process's threads.
pub(super) struct TaskEvents {
    pid: i32,
    lives: Side,
    code: Side,
    exit_times: Option<ExitTimes>,
    /// Records that found a ring full: the next scan has to find out. Times that CPU times were dropped
    /// count as one each.
    pub(super) lost: u64,
    /// The same of mappings: the next look at them has to find out.
    pub(super) code_lost: u64,
}

/// What the kernel writes of one kind.
#[derive(Default)]
struct Side {
    rings: Vec<Ring>,
    // Held open for as long as records are wanted.
    events: Vec<OwnedFd>,
}

impl Side {
    fn ring_len(told: Told) -> usize {
        match told {
            Told::Lives => RING_LEN,
            Told::Code => CODE_RING_LEN,
        }
    }

    /// One event per core.
    fn of_machine(told: Told) -> io::Result<Self> {
        let mut side = Self::default();
        for cpu in cpus() {
            let event = perf::open_task(told, None, cpu)?;
            side.rings.push(Ring::map(&event, Self::ring_len(told))?);
            side.events.push(event);
        }
        Ok(side)
    }

    /// One event per core and thread; those of one core share its ring.
    fn of_family(told: Told, pid: i32) -> io::Result<Self> {
        let mut side = Self::default();
        let cpus = cpus();
        let wanted = proc::tasks(pid)?.len() * cpus.len();
        if wanted as u64 > perf::descriptor_limit() / DESCRIPTORS_SHARE {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        for cpu in cpus {
            let mut first = None;
            perf::each_thread(pid, |tid| {
                let event = match perf::open_task(told, Some(tid), cpu) {
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
                    opened => opened?,
                };
                match first {
                    None => {
                        side.rings.push(Ring::map(&event, Self::ring_len(told))?);
                        first = Some(side.events.len());
                    }
                    Some(owner) => perf::share_output(&event, &side.events[owner])?,
                }
                side.events.push(event);
                Ok(true)
            })?;
        }
        Ok(side)
    }

    /// Adds what has come, in no order; how many records were lost.
    fn drain(&mut self, told: Told, pid: i32, out: &mut Vec<TaskEvent>) -> u64 {
        let mut lost = 0;
        // Who asks for mappings is told of starts and ends as well.
        let is_of_it = |change: &TaskChange| {
            matches!(change, TaskChange::Mapped { .. }) == (told == Told::Code)
        };
        for ring in &mut self.rings {
            ring.drain(|record| match parse(record, pid) {
                Some(Parsed::Event(event)) if !is_of_it(&event.change) => {}
                Some(Parsed::Event(event)) => out.push(event),
                Some(Parsed::Lost(count)) => lost += count,
                None => {}
            });
        }
        lost
    }
}

impl TaskEvents {
    /// Of all threads of the process; records come from now on. What cannot be had is left out:
    /// without anything nothing is ever told.
    pub(super) fn open(pid: i32) -> Self {
        // First: it starts a thread, in this process.
        let exit_times = ExitTimes::open(pid).ok();
        // Not permitted, or no descriptors left: they go to the events that sample.
        let open = |told| Side::of_machine(told).or_else(|_| Side::of_family(told, pid));
        Self {
            pid,
            lives: open(Told::Lives).unwrap_or_default(),
            code: open(Told::Code).unwrap_or_default(),
            exit_times,
            lost: 0,
            code_lost: 0,
        }
    }

    /// Starts and ends are told.
    pub(super) fn has_lives(&self) -> bool {
        !self.lives.rings.is_empty()
    }

    /// The CPU time of threads that end is told.
    #[cfg(test)]
    pub(super) fn has_cpu_times(&self) -> bool {
        self.exit_times.is_some()
    }

    #[cfg(test)]
    pub(super) fn close(&mut self) {
        self.lives = Side::default();
    }

    /// All that has happened since the last call, in order.
    pub(super) fn drain(&mut self, out: &mut Vec<TaskEvent>) {
        out.clear();
        let (lost, has_lives) = (self.lost, self.has_lives());
        self.lost += self.lives.drain(Told::Lives, self.pid, out);
        self.code_lost += self.code.drain(Told::Code, self.pid, out);
        out.sort_by_key(|event| event.time_ns);
        let Some(times) = &mut self.exit_times else { return };
        // After the rings: the CPU time of each end that they told is on its way by now.
        if times.drain().is_err() {
            self.exit_times = None;
            return;
        }
        self.lost += std::mem::take(&mut times.overruns);
        for event in out.iter_mut() {
            if let TaskChange::Ended { cpu_ns } = &mut event.change {
                *cpu_ns = times.take(event.tid);
            }
        }
        if !has_lives || self.lost > lost {
            // Without an end to belong to they would be taken for those of a later thread with the
            // same id.
            let time_ns = monotonic_now_ns();
            out.extend(times.take_all().into_iter().map(|(tid, cpu_ns)| {
                let change = TaskChange::Ended { cpu_ns: Some(cpu_ns) };
                TaskEvent { time_ns, tid, change }
            }));
        }
    }
}

enum Parsed {
    Event(TaskEvent),
    Lost(u64),
}

fn parse(record: &[u8], process: i32) -> Option<Parsed> {
    let word = |offset: usize| -> Option<u32> {
        record.get(offset..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    };
    let long = |offset: usize| -> Option<u64> {
        record.get(offset..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
    };
    let kind = word(0)?;
    if kind == RECORD_LOST {
        return long(16).map(Parsed::Lost);
    }
    let event = |tid: u32, time_ns: u64, change: TaskChange| {
        Some(Parsed::Event(TaskEvent { time_ns, tid: tid as i32, change }))
    };
    let pid = word(8)?;
    if pid != process as u32 {
        return None;
    }
    match kind {
        // A process that is started is another one's.
        RECORD_FORK if word(12)? == pid => {
            event(word(16)?, long(24)?, TaskChange::Started { parent: word(20)? as i32 })
        }
        RECORD_MMAP => {
            let range = long(16)?..long(16)?.saturating_add(long(24)?);
            let name = record.get(40..)?;
            // A runtime that maps its code twice, to write to one of them, has a nameless file for it.
            let is_file = name.starts_with(b"/") && !name.starts_with(b"/memfd:");
            let is_anonymous = !is_file || name.starts_with(b"//");
            let change = TaskChange::Mapped { range, is_anonymous };
            event(word(12)?, long(record.len().checked_sub(8)?)?, change)
        }
        RECORD_EXIT => event(word(16)?, long(24)?, TaskChange::Ended { cpu_ns: None }),
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

    use super::*;

    fn own() -> i32 {
        std::process::id() as i32
    }

    /// Drains until a thread has ended; what it did, in order.
    fn life(events: &mut TaskEvents, tid: i32) -> Vec<(u64, TaskChange)> {
        let (mut life, mut out) = (Vec::new(), Vec::new());
        let until = Instant::now() + Duration::from_secs(5);
        while !life.iter().any(|(_, change)| matches!(change, TaskChange::Ended { .. })) {
            events.drain(&mut out);
            let mine = out.drain(..).filter(|event| event.tid == tid);
            life.extend(mine.map(|event| (event.time_ns, event.change)));
            assert!(Instant::now() < until, "no end: {life:?}");
        }
        life.sort_by_key(|(time, _)| *time);
        life
    }

    /// A thread's start, name and end, told by the given way.
    fn check(open: impl FnOnce() -> io::Result<Side>) {
        let mut events = TaskEvents::open(own());
        match open() {
            Ok(side) => events.lives = side,
            Err(error) => {
                // Others' threads are for the privileged only.
                assert!(!nix::unistd::geteuid().is_root(), "{error}");
                return;
            }
        }
        let (before, (send, receive)) = (monotonic_now_ns(), channel());
        let thread = std::thread::Builder::new().name("told".to_string());
        let thread = thread.spawn(move || send.send(nix::unistd::gettid().as_raw())).unwrap();
        let tid = receive.recv().unwrap();
        thread.join().unwrap().unwrap();
        let life = life(&mut events, tid);
        let after = monotonic_now_ns();
        assert!(life.iter().all(|(time, _)| (before..=after).contains(time)), "{life:?}");
        let changes: Vec<&TaskChange> = life.iter().map(|(_, change)| change).collect();
        let name = TaskChange::Renamed("told".to_string());
        let [TaskChange::Started { .. }, renamed, TaskChange::Ended { cpu_ns }] = changes[..]
        else {
            panic!("{life:?}");
        };
        assert_eq!(*renamed, name);
        assert_eq!(cpu_ns.is_some(), events.has_cpu_times(), "{cpu_ns:?}");
        assert_eq!(events.lost, 0);
    }

    #[test]
    fn a_life_is_told_by_events_of_the_whole_machine() {
        check(|| Side::of_machine(Told::Lives));
    }

    #[test]
    fn a_life_is_told_by_inherited_events() {
        check(|| Side::of_family(Told::Lives, own()));
    }

    /// Memory that is made executable so many times, and not executable again; where it was.
    fn code_turned_on_and_off(times: usize) -> u64 {
        let mut memory = memmap2::MmapMut::map_anon(4096).unwrap();
        let place = memory.as_ptr() as u64;
        for _ in 0..times {
            memory = memory.make_exec().unwrap().make_mut().unwrap();
        }
        place
    }

    #[test]
    fn code_that_is_mapped_is_told_and_pushes_no_end_of_a_thread_out() {
        let mut events = TaskEvents::open(own());
        if !events.has_lives() {
            return;
        }
        let before = monotonic_now_ns();
        // More than any ring holds.
        let place = code_turned_on_and_off(5_000);
        let after = monotonic_now_ns();
        let tid = std::thread::spawn(nix::unistd::gettid).join().unwrap().as_raw();
        let mut out = Vec::new();
        events.drain(&mut out);
        let is_told = |event: &TaskEvent| match &event.change {
            TaskChange::Mapped { range, is_anonymous } => {
                let is_then = (before..=after).contains(&event.time_ns);
                range.start == place && *is_anonymous && is_then
            }
            _ => false,
        };
        assert!(out.iter().any(is_told));
        let is_end = |event: &TaskEvent| matches!(event.change, TaskChange::Ended { .. });
        assert!(out.iter().any(|event| event.tid == tid && is_end(event)));
        // That some were lost is told with the next one that finds room.
        code_turned_on_and_off(1);
        events.drain(&mut out);
        assert!(events.code_lost > 0 && events.lost == 0, "{} {}", events.code_lost, events.lost);
    }

    #[test]
    fn dropped_cpu_times_count_as_lost() {
        let mut events = TaskEvents::open(std::process::id() as i32);
        // Not permitted everywhere.
        let Some(times) = &mut events.exit_times else { return };
        times.overruns = 2;
        let before = events.lost;
        events.drain(&mut Vec::new());
        assert!(events.lost >= before + 2);
        let after = events.lost;
        events.drain(&mut Vec::new());
        assert!(events.lost < after + 2, "counted once");
    }

    #[test]
    fn a_name_that_comes_with_a_program_is_told_as_that() {
        let change = |misc: u32| {
            let name = u32::from_ne_bytes(*b"prog");
            let words = [RECORD_COMM, misc, 1, 7, name, 0, 9, 0];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            match parse(&bytes, 1) {
                Some(Parsed::Event(event)) => Some((event.tid, event.time_ns, event.change)),
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
        assert!(parse(&record(RECORD_FORK, 2, 1), 2).is_none(), "a process that it starts");
        for kind in 0..16 {
            let whole = record(kind, 1, 1);
            for len in 0..whole.len() {
                let _ = parse(&whole[..len], 1);
            }
        }
    }
}
