//! The threads of the target, from /proc and the kernel's reports.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::proc::{self, Memory};
use crate::record::batch::mapped::Mapped;
use crate::record::batch::threads::{ThreadChange, ThreadKey, ThreadLife};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::source::machine_tasks::MachineTasks;
use crate::record::source::task_record::TaskEvent;
use crate::record::source::task_scan::ScanSchedule;
use crate::record::store::threads::UNKNOWN_NS;
use crate::record::store::threads::first_samples::StartedThreads;
use crate::record::store::threads::lives::{Life, Lives};

/// A thread's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Id {
    /// The id that the target sees.
    Inner(u32),
    /// The id that the recorder sees.
    Outer(i32),
}

/// The changes that a turn found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ThreadTurn {
    /// The threads that are new since the last turn, by their ids as the recorder sees them.
    pub(crate) new: Vec<i32>,
}

/// The threads of one process, alive or remembered.
pub(super) struct ThreadList {
    pub(super) pid: i32,
    inner_pid: u32,
    pub(super) same_namespace: bool,
    /// When the list was made, in CLOCK_MONOTONIC nanoseconds.
    pub(super) started_ns: u64,
    /// The memory of the program that these threads run.
    memory: Option<Memory>,
    /// When the process executed another program, in CLOCK_MONOTONIC nanoseconds, if the kernel
    /// reported an exec.
    pub(super) executed_ns: Option<u64>,
    /// The reported mappings of code.
    pub(super) mapped: Vec<Mapped>,
    pub(super) watch: ScanSchedule,
    pub(super) lives: Lives,
    /// The lives that ended since the last rotation began.
    pub(super) exited: Vec<u32>,
    /// The lives that were renamed since the last rotation began.
    pub(super) renamed: Vec<u32>,
    /// The number of the life at which the next reading of names begins.
    next_name: u32,
    /// The new threads since the last turn, by their ids as the recorder sees them.
    pub(super) new: Vec<i32>,
    /// Exits that were read before the starts of their threads, which another core reports: the
    /// time, and the CPU time if the kernel reported it.
    pub(super) early_exits: HashMap<i32, (u64, Option<u64>)>,
    pub(super) ids_reused: u64,
    pub(super) started: StartedThreads,
    pub(super) reports: Vec<TaskEvent>,
}

impl ThreadList {
    /// Makes the list of a process; the first thread's number is `first`.
    pub(super) fn new(pid: i32, first: u32, machine: &Arc<MachineTasks>) -> io::Result<Self> {
        let status = proc::status(pid)?;
        Ok(Self {
            pid,
            inner_pid: status.inner_tgid as u32,
            same_namespace: status.inner_pid == pid,
            started_ns: monotonic_now_ns(),
            // The memory is not readable once the main thread has exited.
            memory: Memory::of(pid).ok().filter(|memory| !memory.is_gone()),
            executed_ns: None,
            mapped: Vec::new(),
            watch: ScanSchedule::start(pid, machine),
            lives: Lives::from(first),
            exited: Vec::new(),
            renamed: Vec::new(),
            next_name: 0,
            new: Vec::new(),
            early_exits: HashMap::new(),
            ids_reused: 0,
            started: StartedThreads::default(),
            reports: Vec::new(),
        })
    }

    /// Processes the kernel's reports, and scans the threads when a scan is due.
    ///
    /// The recorder calls it in each turn of its loop.
    pub(super) fn turn(&mut self, now: Instant) -> ThreadTurn {
        if self.watch.is_due(now) {
            self.scan(false);
        } else {
            self.listen();
        }
        ThreadTurn { new: std::mem::take(&mut self.new) }
    }

    /// Scans the threads of the process; with `names` it also reads the names of all threads,
    /// unless the kernel reports them.
    pub(super) fn scan(&mut self, names: bool) {
        let before = Instant::now();
        // Before the scan: reports of what a thread did so far come before the thread is read.
        self.listen();
        self.early_exits.clear();
        let tids = match proc::tasks(self.pid) {
            Ok(tids) => tids,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            // Any other error is the recorder's own (no descriptor left), and says nothing about
            // the threads. To assume that they exited would retire slots that are in use.
            Err(_) => return,
        };
        let now_ns = monotonic_now_ns();
        let listed: HashSet<i32> = tids.iter().copied().collect();
        let missed = self.lives.alive().filter(|(_, life)| !listed.contains(&life.tid));
        let missed: Vec<u32> = missed.map(|(number, _)| number).collect();
        let known = self.lives.count_ever();
        for number in &missed {
            self.end(*number, now_ns, false, None);
        }
        let names = names && !self.watch.has_events();
        for tid in tids {
            if names || self.lives.living(tid).is_none() {
                self.read(tid);
            }
        }
        let changes = missed.len() + self.lives.count_ever() - known;
        self.watch.note_scan(before, listed.len(), changes);
    }

    /// Reads names of threads for this long, unless the kernel reports them.
    ///
    /// Each call reads at least one name, and consecutive calls read all of them in turn.
    pub(super) fn read_names(&mut self, time: Duration) {
        if self.watch.has_events() {
            return;
        }
        let start = Instant::now();
        let alive = self.lives.alive().map(|(number, life)| (number, life.tid));
        let mut round: Vec<(u32, i32)> = alive.collect();
        let first = round.partition_point(|(number, _)| *number < self.next_name);
        round.rotate_left(first);
        for (number, tid) in round {
            self.read(tid);
            self.next_name = number + 1;
            if start.elapsed() >= time {
                break;
            }
        }
    }

