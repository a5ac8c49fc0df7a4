//! The lease of the agent's timers, renewed by a thread of its own.
//!
//! Timers stop by themselves when their lease is not renewed. The recorder's loop alone cannot
//! renew it reliably. Where thousands of threads compete for each processor, one turn may take
//! longer than the lease, and all timers would stop again and again.
//!
//! # Invariants
//! - Nothing is renewed after the lease is dropped: the segment may serve another program by then.
//! - A hanging loop does not keep the timers running: after a fixed number of seconds without a
//!   turn, the thread stops renewing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use traceprof_abi::segment::DataSegment;

use crate::record::contract::clock::monotonic_now_ns;

/// The limits within which the recorder must show that it is alive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseTerms {
    /// How long timers run without a renewal.
    length: Duration,
    /// The pause between two renewals.
    ///
    /// A thread that sleeps this long wakes up late by less than the remainder of a lease, whatever
    /// competes for its processor.
    period: Duration,
    /// The longest turn of the loop.
    ///
    /// Reading ten thousand threads, or waiting for the guardian to stop one of them, can delay it
    /// by seconds. A loop that takes longer than this hangs. Its tables are full by then, and
    /// further expiries only burden the target.
    turn_max: Duration,
}

impl LeaseTerms {
    /// The terms of a recording: timers stop at most two seconds after the recorder's death.
    const USUAL: Self = Self {
        length: Duration::from_millis(1500),
        period: Duration::from_millis(250),
        turn_max: Duration::from_secs(20),
    };
}

/// A lease that is renewed until it is dropped.
pub(crate) struct Lease {
    state: Arc<LeaseState>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

/// The state that the loop and the thread share.
struct LeaseState {
    data: DataSegment,
    terms: LeaseTerms,
    /// The time of the loop's last turn in CLOCK_MONOTONIC nanoseconds.
    turned_ns: AtomicU64,
}

impl Lease {
    /// Starts the lease for the agent with this segment.
    ///
    /// If no thread can be started, only turns of the loop renew the lease.
    pub(crate) fn start(data: DataSegment) -> Self {
        Self::with_terms(data, LeaseTerms::USUAL)
    }

    fn with_terms(data: DataSegment, terms: LeaseTerms) -> Self {
        let state = Arc::new(LeaseState { data, terms, turned_ns: AtomicU64::new(0) });
        let (stop, stopped) = channel();
        let keeper = Arc::clone(&state);
        let thread = std::thread::Builder::new().name("lease".to_owned());
        let thread = thread.spawn(move || keeper.keep(&stopped));
        let lease = Self { state, thread: thread.ok().map(|thread| (stop, thread)) };
        lease.note_turn();
        lease
    }

    /// Notes a turn of the loop.
    pub(crate) fn note_turn(&self) {
        let now_ns = monotonic_now_ns();
        // Relaxed: a time on which no other read depends.
        self.state.turned_ns.store(now_ns, Ordering::Relaxed);
        self.state.renew(now_ns);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // The thread cannot panic, and a destructor has nobody to report to.
            let _ = thread.join();
        }
    }
}

impl LeaseState {
    fn keep(&self, stopped: &Receiver<()>) {
        while stopped.recv_timeout(self.terms.period) == Err(RecvTimeoutError::Timeout) {
            self.renew(monotonic_now_ns());
        }
    }

    /// Extends the lease of all timers, unless the loop hangs.
    fn renew(&self, now_ns: u64) {
        // Relaxed: see `note_turn`.
        let turned_ns = self.turned_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(turned_ns) < nanoseconds(self.terms.turn_max) {
            let until_ns = now_ns.saturating_add(nanoseconds(self.terms.length));
            // Relaxed: a handler that sees it late deletes a timer, which is then armed again.
            self.data.control().lease_until_ns.store(until_ns, Ordering::Relaxed);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::contract::clock::wait_until;
    use crate::record::target::shm::own_data;

    const SECOND_NS: u64 = 1_000_000_000;

    fn until(data: DataSegment) -> u64 {
        data.control().lease_until_ns.load(Ordering::Relaxed)
    }

    /// Makes the state of a recording whose loop made its last turn this long before `now_ns`.
    fn state(data: DataSegment, now_ns: u64, ago_ns: u64) -> LeaseState {
        LeaseState { data, terms: LeaseTerms::USUAL, turned_ns: AtomicU64::new(now_ns - ago_ns) }
    }

    #[test]
    fn a_slow_loop_keeps_its_timers_and_a_hanging_one_does_not() {
        let data = own_data();
        let now_ns = 1000 * SECOND_NS;
        let renewed = |ago_ns: u64| {
            data.control().lease_until_ns.store(0, Ordering::Relaxed);
            state(data, now_ns, ago_ns).renew(now_ns);
            until(data)
        };
        let whole = now_ns + nanoseconds(LeaseTerms::USUAL.length);
        assert_eq!([0, 5, 19].map(|seconds| renewed(seconds * SECOND_NS)), [whole; 3]);
        assert_eq!([20, 21, 900].map(|seconds| renewed(seconds * SECOND_NS)), [0; 3]);
    }

    #[test]
    fn the_lease_is_renewed_without_a_turn_until_one_is_overdue() {
        let data = own_data();
        let turn_max = Duration::from_secs(2);
        let terms = LeaseTerms {
            length: Duration::from_millis(100),
            period: Duration::from_millis(5),
            turn_max,
        };
        let lease = Lease::with_terms(data, terms);
        let first = until(data);
        assert!(first > monotonic_now_ns() - SECOND_NS);
        wait_until("it is not renewed", || until(data) > first + nanoseconds(terms.length));
        wait_until("it does not end", || monotonic_now_ns() > until(data) + SECOND_NS);
        assert!(until(data) < first + nanoseconds(turn_max), "renewed for a loop that hangs");
        lease.note_turn();
        let renewed = until(data);
        assert!(renewed > monotonic_now_ns() - SECOND_NS);
        wait_until("it is not renewed again", || until(data) > renewed);
    }

    #[test]
    fn nothing_is_renewed_when_the_lease_is_gone() {
        let data = own_data();
        let period = Duration::from_millis(1);
        let lease = Lease::with_terms(data, LeaseTerms { period, ..LeaseTerms::USUAL });
        let first = until(data);
        wait_until("it is not renewed", || until(data) > first);
        drop(lease);
        data.control().lease_until_ns.store(7, Ordering::Relaxed);
        std::thread::sleep(period * 20);
        assert_eq!(until(data), 7);
    }
}
