//! What the threads of the machine do, as far as it concerns the processes of a recording.
//!
//! All processes share the events of the machine: a hundred processes with events of their own
//! would let the kernel write each record a hundred times. Whoever reads the buffers hands the
//! records of other processes on to them.
//!
//! # Invariants
//! - A process gets all records from its registration on, each once. It is registered once at a
//!   time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::record::source::exit_times::ExitTimes;
use crate::record::source::task_record::{ForkedProcess, TaskChange, TaskEvent, TaskRecord};
use crate::record::source::task_rings::{LostRecords, TaskRings};

/// The most records of a process, and the most forks, that are kept until they are taken.
const KEPT_MAX: usize = 1 << 16;

/// The records of the machine, opened when the first process needs them.
#[derive(Default)]
pub(crate) struct MachineTasks {
    rings: OnceLock<Option<Mutex<SharedRings>>>,
    exit_times: OnceLock<Mutex<Option<ExitTimes>>>,
}

/// The buffers, and the records that were read for processes.
struct SharedRings {
    rings: TaskRings,
    lost: LostRecords,
    processes: HashMap<i32, ProcessRecords>,
    /// The processes that were started since they were taken, if somebody takes them.
    forks: Option<NewForks>,
}

/// The records of a process that it has not taken yet.
#[derive(Default)]
struct ProcessRecords {
    events: Vec<TaskEvent>,
    /// The numbers of records that were too many.
    lost: LostRecords,
}

/// Processes that were started.
#[derive(Default)]
struct NewForks {
    forks: Vec<ForkedProcess>,
    /// The number of lost records when they were taken last.
    lost: u64,
    has_overflowed: bool,
}

