//! The CPU clock of a process, read from another process.

use std::time::Instant;

use nix::time::ClockId;
use nix::unistd::Pid;

use crate::record::contract::clock::clock_ns;
use crate::record::source::kernel::cpus;

/// The target's CPU clock, as the recorder reads it.
#[derive(Debug, Clone)]
pub(crate) struct CpuClock {
    clock: Option<ClockId>,
    start_ns: u64,
    last_ns: u64,
    last_read: Instant,
}

impl CpuClock {
    /// Starts to count the CPU time of a process from now on.
    pub(crate) fn start(pid: i32) -> Self {
        let clock = nix::time::clock_getcpuclockid(Pid::from_raw(pid)).ok();
        let now = clock.map_or(0, clock_ns);
        Self { clock, start_ns: now, last_ns: now, last_read: Instant::now() }
    }

    /// Reads the clock. Once the process has exited, the last reading stays.
    pub(crate) fn advance(&mut self) {
        let read = Instant::now();
        let now_ns = self.clock.map_or(0, clock_ns);
        if now_ns > 0 {
            (self.last_ns, self.last_read) = (self.last_ns.max(now_ns), read);
        }
    }

    /// Extends this count to the end of a later count of the same clock, and returns the CPU time
    /// between the two, in nanoseconds.
    pub(crate) fn extend(&mut self, later: &Self) -> u64 {
        let between_ns = later.start_ns.saturating_sub(self.last_ns);
        self.last_ns = self.last_ns.max(later.last_ns);
        between_ns
    }

    /// Adds the CPU time of another process. The sum has no clock that could be read again.
    pub(crate) fn join(&mut self, other: &Self) {
        let used_ns = self.used_ns() + other.used_ns();
        *self = Self { clock: None, start_ns: 0, last_ns: used_ns, last_read: self.last_read };
    }

    /// Returns the CPU time since the start, in nanoseconds.
    pub(crate) fn used_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.start_ns)
    }

    /// Returns an upper bound of the CPU time since the start, in nanoseconds.
    ///
    /// It is exact while the process exists. After that it assumes that the process ran on all
    /// cores since the last reading.
    pub(crate) fn used_at_most_ns(&self) -> u64 {
        match self.clock.map(clock_ns).filter(|now_ns| *now_ns > 0) {
            Some(now_ns) => now_ns.saturating_sub(self.start_ns),
            None => {
                let since_ns = u64::try_from(self.last_read.elapsed().as_nanos());
                let unread_ns = since_ns.unwrap_or(u64::MAX).saturating_mul(cpus().len() as u64);
                self.used_ns().saturating_add(unread_ns)
            }
        }
    }

    /// Makes the count of a process that has exited, in nanoseconds.
    pub(crate) fn of_exited(used_ns: u64) -> Self {
        Self { clock: None, start_ns: 0, last_ns: used_ns, last_read: Instant::now() }
    }

    #[cfg(test)]
    pub(crate) fn made_up(start_ns: u64, last_ns: u64) -> Self {
        Self { clock: None, start_ns, last_ns, last_read: Instant::now() }
    }
}
