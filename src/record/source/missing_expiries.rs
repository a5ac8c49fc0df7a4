//! Detection of expiries of timers and events that do not arrive.
//!
//! No file in `/proc` shows that another handler replaced ours. The only visible sign is that no
//! expiry arrives while the target uses CPU time. The recorder then makes the agent check.

use std::time::Duration;

use traceprof_abi::layout::{ControlBlock, Counter};

use crate::proc;
use crate::record::contract::sampling::Engine;
use crate::record::target::counters::HandlerCounts;

/// The counters of expiries: a handler increments exactly one of them for each.
const EXPIRIES: [Counter; 8] = [
    Counter::Samples,
    Counter::LostThreadSlot,
    Counter::LostHazard,
    Counter::LostRotation,
    Counter::LostLog,
    Counter::DuplicateEvent,
    Counter::Broken,
    Counter::Nested,
];
/// Periods of user time without an expiry after which the handler may have been replaced.
const SILENT_PERIODS: u64 = 20;
/// The minimum of that time, since the clock of user time advances in ticks.
const SILENT_MIN: Duration = Duration::from_millis(200);

/// The check that expiries keep up with the CPU time of the threads that signals can reach.
#[derive(Debug)]
pub(crate) struct MissingExpiries {
    expiries: u64,
    /// User time of the process at the last expiry, in nanoseconds.
    user_ns: u64,
    /// User time of the process, and CPU time of the threads that block the signal, when expiries
    /// were first found missing.
    suspected: Option<(u64, u64)>,
}

impl MissingExpiries {
    pub(crate) fn new(pid: i32) -> Self {
        let user_ns = proc::mode_times_ns(pid).map_or(0, |(user, _)| user);
        Self { expiries: 0, user_ns, suspected: None }
    }

    /// Returns whether the threads that signals can reach used CPU time without an expiry.
    ///
    /// `signal_blocked_ns` returns the CPU time of the threads that block the signal.
    pub(crate) fn is_broken(
        &mut self,
        pid: i32,
        expiries: u64,
        period_ns: u64,
        signal_blocked_ns: impl FnOnce() -> u64,
    ) -> bool {
        let Ok((user_ns, _)) = proc::mode_times_ns(pid) else { return false };
        if expiries != self.expiries {
            *self = Self { expiries, user_ns, suspected: None };
            return false;
        }
        let limit = period_ns.saturating_mul(SILENT_PERIODS).max(SILENT_MIN.as_nanos() as u64);
        if user_ns.saturating_sub(self.user_ns) < limit {
            return false;
        }
        // Threads that block the signal may have used the time.
        let signal_blocked_ns = signal_blocked_ns();
        let (user_before, blocked_before) =
            *self.suspected.get_or_insert((user_ns, signal_blocked_ns));
        let used_ns = user_ns.saturating_sub(user_before);
        used_ns.saturating_sub(signal_blocked_ns.saturating_sub(blocked_before)) >= limit
    }
}

/// Returns the number of expiries from the given engine, which samples most threads.
///
/// The other engine may sample a few threads.
pub(crate) fn expiries(control: &ControlBlock, engine: Engine) -> u64 {
    let counts = HandlerCounts::read(control);
    let timers = counts.of(Counter::TimerExpiries);
    match engine {
        Engine::Timer => timers,
        // The handler counts the expiry of a timer as such, and again by its outcome.
        Engine::Perf | Engine::Signal => all_expiries(control).wrapping_sub(timers),
    }
}

/// Returns the number of all expiries.
pub(crate) fn all_expiries(control: &ControlBlock) -> u64 {
    let counts = HandlerCounts::read(control);
    EXPIRIES.iter().fold(0u64, |sum, counter| sum.wrapping_add(counts.of(*counter)))
}

/// Returns the CPU time of the threads that block a signal or have no source that sends it, in
/// nanoseconds.
pub(crate) fn signal_blocked_threads_ns(
    pid: i32,
    signal: i32,
    has_no_source: impl Fn(i32) -> bool,
) -> u64 {
    let tids = proc::tasks(pid).unwrap_or_default();
    let of = |tid: i32| {
        let is_signal_blocked =
            has_no_source(tid) || proc::task_status(pid, tid).ok()?.blocks(signal);
        is_signal_blocked.then(|| proc::task_cpu_or_ticks_ns(pid, tid).ok()).flatten()
    };
    tids.into_iter().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::record::target::shm::own_data;

    /// Burns user time.
    fn burn(time: Duration) {
        let start = Instant::now();
        let before = proc::mode_times_ns(std::process::id() as i32).unwrap().0;
        let used = || proc::mode_times_ns(std::process::id() as i32).unwrap().0 - before;
        while used() < time.as_nanos() as u64 && start.elapsed() < Duration::from_secs(60) {
            std::hint::black_box((0..100_000u64).sum::<u64>());
        }
    }

    #[test]
    fn missing_expiries_are_detected_where_signals_could_arrive() {
        const MS: u64 = 1_000_000;
        let data = own_data();
        let control = data.control();
        let pid = std::process::id() as i32;
        let mut missing = MissingExpiries::new(pid);
        let mut check = || missing.is_broken(pid, expiries(control, Engine::Perf), MS, || 0);
        assert!(!check(), "no time has passed");
        burn(2 * SILENT_MIN);
        control.count(Counter::Samples);
        assert!(!check(), "there was an expiry");
        burn(2 * SILENT_MIN);
        assert!(!check(), "only suspected");
        burn(2 * SILENT_MIN);
        assert!(check(), "twice without an expiry");
        control.count(Counter::DuplicateEvent);
        assert!(!check(), "an expiry without a sample");
    }

    #[test]
    fn only_expiries_of_the_given_engine_are_counted() {
        let data = own_data();
        let control = data.control();
        let both = || [Engine::Perf, Engine::Timer].map(|engine| expiries(control, engine));
        // One expiry of an event, and two of timers, one of them lost.
        control.count(Counter::Samples);
        assert_eq!(both(), [1, 0]);
        control.count_by(Counter::TimerExpiries, 2);
        control.count(Counter::Samples);
        control.count(Counter::LostLog);
        assert_eq!(both(), [1, 2]);
    }

    #[test]
    fn the_time_of_threads_that_block_the_signal_is_separate() {
        let pid = std::process::id() as i32;
        let own = nix::unistd::gettid().as_raw();
        burn(Duration::from_millis(20));
        let of = |has_no_source: &dyn Fn(i32) -> bool| {
            signal_blocked_threads_ns(pid, libc::SIGTRAP, |tid| tid == own && has_no_source(tid))
        };
        assert_eq!(of(&|_| false), 0);
        assert!(of(&|_| true) > 0);
    }
}