    /// Reads the name and start of one thread, and begins a life if it is another thread than the
    /// known one.
    pub(super) fn read(&mut self, tid: i32) {
        // If the thread has exited, the next scan misses it.
        let Ok(stat) = proc::task_stat(self.pid, tid) else { return };
        let latest = self.lives.latest(tid);
        if let Some(number) = latest
            && let Some(life) = self.lives.get_mut(number)
            && life.is_of(stat.start_time)
        {
            life.start_ticks = Some(stat.start_time);
            // A changed name may be that of the next program.
            let is_open = life.end_ns.is_none() && life.name != stat.name;
            if is_open && !self.is_program_gone() {
                self.rename(number, stat.name);
            }
            return;
        }
        if proc::has_ended(stat.state) {
            return;
        }
        let inner = if self.same_namespace {
            tid as u32
        } else {
            match proc::task_status(self.pid, tid) {
                Ok(status) => status.inner_pid as u32,
                Err(_) => return,
            }
        };
        self.begin(Life {
            tid,
            inner,
            name: stat.name,
            start_ns: proc::start_ns(stat.start_time),
            start_ticks: Some(stat.start_time),
            start_slack_ns: proc::tick_ns(),
            ..Life::default()
        });
        self.new.push(tid);
    }

    pub(super) fn begin(&mut self, life: Life) -> u32 {
        if let Some(last) = self.lives.latest(life.tid) {
            self.ids_reused += 1;
            if self.lives.living(life.tid).is_some() {
                self.exited.push(last);
            }
        }
        self.lives.begin(life)
    }

    pub(super) fn end(&mut self, number: u32, time_ns: u64, is_exact: bool, cpu_ns: Option<u64>) {
        let is_first = self.lives.get(number).is_some_and(|life| life.end_ns.is_none());
        self.lives.end(number, time_ns, is_exact);
        if let Some(life) = self.lives.get_mut(number) {
            life.cpu_ns = life.cpu_ns.or(cpu_ns);
        }
        if is_first {
            self.exited.push(number);
        }
    }

    /// Ends the lives of all threads, since the process has executed another program.
    ///
    /// Returns the time of the exec, as exactly as it is known.
    pub(super) fn end_all(&mut self) -> u64 {
        self.listen();
        let time_ns = self.executed_ns.unwrap_or_else(monotonic_now_ns);
        let alive: Vec<u32> = self.lives.alive().map(|(number, _)| number).collect();
        for number in alive {
            self.end(number, time_ns, false, None);
        }
        time_ns
    }

    pub(super) fn rename(&mut self, number: u32, name: String) {
        if let Some(life) = self.lives.get_mut(number)
            && life.name != name
            && !name.is_empty()
        {
            life.name = name;
            if life.is_announced {
                self.renamed.push(number);
            }
        }
    }

    /// Returns the living thread with this id, or begins a life for it if only its samples are
    /// known.
    pub(super) fn find_or_begin(&mut self, id: Id, time_ns: u64) -> u32 {
        let known = |list: &Self| match id {
            Id::Inner(inner) => list.lives.living_inner(inner),
            Id::Outer(tid) => list.lives.living(tid),
        };
        if known(self).is_none() {
            match id {
                Id::Outer(tid) => self.read(tid),
                Id::Inner(inner) if self.same_namespace => self.read(inner as i32),
                Id::Inner(_) => self.scan(false),
            }
        }
        known(self).unwrap_or_else(|| {
            // The thread has exited, so its name cannot be read. In another namespace, neither can
            // its other id.
            let (tid, inner) = match id {
                Id::Inner(inner) => (inner as i32, inner),
                Id::Outer(tid) => (tid, if self.same_namespace { tid as u32 } else { 0 }),
            };
            let before = self.lives.latest(tid).and_then(|number| self.lives.get(number));
            let start_ns = before.and_then(|life| life.end_ns).unwrap_or(0);
            let start_ns = start_ns.min(time_ns);
            let start_slack_ns = UNKNOWN_NS;
            self.begin(Life { tid, inner, start_ns, start_slack_ns, ..Life::default() })
        })
    }

    pub(super) fn announce(
        &mut self,
        key: ThreadKey,
        time_ns: u64,
        changes: &mut Vec<ThreadChange>,
    ) {
        let (inner_pid, started_ns) = (self.inner_pid, self.started_ns);
        let Some(life) = self.lives.get_mut(key.0).filter(|life| !life.is_announced) else {
            return;
        };
        life.is_announced = true;
        // In the trace, threads that are older than the recording start with it.
        let start_ns = if life.start_slack_ns == UNKNOWN_NS { time_ns } else { life.start_ns };
        let announced = ThreadLife {
            tid: life.tid,
            inner: (inner_pid, life.inner),
            name: life.name.clone(),
            start_ns: start_ns.max(started_ns),
        };
        changes.push(ThreadChange::Seen { key, life: announced });
    }

    /// Returns the id of the process as the target sees it.
    pub(super) fn inner_pid(&self) -> u32 {
        self.inner_pid
    }

    /// Returns whether the process is known to have executed another program, or to be exiting.
    pub(super) fn is_program_gone(&self) -> bool {
        self.memory.as_ref().is_some_and(Memory::is_gone)
    }
}