impl MachineTasks {
    fn rings(&self) -> Option<MutexGuard<'_, SharedRings>> {
        let open = || TaskRings::of_machine().ok().map(|rings| Mutex::new(SharedRings::new(rings)));
        let rings = self.rings.get_or_init(open).as_ref()?;
        Some(rings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers a process; `None` if its records need events of its own.
    pub(crate) fn register(self: &Arc<Self>, pid: i32) -> Option<Registration> {
        let mut rings = self.rings()?;
        // What happened before is no change.
        rings.drain();
        rings.processes.insert(pid, ProcessRecords::default());
        Some(Registration { machine: Arc::clone(self), pid, lost: rings.lost })
    }

    /// Begins to keep the processes that are started on the machine. Returns whether it can.
    pub(crate) fn keep_forks(&self) -> bool {
        let Some(mut rings) = self.rings() else { return false };
        let lost = rings.lost.lives;
        rings.forks = Some(NewForks { lost, ..NewForks::default() });
        true
    }

    /// Returns the processes that were started since the last call, in order; `None` if some may
    /// be missing.
    pub(crate) fn take_forks(&self) -> Option<Vec<ForkedProcess>> {
        let mut rings = self.rings()?;
        rings.drain();
        let lost = rings.lost.lives;
        let taken = std::mem::take(rings.forks.as_mut()?);
        rings.forks = Some(NewForks { lost, ..NewForks::default() });
        let mut forks = taken.forks;
        forks.sort_by_key(|fork| fork.time_ns);
        (taken.lost == lost && !taken.has_overflowed).then_some(forks)
    }

    /// Returns the CPU times of threads that exit, if the kernel reports them.
    pub(crate) fn exit_times(&self) -> MutexGuard<'_, Option<ExitTimes>> {
        let times = self.exit_times.get_or_init(|| Mutex::new(ExitTimes::open().ok()));
        times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedRings {
    fn new(rings: TaskRings) -> Self {
        let (lost, processes) = Default::default();
        Self { rings, lost, processes, forks: None }
    }

    /// Reads all buffers.
    fn drain(&mut self) {
        let (processes, forks) = (&mut self.processes, &mut self.forks);
        let lost = self.rings.drain(|record| match record {
            TaskRecord::Changed(pid, event) => {
                if let Some(process) = processes.get_mut(&pid) {
                    process.add(event);
                }
            }
            TaskRecord::Forked(fork) => {
                if let Some(forks) = forks {
                    forks.add(fork);
                }
            }
            TaskRecord::Lost(_) => {}
        });
        self.lost.lives += lost.lives;
        self.lost.code += lost.code;
    }
}

impl ProcessRecords {
    fn add(&mut self, event: TaskEvent) {
        if self.events.len() < KEPT_MAX {
            self.events.push(event);
        } else if matches!(event.change, TaskChange::Mapped { .. }) {
            self.lost.code += 1;
        } else {
            self.lost.lives += 1;
        }
    }
}

impl NewForks {
    fn add(&mut self, fork: ForkedProcess) {
        match self.forks.len() < KEPT_MAX {
            true => self.forks.push(fork),
            false => self.has_overflowed = true,
        }
    }
}

/// A process whose records are kept until it takes them.
pub(crate) struct Registration {
    machine: Arc<MachineTasks>,
    pid: i32,
    /// The numbers of lost records when the process took its records last.
    lost: LostRecords,
}

impl Registration {
    /// Adds the records of the process since the last call, in any order. Returns how many records
    /// were lost since then, which may be those of other processes.
    pub(crate) fn drain(&mut self, out: &mut Vec<TaskEvent>) -> LostRecords {
        let Some(mut rings) = self.machine.rings() else { return LostRecords::default() };
        rings.drain();
        let own = rings.processes.get_mut(&self.pid).map(std::mem::take).unwrap_or_default();
        let before = std::mem::replace(&mut self.lost, rings.lost);
        out.extend(own.events);
        LostRecords {
            lives: own.lost.lives + self.lost.lives - before.lives,
            code: own.lost.code + self.lost.code - before.code,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(mut rings) = self.machine.rings() {
            rings.processes.remove(&self.pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    fn own() -> i32 {
        std::process::id() as i32
    }

    #[test]
    fn each_process_gets_its_own_records_whoever_reads_them() {
        let machine = Arc::<MachineTasks>::default();
        let mut child = Command::new("sh").args(["-c", "read x; exit"]).stdin(piped()).spawn();
        let child = child.as_mut().unwrap();
        let pid = child.id() as i32;
        let registrations = (machine.register(own()), machine.register(pid));
        // Not permitted to everyone.
        let (Some(mut mine), Some(mut others)) = registrations else { return };
        drop(child.stdin.take());
        child.wait().unwrap();
        let tid = std::thread::spawn(nix::unistd::gettid).join().unwrap().as_raw();
        let (mut of_mine, mut of_other) = (Vec::new(), Vec::new());
        assert_eq!(mine.drain(&mut of_mine), LostRecords::default());
        assert_eq!(others.drain(&mut of_other), LostRecords::default());
        let exits = |events: &[TaskEvent], tid| {
            let is_exit = |event: &&TaskEvent| {
                event.tid == tid && matches!(event.change, TaskChange::Exited { .. })
            };
            events.iter().filter(is_exit).count()
        };
        assert_eq!((exits(&of_mine, tid), exits(&of_mine, pid)), (1, 0));
        assert_eq!((exits(&of_other, tid), exits(&of_other, pid)), (0, 1));
        of_other.clear();
        others.drain(&mut of_other);
        assert_eq!(of_other, [], "each once");
    }

    fn piped() -> std::process::Stdio {
        std::process::Stdio::piped()
    }

    #[test]
    fn started_processes_are_kept_for_one_who_takes_them() {
        let machine = Arc::<MachineTasks>::default();
        if !machine.keep_forks() {
            return;
        }
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let (pid, until) = (child.id() as i32, Instant::now() + Duration::from_secs(5));
        let fork = loop {
            let forks = machine.take_forks().unwrap();
            if let Some(fork) = forks.into_iter().find(|fork| fork.pid == pid) {
                break fork;
            }
            assert!(Instant::now() < until);
        };
        assert_eq!(fork.parent, own());
        assert!(machine.take_forks().unwrap().iter().all(|fork| fork.pid != pid), "once");
    }

    #[test]
    fn more_records_than_are_kept_count_as_lost() {
        let mut records = ProcessRecords::default();
        for time_ns in 0..KEPT_MAX as u64 + 2 {
            records.add(TaskEvent { time_ns, tid: 1, change: TaskChange::Executed(String::new()) });
        }
        assert_eq!((records.events.len(), records.lost.lives), (KEPT_MAX, 2));
        let mut forks = NewForks::default();
        for time_ns in 0..KEPT_MAX as u64 + 1 {
            assert!(!forks.has_overflowed);
            forks.add(ForkedProcess { time_ns, pid: 2, parent: 1 });
        }
        assert!(forks.has_overflowed);
    }
}
