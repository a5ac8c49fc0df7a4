//! Hits in the kernel at another rate: other events, in the same buffers.
//!
//! # Invariants
//! - A hit stands for what the event did that it is of: the buffers are emptied between the last hit of
//!   the one family and the first of the next.

use std::io;
use std::os::fd::OwnedFd;

use super::{KernelEvents, check_descriptors, cpus, share, stack_len};
use crate::record::perf::{self, Scope, Setup};

/// A family that is opened, and not on yet.
pub(in crate::record) struct Slower {
    events: Vec<OwnedFd>,
    share: u64,
}

/// What a hit stands for at a rate that is lowered by 2 to the power of `shift`, in units of
/// [`super::SHARE`].
pub(super) fn slow_share(setup: Setup, shift: u32) -> u64 {
    share(setup.period_ns << shift) << shift
}

impl KernelEvents {
    /// Opens the next family, for all threads and cores.
    pub(in crate::record) fn open_slower(
        &self,
        pid: i32,
        setup: Setup,
        shift: u32,
    ) -> io::Result<Slower> {
        let cpus = cpus();
        // As many as there are, once more.
        check_descriptors(pid, cpus.len() * 2)?;
        let share = slow_share(setup, shift);
        let period_ns = setup.period_ns.saturating_mul(share) / super::SHARE;
        let (mut events, stack) = (Vec::new(), stack_len(period_ns));
        for (cpu, owner) in cpus.into_iter().zip(&self.owners) {
            let mut open = |tid: i32| -> io::Result<()> {
                let event = perf::open_kernel(Scope::Family, (tid, cpu), period_ns, stack)?;
                perf::share_output(&event, owner)?;
                events.push(event);
                Ok(())
            };
            perf::each_thread(pid, |tid| match open(tid) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
                opened => Ok(opened.is_ok()),
            })?;
        }
        Ok(Slower { events, share })
    }

    /// Goes on with that family, which is off still, as is the one before: those events are given back,
    /// to be closed.
    pub(in crate::record) fn change(&mut self, slower: Slower) -> Vec<OwnedFd> {
        self.drain();
        self.share = slower.share;
        self.accepted.clear();
        std::mem::replace(&mut self.events, slower.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_at_a_lower_rate_stands_for_as_much_more_time_as_it_is_rarer() {
        let setup = Setup { period_ns: 100_000, kernel: true, cookie: 0 };
        // At 10 kHz a hit stands for five periods and a bit; from 1 kHz on for two and a bit.
        let shares = [0, 1, 3, 6].map(|shift| slow_share(setup, shift));
        assert_eq!(shares, [5_382, 2 * 3_382, 8 * 2_382, 64 * 2_382]);
    }
}
