//! Conversion of sample times from the sampling clock to CLOCK_MONOTONIC nanoseconds.
//!
//! # Invariants
//! - Ticks are interpolated between two readings of both clocks that enclose them. The error
//!   therefore does not grow with the length of the recording.

use std::fs;

use traceprof_abi::layout::ClockMode;

/// A reading of both clocks at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockReading {
    /// The time stamp counter, or nanoseconds in [`ClockMode::Monotonic`].
    pub(crate) ticks: u64,
    /// CLOCK_MONOTONIC in nanoseconds.
    pub(crate) monotonic_ns: u64,
}

/// The sampling clock of one recording.
#[derive(Debug)]
pub(crate) struct Clock {
    mode: ClockMode,
    start_ns: u64,
    before: ClockReading,
    after: ClockReading,
}

impl Clock {
    /// Returns the time stamp counter if the kernel itself uses it, else the system call.
    pub(crate) fn best_mode() -> ClockMode {
        if tsc_is_trusted() { ClockMode::Tsc } else { ClockMode::Monotonic }
    }

    /// Reads both clocks for the first time.
    pub(crate) fn start(mode: ClockMode) -> Self {
        let now = read(mode);
        Self { mode, start_ns: now.monotonic_ns, before: now, after: now }
    }

    /// Reads both clocks again, so that samples taken since the last reading can be converted.
    pub(crate) fn advance(&mut self) {
        self.before = self.after;
        self.after = read(self.mode);
    }

    /// Returns the CLOCK_MONOTONIC time of a sample in nanoseconds.
    ///
    /// The target can write any value into its records, so the result is clamped to the time
    /// between the start and the last reading.
    pub(crate) fn monotonic_ns(&self, ticks: u64) -> u64 {
        convert(self.before, self.after, ticks).clamp(self.start_ns, self.after.monotonic_ns)
    }

    /// Returns the length of a number of ticks in nanoseconds.
    pub(crate) fn length_ns(&self, ticks: u64) -> u64 {
        let from = |reading: ClockReading| (reading.ticks, reading.monotonic_ns);
        let ((first, first_ns), (last, last_ns)) = (from(self.before), from(self.after));
        let (span, span_ns) = (last.saturating_sub(first), last_ns.saturating_sub(first_ns));
        match span {
            0 => ticks,
            _ => {
                let ns = u128::from(ticks) * u128::from(span_ns) / u128::from(span);
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        }
    }
}

/// Interpolates linearly between two readings, and extrapolates beyond them.
fn convert(before: ClockReading, after: ClockReading, ticks: u64) -> u64 {
    let span = i128::from(after.ticks) - i128::from(before.ticks);
    let span_ns = i128::from(after.monotonic_ns) - i128::from(before.monotonic_ns);
    if span <= 0 {
        return after.monotonic_ns;
    }
    let offset = i128::from(ticks) - i128::from(before.ticks);
    let time = i128::from(before.monotonic_ns) + offset * span_ns / span;
    u64::try_from(time).unwrap_or(0)
}

/// Returns the current CLOCK_MONOTONIC time in nanoseconds.
pub(crate) fn monotonic_now_ns() -> u64 {
    crate::proc::monotonic_ns()
}

/// Returns the time of a clock in nanoseconds, or 0 if its thread no longer exists.
pub(crate) fn clock_ns(clock: nix::time::ClockId) -> u64 {
    nix::time::clock_gettime(clock).map_or(0, |time| {
        (time.tv_sec() as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec() as u64)
    })
}

/// Returns the CPU clock of a thread of this process, encoded as in pthread_getcpuclockid(3).
pub(crate) fn thread_clock(tid: i32) -> nix::time::ClockId {
    // Bits from the kernel's posix-timers.h: a thread's clock, counted by the scheduler.
    const THREAD: libc::clockid_t = 4;
    const SCHEDULER: libc::clockid_t = 2;
    nix::time::ClockId::from_raw(!tid << 3 | THREAD | SCHEDULER)
}

fn read(mode: ClockMode) -> ClockReading {
    // The narrowest of five attempts counts: a preemption between the two reads distorts the
    // scale.
    let attempt = || {
        let first = ticks(mode);
        let monotonic_ns = monotonic_now_ns();
        let last = ticks(mode);
        (
            last - first.min(last),
            ClockReading { ticks: first + (last.saturating_sub(first)) / 2, monotonic_ns },
        )
    };
    let best = (0..5).map(|_| attempt()).min_by_key(|(width, _)| *width);
    best.map_or(ClockReading { ticks: 0, monotonic_ns: 0 }, |(_, reading)| match mode {
        ClockMode::Tsc => reading,
        ClockMode::Monotonic => ClockReading { ticks: reading.monotonic_ns, ..reading },
    })
}

fn ticks(mode: ClockMode) -> u64 {
    match mode {
        ClockMode::Tsc => traceprof_abi::clock::ticks(),
        ClockMode::Monotonic => 0,
    }
}

/// Returns whether the kernel uses the time stamp counter as its clock source.
///
/// The kernel then guarantees that the counter agrees on all cores and never stops.
fn tsc_is_trusted() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc")
}

