//! Measures the kernel's time to deliver one sampling signal, once in this process.
//!
//! A thread of the recorder does the same work without and with such signals, whose handler only
//! counts. The difference by the thread's own CPU clock, divided by the number of signals, is the
//! time for the interrupt, the signal frame and the return. If perf events are used, their signals
//! are measured. Otherwise the thread sends the signals to itself. That leaves out the interrupt,
//! which a timer's signal shares with the kernel's tick.
//!
//! # Invariants
//! - After a measurement, the disposition of the signal is as before and no signal is pending.
//! - Only one measurement runs at a time: the disposition and the counter belong to the process.
//!
//! # Safety
//! Installs a handler that adds one to a counter, and removes it again.
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

/// The number of rounds of work with signals; the median round counts.
const ROUNDS: usize = 5;
/// The number of loop iterations of work in a round. Without optimisation an iteration takes much
/// longer, so fewer of them last long enough.
const LOOPS: u64 = if cfg!(debug_assertions) { 40_000 } else { 400_000 };
/// The CPU time between two signals of events, in nanoseconds.
const PERIOD_NS: u64 = 25_000;
/// The number of signals that the thread sends to itself in a round.
const SIGNALS_SENT: u64 = 50;

/// The number of signals received.
static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// The cost of delivering one signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delivery {
    /// The CPU time for each signal, in nanoseconds.
    pub(super) ns: u64,
    /// Whether it was measured with perf events, and so includes the interrupt.
    pub(super) includes_interrupt: bool,
}

/// Returns the cost of delivery on this machine.
///
/// The first call measures it, which takes some milliseconds.
pub(super) fn delivery(uses_events: bool) -> Delivery {
    static BY_EVENTS: OnceLock<Option<u64>> = OnceLock::new();
    static BY_OWN_SIGNALS: OnceLock<Option<u64>> = OnceLock::new();
    let events = if uses_events { *BY_EVENTS.get_or_init(|| measure(with_events)) } else { None };
    match events {
        Some(ns) => Delivery { ns, includes_interrupt: true },
        None => {
            let ns = *BY_OWN_SIGNALS.get_or_init(|| measure(with_own_signals));
            Delivery { ns: ns.unwrap_or(0), includes_interrupt: false }
        }
    }
}

/// A round of work, which returns the additional CPU time with signals, in nanoseconds, and the
/// number of signals.
type Round = fn() -> Option<(u64, u64)>;

fn measure(round: Round) -> Option<u64> {
    static EXCLUSIVE: Mutex<()> = Mutex::new(());
    // The lock guards no value that a panic could leave inconsistent.
    let _exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let count = SigHandler::Handler(count);
    let ours = SigAction::new(count, SaFlags::SA_RESTART | SaFlags::SA_ONSTACK, SigSet::all());
    // SAFETY: the handler only adds to an atomic word, which is async-signal-safe.
    let before = unsafe { sigaction(Signal::SIGTRAP, &ours) }.ok()?;
    let mut rounds: Vec<u64> = (0..ROUNDS)
        .filter_map(|_| round())
        .filter(|(_, signals)| *signals > 0)
        .map(|(ns, signals)| ns / signals)
        .collect();
    // SAFETY: this is the action that was installed before.
    let restored = unsafe { sigaction(Signal::SIGTRAP, &before) };
    rounds.sort_unstable();
    restored.ok().and_then(|_| rounds.get(rounds.len() / 2).copied())
}

extern "C" fn count(_signal: i32) {
    // Relaxed: only the thread that the signal interrupts reads it.
    RECEIVED.fetch_add(1, Ordering::Relaxed);
}

/// Does some work, and returns the thread's CPU time for it, in nanoseconds, and the number of
/// signals received meanwhile.
fn timed(work: impl Fn()) -> (u64, u64) {
    let now = || clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID);
    // Relaxed, both: see `count`.
    let (received, begin) = (RECEIVED.load(Ordering::Relaxed), now());
    work();
    (now().saturating_sub(begin), RECEIVED.load(Ordering::Relaxed).saturating_sub(received))
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
    let (with_ns, received) = timed(compute);
    perf::disable(&event);
    Some((with_ns.saturating_sub(bare_ns), received))
}

fn with_own_signals() -> Option<(u64, u64)> {
    Some(timed(|| {
        for _ in 0..SIGNALS_SENT {
            // A signal that cannot be sent is not counted.
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
        // SAFETY: this is the action that was installed before.
        unsafe { sigaction(Signal::SIGTRAP, &now) }.unwrap();
        format!("{:?}", now.handler())
    }

    /// The variable that is set in the process whose disposition changes.
    const OWN: &str = "TRACEPROF_TEST_DELIVERY";

    /// Runs in a process of its own, since other tests check dispositions.
    #[test]
    fn a_signal_takes_some_time_and_leaves_nothing_behind() {
        if std::env::var_os(OWN).is_some() {
            return check();
        }
        let name = "a_signal_takes_some_time_and_leaves_nothing_behind";
        let tests = std::process::Command::new(std::env::current_exe().unwrap());
        let output = { tests }.arg(name).env(OWN, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    fn check() {
        let before = disposition();
        let sent = measure(with_own_signals).expect("signals to oneself");
        assert!((100..1_000_000).contains(&sent), "{sent} ns");
        if let Some(ns) = measure(with_events) {
            assert!((100..1_000_000).contains(&ns), "{ns} ns");
        }
        assert_eq!(disposition(), before);
        let known = delivery(true);
        assert_eq!(delivery(true), known, "measured once");
    }
}
