//! The directory of a process's threads, checked repeatedly for changes.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use nix::time::ClockId;

/// The open directory `/proc/PID/task`.
#[derive(Debug)]
pub struct TaskFolder(File);

impl TaskFolder {
    /// Opens the directory of a process.
    pub fn open(pid: i32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/task")).map(Self)
    }

    /// Returns the number of threads. This takes a third of a microsecond, however many there are.
    /// 0 when the process has exited.
    pub fn count(&self) -> io::Result<u64> {
        // The directory itself and its parent are links, too.
        Ok(self.0.metadata()?.nlink().saturating_sub(2))
    }
}

/// Returns the length of the clock tick that start times are counted in, in nanoseconds.
pub fn tick_ns() -> u64 {
    1_000_000_000 / procfs::ticks_per_second().max(1)
}

/// Returns the CLOCK_MONOTONIC time of a start time in ticks since boot: the start of that tick.
pub fn start_ns(ticks: u64) -> u64 {
    let read = |clock: ClockId| {
        clock.now().map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
    };
    // The time that the machine was suspended, which only one of the clocks counts. Time that
    // passes between the two reads makes the difference too long, so the shortest of a few is
    // taken.
    let difference = || {
        let monotonic = read(ClockId::CLOCK_MONOTONIC);
        read(ClockId::CLOCK_BOOTTIME).saturating_sub(monotonic)
    };
    let suspended = difference().min(difference()).min(difference());
    ticks.saturating_mul(tick_ns()).saturating_sub(suspended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;

    #[test]
    fn threads_are_counted_without_reading_the_list() {
        let folder = TaskFolder::open(std::process::id() as i32).unwrap();
        // Other tests start and end threads meanwhile.
        let agrees = || {
            let count = folder.count().unwrap();
            let list = proc::tasks(std::process::id() as i32).unwrap().len() as u64;
            count == list && folder.count().unwrap() == count
        };
        assert!((0..1000).any(|_| agrees()));
    }

    #[test]
    fn a_start_time_is_in_its_tick() {
        let now = || {
            let time = ClockId::CLOCK_MONOTONIC.now().unwrap();
            time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
        };
        let pid = std::process::id() as i32;
        let before = now();
        let start = std::thread::spawn(move || {
            let stat = proc::task_stat(pid, nix::unistd::gettid().as_raw()).unwrap();
            start_ns(stat.start_time)
        });
        let start = start.join().unwrap();
        assert!(start + 2 * tick_ns() > before && start <= now(), "{start} {before}");
    }
}