/// Waits until a condition holds, and panics with `what` after a minute.
#[cfg(test)]
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_clock_reads_the_time_of_that_thread() {
        let (own, exited) = (nix::unistd::gettid(), std::thread::spawn(nix::unistd::gettid));
        let begin_ns = clock_ns(thread_clock(own.as_raw()));
        let same_ns = clock_ns(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
        let end_ns = clock_ns(thread_clock(own.as_raw()));
        assert!(0 < begin_ns && begin_ns <= same_ns && same_ns <= end_ns);
        assert_eq!(clock_ns(thread_clock(exited.join().unwrap().as_raw())), 0);
    }

    fn check(ticks: u64, expected_ns: u64) {
        let before = ClockReading { ticks: 1_000, monotonic_ns: 50_000 };
        let after = ClockReading { ticks: 3_000, monotonic_ns: 51_000 };
        assert_eq!(convert(before, after, ticks), expected_ns);
    }

    #[test]
    fn ticks_between_two_readings_are_interpolated() {
        check(1_000, 50_000);
        check(2_000, 50_500);
        check(3_000, 51_000);
        check(3_200, 51_100);
        check(800, 49_900);
    }

    #[test]
    fn ticks_have_a_length() {
        let reading = |ticks, monotonic_ns| ClockReading { ticks, monotonic_ns };
        let clock = |after| Clock {
            mode: ClockMode::Tsc,
            start_ns: 0,
            before: reading(1_000, 50_000),
            after,
        };
        assert_eq!(clock(reading(4_000, 51_000)).length_ns(600), 200);
        assert_eq!(clock(reading(4_000, 51_000)).length_ns(u64::MAX), u64::MAX / 3);
        // Without a second reading, ticks count as nanoseconds, as in the monotonic mode.
        assert_eq!(clock(reading(1_000, 50_000)).length_ns(600), 600);
    }

    #[test]
    fn sample_times_are_clamped_to_the_recording() {
        let reading = |ticks, monotonic_ns| ClockReading { ticks, monotonic_ns };
        let (before, after) = (reading(1_000, 50_000), reading(3_000, 51_000));
        let clock = Clock { mode: ClockMode::Tsc, start_ns: 49_950, before, after };
        let times = [0, 910, 2_000, 3_001, u64::MAX].map(|ticks| clock.monotonic_ns(ticks));
        assert_eq!(times, [49_950, 49_955, 50_500, 51_000, 51_000]);
    }

    #[test]
    fn a_real_clock_agrees_with_the_kernel() {
        let mut clock = Clock::start(Clock::best_mode());
        std::thread::sleep(std::time::Duration::from_millis(5));
        clock.advance();
        let now = read(clock.mode);
        let converted = clock.monotonic_ns(now.ticks);
        assert!(converted.abs_diff(now.monotonic_ns) < 1_000_000, "{converted} {now:?}");
    }
}
