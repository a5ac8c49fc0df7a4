//! Thread starts, exits, renames and code mappings of one process, reported by the kernel as they
//! happen.
//!
//! # Invariants
//! - Times are CLOCK_MONOTONIC nanoseconds, ascending within one [`TaskEvents::drain`]; a core's
//!   late records come with the next one.

use std::sync::Arc;
use std::time::Duration;

use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::periodic::Periodic;
use crate::record::source::machine_tasks::{MachineTasks, Registration};
use crate::record::source::task_record::{TaskChange, TaskEvent, TaskRecord};
use crate::record::source::task_rings::{LostRecords, TaskRings};

/// The interval between two readings of the CPU times of exits if no thread of the process exits.
/// They come from the whole machine, and their buffer holds some ten thousand.
const EXIT_DRAIN: Duration = Duration::from_millis(400);

/// The task records of one process.
pub(crate) struct TaskEvents {
    pid: i32,
    source: RecordSource,
    machine: Arc<MachineTasks>,
    exit_drain: Periodic,
    /// The number of overruns of the records with CPU times that are part of `lost`.
    overruns: u64,
    /// The number of records that found a ring full; the next scan must make up for them.
    ///
    /// Each overrun of the records with CPU times also counts as one.
    pub(crate) lost: u64,
    /// The number of lost records of mappings; the next read of the mappings must make up for them.
    pub(crate) code_lost: u64,
}

/// Where the records of a process are from.
enum RecordSource {
    /// The events of the machine.
    Machine(Registration),
    /// Events of its own.
    Own(TaskRings),
}

impl TaskEvents {
    /// Starts the records of all threads of the process.
    ///
    /// Unavailable kinds of records are left out.
    pub(crate) fn open(pid: i32, machine: &Arc<MachineTasks>) -> Self {
        // First, since it may start a thread in this process.
        let overruns = machine.exit_times().as_mut().map_or(0, |times| {
            times.add(pid);
            times.overruns
        });
        // The machine's need a permission, and the sampling events may need the descriptors.
        let source = match machine.register(pid) {
            Some(registration) => RecordSource::Machine(registration),
            None => RecordSource::Own(TaskRings::of_family(pid)),
        };
        Self {
            pid,
            source,
            machine: Arc::clone(machine),
            exit_drain: Periodic::new(EXIT_DRAIN),
            overruns,
            lost: 0,
            code_lost: 0,
        }
    }

    /// Returns whether starts and exits are reported.
    pub(crate) fn has_lives(&self) -> bool {
        match &self.source {
            RecordSource::Machine(_) => true,
            RecordSource::Own(rings) => rings.has_lives(),
        }
    }

    /// Returns whether the CPU time of exiting threads is reported.
    #[cfg(test)]
    pub(crate) fn has_cpu_times(&self) -> bool {
        self.machine.exit_times().is_some()
    }

    #[cfg(test)]
    pub(crate) fn close(&mut self) {
        self.source = RecordSource::Own(TaskRings::default());
    }

    /// Replaces the contents of `out` with all changes since the last call, in order.
    pub(crate) fn drain(&mut self, out: &mut Vec<TaskEvent>) {
        out.clear();
        let (before, has_lives) = (self.lost, self.has_lives());
        let lost = self.read(out);
        (self.lost, self.code_lost) = (self.lost + lost.lives, self.code_lost + lost.code);
        out.sort_by_key(|event| event.time_ns);
        let is_exit = |event: &TaskEvent| matches!(event.change, TaskChange::Exited { .. });
        if has_lives && lost.lives == 0 && !self.exit_drain.is_due() && !out.iter().any(is_exit) {
            return;
        }
        let mut exit_times = self.machine.exit_times();
        let Some(times) = exit_times.as_mut() else { return };
        // After the rings: the kernel has sent the CPU time of each exit that they reported by now.
        if times.drain().is_err() {
            *exit_times = None;
            return;
        }
        self.lost += times.overruns - std::mem::replace(&mut self.overruns, times.overruns);
        for event in out.iter_mut() {
            if let TaskChange::Exited { cpu_ns } = &mut event.change {
                *cpu_ns = times.take(self.pid, event.tid);
            }
        }
        if !has_lives || self.lost > before {
            // Their exits were not reported, so a later thread with the same id would get these
            // times.
            let time_ns = monotonic_now_ns();
            out.extend(times.take_all(self.pid).into_iter().map(|(tid, cpu_ns)| {
                let change = TaskChange::Exited { cpu_ns: Some(cpu_ns) };
                TaskEvent { time_ns, tid, change }
            }));
        }
    }

    /// Adds the records since the last call, in any order, and returns how many were lost.
    fn read(&mut self, out: &mut Vec<TaskEvent>) -> LostRecords {
        let pid = self.pid;
        match &mut self.source {
            RecordSource::Machine(registration) => registration.drain(out),
            RecordSource::Own(rings) => rings.drain(|record| match record {
                TaskRecord::Changed(of, event) if of == pid => out.push(event),
                _ => {}
            }),
        }
    }
}

impl Drop for TaskEvents {
    fn drop(&mut self) {
        if let Some(times) = self.machine.exit_times().as_mut() {
            times.remove(self.pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

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
    fn check(source: Option<RecordSource>) {
        let mut events = TaskEvents::open(own(), &Arc::default());
        let Some(source) = source else {
            // Only privileged users may see other users' threads.
            assert!(!nix::unistd::geteuid().is_root());
            return;
        };
        events.source = source;
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
        let machine = Arc::<MachineTasks>::default();
        check(machine.register(own()).map(RecordSource::Machine));
    }

    #[test]
    fn inherited_events_report_a_threads_life() {
        check(Some(RecordSource::Own(TaskRings::of_family(own()))));
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
        let mut events = TaskEvents::open(own(), &Arc::default());
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
        let mut events = TaskEvents::open(own(), &Arc::default());
        // Records of CPU times are not permitted everywhere.
        match events.machine.exit_times().as_mut() {
            Some(times) => times.overruns = 2,
            None => return,
        }
        events.exit_drain = Periodic::new(Duration::ZERO);
        let before = events.lost;
        events.drain(&mut Vec::new());
        assert!(events.lost >= before + 2);
        let after = events.lost;
        events.drain(&mut Vec::new());
        assert!(events.lost < after + 2, "counted once");
    }
}
