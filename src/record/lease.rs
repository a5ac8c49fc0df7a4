//! The lease of the agent's timers, renewed by a thread of its own.
//!
//! Timers stop by themselves when nobody renews their lease. The recorder's loop cannot be trusted
//! with that alone: where thousands of threads want each processor, one turn of it may take longer
//! than the lease, and the timers of all would end again and again.
//!
//! # Invariants
//! - Nothing is renewed after the value is gone: the segment may be another program's by then.
//! - A loop that hangs does not keep the timers: it has so many seconds for a turn, no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use traceprof_abi::segment::DataSegment;

use super::clock::monotonic_now_ns;

/// How long timers and the loop may go on without a sign of life.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// How long timers go on without one from the recorder.
    length: Duration,
    /// Between two renewals: a thread that sleeps so long is late by less than the rest of a lease,
    /// however many others want its processor.
    period: Duration,
    /// How long the loop may take for a turn. What it is late with by seconds is the reading of ten
    /// thousand threads, or an answer of the guardian, which stops one of them. A loop that has
    /// not come round after this will not: its tables are long full, and hits are only a burden.
    turn_max: Duration,
}

impl Terms {
    /// Those of a recording: timers end two seconds after the recorder's death at the latest.
    const USUAL: Self = Self {
        length: Duration::from_millis(1500),
        period: Duration::from_millis(250),
        turn_max: Duration::from_secs(20),
    };
}

/// Keeps a lease until it is dropped.
pub(super) struct Lease {
    term: Arc<Term>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

/// What the loop and the thread share.
struct Term {
    data: DataSegment,
    terms: Terms,
    /// When the loop made its last turn, CLOCK_MONOTONIC nanoseconds.
    turned_ns: AtomicU64,
}

impl Lease {
    /// Of the timers of the agent with this segment. Where no thread may be had, turns alone renew it.
    pub(super) fn start(data: DataSegment) -> Self {
        Self::with_terms(data, Terms::USUAL)
    }

    fn with_terms(data: DataSegment, terms: Terms) -> Self {
        let term = Arc::new(Term { data, terms, turned_ns: AtomicU64::new(0) });
        let (stop, stopped) = channel();
        let keeper = Arc::clone(&term);
        let thread = std::thread::Builder::new().name("lease".to_owned());
        let thread = thread.spawn(move || keeper.keep(&stopped));
        let lease = Self { term, thread: thread.ok().map(|thread| (stop, thread)) };
        lease.turned();
        lease
    }

    /// The loop has made a turn.
    pub(super) fn turned(&self) {
        let now_ns = monotonic_now_ns();
        // Relaxed: a time, nothing else is read on its account.
        self.term.turned_ns.store(now_ns, Ordering::Relaxed);
        self.term.renew(now_ns);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // It cannot panic, and there is nobody to tell.
            let _ = thread.join();
        }
    }
}

impl Term {
    fn keep(&self, stopped: &Receiver<()>) {
        while stopped.recv_timeout(self.terms.period) == Err(RecvTimeoutError::Timeout) {
            self.renew(monotonic_now_ns());
        }
    }

    /// Puts off the end of all timers, unless the loop hangs.
    fn renew(&self, now_ns: u64) {
        // Relaxed: as above.
        let turned_ns = self.turned_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(turned_ns) < nanoseconds(self.terms.turn_max) {
            let until_ns = now_ns.saturating_add(nanoseconds(self.terms.length));
            // Relaxed: a handler that sees it late ends a timer that is armed again.
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
    use crate::record::clock::wait_until;
    use crate::record::shm::own_data;

    const SECOND_NS: u64 = 1_000_000_000;

    fn until(data: DataSegment) -> u64 {
        data.control().lease_until_ns.load(Ordering::Relaxed)
    }

    /// Terms of a recording whose loop turned so long before `now_ns`.
    fn term(data: DataSegment, now_ns: u64, ago_ns: u64) -> Term {
        Term { data, terms: Terms::USUAL, turned_ns: AtomicU64::new(now_ns - ago_ns) }
    }

    #[test]
    fn a_loop_that_stands_still_for_seconds_keeps_its_timers_and_one_that_hangs_does_not() {
        let data = own_data();
        let now_ns = 1000 * SECOND_NS;
        let renewed = |ago_ns: u64| {
            data.control().lease_until_ns.store(0, Ordering::Relaxed);
            term(data, now_ns, ago_ns).renew(now_ns);
            until(data)
        };
        let whole = now_ns + nanoseconds(Terms::USUAL.length);
        assert_eq!([0, 5, 19].map(|seconds| renewed(seconds * SECOND_NS)), [whole; 3]);
        assert_eq!([20, 21, 900].map(|seconds| renewed(seconds * SECOND_NS)), [0; 3]);
    }

    #[test]
    fn the_lease_is_renewed_without_a_turn_until_there_should_have_been_one() {
        let data = own_data();
        let turn_max = Duration::from_secs(2);
        let terms = Terms {
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
        lease.turned();
        let turned = until(data);
        assert!(turned > monotonic_now_ns() - SECOND_NS);
        wait_until("it is not renewed again", || until(data) > turned);
    }

    #[test]
    fn nothing_is_renewed_when_the_lease_is_gone() {
        let data = own_data();
        let period = Duration::from_millis(1);
        let lease = Lease::with_terms(data, Terms { period, ..Terms::USUAL });
        let first = until(data);
        wait_until("it is not renewed", || until(data) > first);
        drop(lease);
        data.control().lease_until_ns.store(7, Ordering::Relaxed);
        std::thread::sleep(period * 20);
        assert_eq!(until(data), 7);
    }
}
