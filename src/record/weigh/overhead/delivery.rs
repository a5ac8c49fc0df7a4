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
use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::time::ClockId;
use traceprof_abi::event::EventWord;
use traceprof_abi::sync::{AtomicU64, Ordering};

use crate::record::contract::clock::clock_ns;
use crate::record::contract::sampling::{Engine, Setup};
use crate::record::source::perf::{self, Scope};
use crate::record::source::signal_events;

/// The number of rounds of work with signals; the median round counts.
const ROUNDS: usize = 5;
/// The number of loop iterations of work in a round. Without optimisation an iteration takes much
/// longer, so fewer of them last long enough.
const LOOPS: u64 = if cfg!(debug_assertions) { 40_000 } else { 400_000 };
/// The CPU time between two signals of events, in nanoseconds.
const PERIOD_NS: u64 = 25_000;
/// The same for events that notify a thread. Signals that came faster than they are delivered would
/// be lost. (Measured: 32 us each, in a virtual machine.)
const NOTIFYING_PERIOD_NS: u64 = 4 * PERIOD_NS;
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
pub(super) fn delivery(engine: Engine) -> Delivery {
    static BY_EVENTS: OnceLock<Option<u64>> = OnceLock::new();
    static BY_NOTIFYING_EVENTS: OnceLock<Option<u64>> = OnceLock::new();
    static BY_OWN_SIGNALS: OnceLock<Option<u64>> = OnceLock::new();
    let events = match engine {
        Engine::Perf => *BY_EVENTS.get_or_init(|| measure(Signal::SIGTRAP, with_events)),
        Engine::Signal => {
            *BY_NOTIFYING_EVENTS.get_or_init(|| measure(Signal::SIGURG, with_notifying_events))
        }
        Engine::Timer => None,
    };
    match events {
        Some(ns) => Delivery { ns, includes_interrupt: true },
        None => {
            let measured = || measure(Signal::SIGTRAP, with_own_signals);
            let ns = *BY_OWN_SIGNALS.get_or_init(measured);
            Delivery { ns: ns.unwrap_or(0), includes_interrupt: false }
        }
    }
}

/// A round of work, which returns the additional CPU time with signals, in nanoseconds, and the
/// number of signals.
type Round = fn() -> Option<(u64, u64)>;

fn measure(signal: Signal, round: Round) -> Option<u64> {
    static EXCLUSIVE: Mutex<()> = Mutex::new(());
    // The lock guards no value that a panic could leave inconsistent.
    let _exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let count = SigHandler::Handler(count);
    let ours = SigAction::new(count, SaFlags::SA_RESTART | SaFlags::SA_ONSTACK, SigSet::all());
    // SAFETY: the handler only adds to an atomic word, which is async-signal-safe.
    let before = unsafe { sigaction(signal, &ours) }.ok()?;
    let mut rounds: Vec<u64> = (0..ROUNDS)
        .filter_map(|_| round())
        .filter(|(_, signals)| *signals > 0)
        .map(|(ns, signals)| ns / signals)
        .collect();
    // SAFETY: this is the action that was installed before.
    let restored = unsafe { sigaction(signal, &before) };
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
    let own_thread = 0;
    let setup = Setup { period_ns: PERIOD_NS, ..Setup::default() };
    with_event(perf::open(Scope::Alone, own_thread, setup, EventWord(0)).ok()?, 1)
}

fn with_notifying_events() -> Option<(u64, u64)> {
    let tid = nix::unistd::gettid().as_raw();
    let event = signal_events::open(tid, NOTIFYING_PERIOD_NS, Signal::SIGURG as i32).ok()?;
    with_event(event, 4)
}

/// Does the same work, this many times, without and with the expiries of an event of this thread.
fn with_event(event: OwnedFd, times: u32) -> Option<(u64, u64)> {
    let work = || (0..times).for_each(|_| compute());
    let (bare_ns, _) = timed(work);
    perf::enable(&event);
    let (with_ns, received) = timed(work);
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
        let sent = measure(Signal::SIGTRAP, with_own_signals).expect("signals to oneself");
        assert!((100..1_000_000).contains(&sent), "{sent} ns");
        let events = measure(Signal::SIGTRAP, with_events);
        let notifying = measure(Signal::SIGURG, with_notifying_events);
        assert_eq!(events.is_some(), notifying.is_some(), "both are permitted, or neither is");
        for ns in [events, notifying].into_iter().flatten() {
            assert!((100..1_000_000).contains(&ns), "{ns} ns");
        }
        assert_eq!(disposition(), before);
        for engine in [Engine::Perf, Engine::Signal] {
            let known = delivery(engine);
            assert_eq!(delivery(engine), known, "measured once");
        }
    }
}
