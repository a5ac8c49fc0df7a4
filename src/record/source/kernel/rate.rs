//! Kernel-mode sampling at another rate: new events in the same buffers.
//!
//! # Invariants
//! - A sample has the weight of the event that took it: the recorder drains the buffers between the
//!   last sample of one family and the first of the next.

use std::io;
use std::os::fd::OwnedFd;

use crate::record::contract::sampling::Setup;
use crate::record::source::kernel::buffers::check_descriptors;
use crate::record::source::kernel::{KernelEvents, SHARE, cpus, modes_of, share};
use crate::record::source::perf::{self, Scope};

/// A family of open events that is not yet enabled.
pub(crate) struct SlowerFamily {
    events: Vec<OwnedFd>,
    share: u64,
}

/// Returns the weight of a sample at a rate lowered by 2 to the power of `shift`, in units of
/// [`crate::record::source::kernel::SHARE`].
pub(super) fn slow_share(setup: Setup, shift: u32) -> u64 {
    share(setup.period_ns << shift) << shift
}

impl KernelEvents {
    /// Opens the next family for all threads and cores.
    pub(crate) fn open_slower(
        &self,
        pid: i32,
        setup: Setup,
        shift: u32,
    ) -> io::Result<SlowerFamily> {
        let cpus = cpus();
        // The current family keeps its descriptors until the change.
        check_descriptors(pid, cpus.len(), self.events.len())?;
        let share = slow_share(setup, shift);
        let period_ns = setup.period_ns.saturating_mul(share) / SHARE;
        let (mut events, content) = (Vec::new(), self.content(period_ns));
        for (cpu, owner) in cpus.into_iter().zip(&self.owners) {
            let mut open = |tid: i32| -> io::Result<()> {
                let family = (Scope::Family, modes_of(self.modes, &self.narrow, pid, tid));
                let event = perf::open_kernel(family, (tid, cpu), period_ns, content)?;
                perf::share_output(&event, owner)?;
                events.push(event);
                Ok(())
            };
            perf::each_thread(pid, |tid| match open(tid) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
                opened => Ok(opened.is_ok()),
            })?;
        }
        Ok(SlowerFamily { events, share })
    }

    /// Changes to the next family while both are disabled, and returns the old events for closing.
    pub(crate) fn change(&mut self, slower: SlowerFamily) -> Vec<OwnedFd> {
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
    fn a_sample_at_a_lower_rate_has_a_proportionally_larger_weight() {
        let setup = Setup { period_ns: 100_000, ..Setup::default() };
        // A sample has the weight of a little more than five periods at 10 kHz, and of a little
        // more than two from 1 kHz down.
        let shares = [0, 1, 3, 6].map(|shift| slow_share(setup, shift));
        assert_eq!(shares, [5_382, 2 * 3_382, 8 * 2_382, 64 * 2_382]);
    }
}
