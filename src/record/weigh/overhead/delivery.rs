//! What the kernel takes to deliver one signal of the sampling, measured in this process once.
//!
//! A thread of ours does the same work without and with such signals, whose handler does nothing:
//! what it takes longer by its own CPU clock, by the number of signals, is the interrupt, the
//! signal's frame and the way back. Where there are perf events, theirs is measured. Else the
//! signals are sent by the thread to itself: that is without the interrupt, which a timer's signal
//! shares with the kernel's tick.
//!
//! # Invariants
//! - The disposition of the signal is as before when it is over, and no signal is pending.
//! - One measurement at a time: the disposition is the whole process's, and so is the count.
//!
//! # Safety
//! Installs a handler that adds one to a counter, and takes it away.
#![allow(unsafe_code, reason = "sigaction has no safe wrapper")]

use std::hint::black_box;
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::time::ClockId;
use traceprof_abi::event::EventWord;
use traceprof_abi::sync::{AtomicU64, Ordering};

use crate::record::contract::clock::clock_ns;
use crate::record::contract::sampling::Setup;
use crate::record::source::perf::{self, Scope};

/// Times that the work is done with signals, of which the middle one counts.
const ROUNDS: usize = 5;
/// How much work.
const LOOPS: u64 = 400_000;
/// CPU time between two signals of events.
const PERIOD_NS: u64 = 25_000;
/// Signals that the thread sends to itself in a round.
const SENT: u64 = 50;

/// Signals that came.
static CAME: AtomicU64 = AtomicU64::new(0);

/// What a signal is delivered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delivery {
    /// Nanoseconds for each.
    pub(super) ns: u64,
    /// It is that of perf events, the interrupt included.
    pub(super) is_of_events: bool,
}

/// What it takes here; measured at the first call, which takes some milliseconds.
pub(super) fn delivery(is_of_events: bool) -> Delivery {
    static OF_EVENTS: OnceLock<Option<u64>> = OnceLock::new();
    static SENT_ONES: OnceLock<Option<u64>> = OnceLock::new();
    let events = if is_of_events { *OF_EVENTS.get_or_init(|| measure(with_events)) } else { None };
    match events {
        Some(ns) => Delivery { ns, is_of_events: true },
        None => {
            let ns = *SENT_ONES.get_or_init(|| measure(with_sent));
            Delivery { ns: ns.unwrap_or(0), is_of_events: false }
        }
    }
}

/// What a round takes longer with signals, and how many came.
type Round = fn() -> Option<(u64, u64)>;

fn measure(round: Round) -> Option<u64> {
    static ALONE: Mutex<()> = Mutex::new(());
    // It guards no value that a panic could leave half changed.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let count = SigHandler::Handler(count);
    let ours = SigAction::new(count, SaFlags::SA_RESTART | SaFlags::SA_ONSTACK, SigSet::all());
    // SAFETY: the handler adds to an atomic word, which any code may be interrupted for.
    let before = unsafe { sigaction(Signal::SIGTRAP, &ours) }.ok()?;
    let mut rounds: Vec<u64> = (0..ROUNDS)
        .filter_map(|_| round())
        .filter(|(_, signals)| *signals > 0)
        .map(|(ns, signals)| ns / signals)
        .collect();
    // SAFETY: what was there before.
    let restored = unsafe { sigaction(Signal::SIGTRAP, &before) };
    rounds.sort_unstable();
    restored.ok().and_then(|_| rounds.get(rounds.len() / 2).copied())
}

extern "C" fn count(_signal: i32) {
    // Relaxed: read by the thread that it interrupts.
    CAME.fetch_add(1, Ordering::Relaxed);
}

/// Thread CPU time of some work, and the signals that came during it.
fn timed(work: impl Fn()) -> (u64, u64) {
    let now = || clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID);
    // Relaxed, both: see `count`.
    let (came, begin) = (CAME.load(Ordering::Relaxed), now());
    work();
    (now().saturating_sub(begin), CAME.load(Ordering::Relaxed).saturating_sub(came))
}

fn compute() {
    let mut sum = 0u64;
    for number in 0..LOOPS {
        sum = black_box(sum.wrapping_mul(31).wrapping_add(number));
    }
}

fn with_events() -> Option<(u64, u64)> {
    let (bare_ns, _) = timed(compute);
    let own_thread = 0;
    let setup = Setup { period_ns: PERIOD_NS, kernel: false, cookie: 0 };
    let event = perf::open(Scope::Alone, own_thread, setup, EventWord(0)).ok()?;
    perf::enable(&event);
    let (with_ns, came) = timed(compute);
    perf::disable(&event);
    Some((with_ns.saturating_sub(bare_ns), came))
}

fn with_sent() -> Option<(u64, u64)> {
    Some(timed(|| {
        for _ in 0..SENT {
            // One that cannot be sent is not counted.
            let _ = raise(Signal::SIGTRAP);
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disposition() -> String {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default disposition has no handler.
        let now = unsafe { sigaction(Signal::SIGTRAP, &default) }.unwrap();
        // SAFETY: what was there before.
        unsafe { sigaction(Signal::SIGTRAP, &now) }.unwrap();
        format!("{:?}", now.handler())
    }

    /// Set in the process whose disposition is changed.
    const OWN: &str = "TRACEPROF_TEST_DELIVERY";

    /// In a process of its own: other tests look at the dispositions of theirs.
    #[test]
    fn a_signal_takes_some_time_and_leaves_nothing_behind() {
        if std::env::var_os(OWN).is_some() {
            return look();
        }
        let name = "a_signal_takes_some_time_and_leaves_nothing_behind";
        let tests = std::process::Command::new(std::env::current_exe().unwrap());
        let output = { tests }.arg(name).env(OWN, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    fn look() {
        let before = disposition();
        let sent = measure(with_sent).expect("signals to oneself");
        assert!((100..1_000_000).contains(&sent), "{sent} ns");
        if let Some(ns) = measure(with_events) {
            assert!((100..1_000_000).contains(&ns), "{ns} ns");
        }
        assert_eq!(disposition(), before);
        let known = delivery(true);
        assert_eq!(delivery(true), known, "measured once");
    }
}
