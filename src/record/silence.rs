//! Whether hits come, where they should.
//!
//! A handler that was put in the place of ours shows in no file of `/proc`. What shows is that no
//! hit comes while time is used; the target itself is asked then.

use std::time::Duration;

use traceprof_abi::layout::{ControlBlock, Counter};

use super::counts::Counts;
use super::engine::Engine;
use crate::proc;

/// What a handler counts whenever it runs for one of our hits.
const HITS: [Counter; 8] = [
    Counter::Samples,
    Counter::LostThreadSlot,
    Counter::LostHazard,
    Counter::LostRotation,
    Counter::LostLog,
    Counter::DuplicateEvent,
    Counter::Broken,
    Counter::Nested,
];
/// User time without a hit after which the handler is taken for replaced: so many periods,
const SILENT_PERIODS: u64 = 20;
/// and so much time, since the clock is read in ticks.
const SILENT_MIN: Duration = Duration::from_millis(200);

/// Watches whether hits keep up with the CPU time of the threads that can be hit.
#[derive(Debug)]
pub(super) struct Silence {
    hits: u64,
    /// User time of the process when the last hit was seen.
    user_ns: u64,
    /// Times when hits were first missed: user time of the process, and all time of the threads that
    /// cannot be hit.
    suspected: Option<(u64, u64)>,
}

impl Silence {
    pub(super) fn new(pid: i32) -> Self {
        let user_ns = proc::mode_times_ns(pid).map_or(0, |(user, _)| user);
        Self { hits: 0, user_ns, suspected: None }
    }

    /// True when the threads that could be hit have used time and none was.
    /// `deaf_ns` is the time of those that could not.
    pub(super) fn is_broken(
        &mut self,
        pid: i32,
        hits: u64,
        period_ns: u64,
        deaf_ns: impl FnOnce() -> u64,
    ) -> bool {
        let Ok((user_ns, _)) = proc::mode_times_ns(pid) else { return false };
        if hits != self.hits {
            *self = Self { hits, user_ns, suspected: None };
            return false;
        }
        let limit = period_ns.saturating_mul(SILENT_PERIODS).max(SILENT_MIN.as_nanos() as u64);
        if user_ns.saturating_sub(self.user_ns) < limit {
            return false;
        }
        // The time may be that of threads which cannot be hit.
        let deaf_ns = deaf_ns();
        let (user_before, deaf_before) = *self.suspected.get_or_insert((user_ns, deaf_ns));
        let used_ns = user_ns.saturating_sub(user_before);
        used_ns.saturating_sub(deaf_ns.saturating_sub(deaf_before)) >= limit
    }
}

/// Hits of what samples most threads, for a few others of which something else may be used.
pub(super) fn hits(control: &ControlBlock, engine: Engine) -> u64 {
    let counts = Counts::read(control);
    let timers = counts.of(Counter::TimerHits);
    match engine {
        Engine::Timer => timers,
        // A timer's hit is counted as such, and by what came of it.
        Engine::Perf => all_hits(control).wrapping_sub(timers),
    }
}

/// Hits of whatever samples.
pub(super) fn all_hits(control: &ControlBlock) -> u64 {
    let counts = Counts::read(control);
    HITS.iter().fold(0u64, |sum, hit| sum.wrapping_add(counts.of(*hit)))
}

/// CPU time of the threads that block a signal, or are without what would send it.
pub(super) fn deaf_threads_ns(pid: i32, signal: i32, is_without: impl Fn(i32) -> bool) -> u64 {
    let tids = proc::tasks(pid).unwrap_or_default();
    let of = |tid: i32| {
        let is_deaf = is_without(tid) || proc::task_status(pid, tid).ok()?.blocks(signal);
        is_deaf.then(|| proc::task_cpu_or_ticks_ns(pid, tid).ok()).flatten()
    };
    tids.into_iter().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::record::shm::own_data;

    /// Uses user time.
    fn burn(time: Duration) {
        let start = Instant::now();
        let before = proc::mode_times_ns(std::process::id() as i32).unwrap().0;
        let used = || proc::mode_times_ns(std::process::id() as i32).unwrap().0 - before;
        while used() < time.as_nanos() as u64 && start.elapsed() < Duration::from_secs(60) {
            std::hint::black_box((0..100_000u64).sum::<u64>());
        }
    }

    #[test]
    fn silence_is_noticed_when_threads_that_could_be_hit_were_not() {
        const MS: u64 = 1_000_000;
        let data = own_data();
        let control = data.control();
        let pid = std::process::id() as i32;
        let mut silence = Silence::new(pid);
        let mut look = || silence.is_broken(pid, hits(control, Engine::Perf), MS, || 0);
        assert!(!look(), "no time has passed");
        burn(2 * SILENT_MIN);
        control.count(Counter::Samples);
        assert!(!look(), "there was a hit");
        burn(2 * SILENT_MIN);
        assert!(!look(), "suspected only");
        burn(2 * SILENT_MIN);
        assert!(look(), "twice without a hit");
        control.count(Counter::DuplicateEvent);
        assert!(!look(), "a hit, if not a sample");
    }

    #[test]
    fn only_hits_of_what_is_watched_are_heard() {
        let data = own_data();
        let control = data.control();
        let both = || [Engine::Perf, Engine::Timer].map(|engine| hits(control, engine));
        // An event's, and two of timers, one of them lost.
        control.count(Counter::Samples);
        assert_eq!(both(), [1, 0]);
        control.count_by(Counter::TimerHits, 2);
        control.count(Counter::Samples);
        control.count(Counter::LostLog);
        assert_eq!(both(), [1, 2]);
    }

    #[test]
    fn the_time_of_threads_that_cannot_be_hit_is_told_apart() {
        let pid = std::process::id() as i32;
        let own = nix::unistd::gettid().as_raw();
        burn(Duration::from_millis(20));
        let of = |is_without: &dyn Fn(i32) -> bool| {
            deaf_threads_ns(pid, libc::SIGTRAP, |tid| tid == own && is_without(tid))
        };
        assert_eq!(of(&|_| false), 0);
        assert!(of(&|_| true) > 0);
    }
}
