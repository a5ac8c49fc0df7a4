//! Explains the CPU time that the target used and that no sample covers.

use traceprof_abi::layout::Counter;

use crate::record::contract::number_format::seconds;
use crate::record::contract::sampling::Engine;
use crate::record::run::accounting::Accounting;

/// CPU time that a thread may use before it has its timer, and after the timer's last expiry.
const TIMERS_LATE_NS: u64 = 100_000_000;

/// The number of periods between two samples of a thread that is too young for a signal.
const YOUNG_PERIODS: f64 = 2.4;

impl Accounting<'_> {
    /// Returns the known causes of time that was used and not sampled, each with its time.
    pub(crate) fn shortfall(&self) -> Vec<String> {
        let mut missing = self.cpu_ns().saturating_sub(self.sampled_ns());
        let mut known = Vec::new();
        let mut explain = |ns: u64, what: &str| {
            let part = ns.min(missing);
            if part > 0 {
                missing -= part;
                known.push(format!("{} {what}", seconds(part)));
            }
            missing
        };
        explain(self.program_run.between_ns, "between an exec and the attach to the new program");
        explain(self.program_run.source.blocked_ns, "in threads that block the signal");
        explain(
            self.program_run.source.narrow.unsampled_ns,
            "in threads that have too little stack for a signal",
        );
        explain(self.program_run.source.unsampled.cpu_ns, "in threads without a timer");
        if let Some(system) = self.program_run.weights.system_ns {
            explain(system, "in the kernel, which was not sampled");
        }
        let lost = self
            .program_run
            .counts
            .lost()
            .saturating_add(self.program_run.counts.of(Counter::LostOverruns))
            .saturating_add(self.program_run.store.storage.holes)
            .saturating_add(self.program_run.store.storage.unreadable)
            .saturating_add(self.program_run.source.kernel_lost)
            .saturating_add(self.totals.unattributed);
        let missing = explain(lost.saturating_mul(self.period_ns()), "lost");
        if missing > self.period_ns() {
            let (most_ns, what) = self.engine_shortfall();
            let most_ns = most_ns.saturating_mul(self.program_run.store.threads.seen.max(1) as u64);
            let left_ns = explain(most_ns, &what);
            if left_ns > self.period_ns() {
                explain(
                    left_ns,
                    "unexplained (context switches and interrupts, on an overloaded machine)",
                );
            }
        }
        known
    }

    /// Returns the most CPU time that the engine misses in each thread, and a description of it.
    fn engine_shortfall(&self) -> (u64, String) {
        match self.program_run.choice.engine {
            // An inherited event starts with a full period, so a thread that exits within its first
            // period has no sample. The remainder of each thread's last period has none either.
            engine @ (Engine::Perf | Engine::Signal) => {
                // Events without a signal, which sample new threads, are slower.
                let times = if engine == Engine::Signal { YOUNG_PERIODS } else { 1.0 };
                let period_ns = (self.slowest_ns() as f64 * times) as u64;
                (
                    period_ns.saturating_mul(2),
                    format!(
                        "in threads or remainders shorter than the period of {:.1} ms (a higher \
                         --freq samples them)",
                        period_ns as f64 / 1e6,
                    ),
                )
            }
            // An expiry waits for the kernel's next tick. A thread's last expiries are never
            // delivered: 65 ms of CPU time was the most observed.
            Engine::Timer => (
                TIMERS_LATE_NS.max(self.slowest_ns().saturating_mul(2)),
                "before threads had their timers and after the last tick of each".to_owned(),
            ),
        }
    }

    /// Returns the CPU time that an expiry stands for at the slowest rate of the recording.
    fn slowest_ns(&self) -> u64 {
        self.period_ns().saturating_mul(self.program_run.overhead.slowest.max(1))
    }

    /// Returns the reason why there is no sample.
    pub(crate) fn no_samples_reason(&self) -> String {
        if self.cpu_ns() < self.period_ns() {
            let (used_ms, period_ms) = (self.cpu_ns() as f64 / 1e6, self.period_ns() as f64 / 1e6);
            // A program that has exited cannot be recorded for longer.
            let advice = match self.is_gone {
                true => "--freq max takes more samples, --mode wall also records waiting",
                false => "record for longer, while it is busy, or with --mode wall",
            };
            return format!(
                "the target used {used_ms:.1} ms of CPU time, less than one period of \
                 {period_ms:.1} ms ({advice})"
            );
        }
        let rest = self.shortfall().join(", ");
        format!("none of the CPU time that the target used was sampled: {rest}")
    }
}

#[cfg(test)]
mod tests {
    use traceprof_abi::sync::Ordering;

    use super::*;
    use crate::record::run::executions::Executions;
    use crate::record::session::program_run::ProgramRun;
    use crate::record::session::program_run::tests::made_up;
    use crate::record::target::counters::HandlerCounts;
    use crate::record::target::shm::own_data;
    use crate::record::weigh::cpu_clock::CpuClock;
    use crate::record::write::writer::WrittenTotals;
    use crate::trace::Value;

    const MS: u64 = 1_000_000;

    /// Reads the figures of a program run of 100 ms, 90 ms of them sampled, after `change`.
    fn with_run<T>(
        change: impl FnOnce(&mut ProgramRun),
        read: impl FnOnce(&Accounting<'_>) -> T,
    ) -> T {
        let mut program_run = made_up();
        change(&mut program_run);
        let totals = WrittenTotals { samples: 90, weight: 90, ..WrittenTotals::default() };
        let executions = Executions::default();
        let (program_run, totals, executions) = (&program_run, &totals, &executions);
        read(&Accounting { program_run, totals, executions, is_gone: false })
    }

    fn check(change: impl FnOnce(&mut ProgramRun), expected: &str) {
        let text = with_run(change, |it| it.cpu());
        let rest = text.split_once("; not sampled: ").map_or("", |(_, rest)| rest);
        assert_eq!(rest, expected, "{text}");
    }

    #[test]
    fn what_is_missing_is_explained_once() {
        let short = "in threads or remainders shorter than the period of 1.0 ms (a higher --freq \
                     samples them)";
        check(|_| {}, &format!("0.010 s {short}"));
        check(
            |it| it.source.blocked_ns = 4 * MS,
            &format!("0.004 s in threads that block the signal, 0.006 s {short}"),
        );
        check(|it| it.source.blocked_ns = 400 * MS, "0.010 s in threads that block the signal");
        check(
            |it| it.source.narrow.unsampled_ns = 400 * MS,
            "0.010 s in threads that have too little stack for a signal",
        );
        check(|it| it.store.storage.holes = 10, "0.010 s lost");
        check(|it| it.weights.credited = 3, &format!("0.010 s {short}"));
        let (text, metadata) =
            with_run(|it| it.weights.credited = 3, |it| (it.cpu(), it.metadata()));
        assert!(text.contains("0.003 s of it estimated for threads that exited"), "{text}");
        assert_eq!(metadata.get("rest_periods"), Some(&Value::Unsigned(3)));
        check(
            |it| it.between_ns = 8 * MS,
            "0.008 s between an exec and the attach to the new program, 0.002 s in threads or \
             remainders shorter than the period of 1.0 ms (a higher --freq samples them)",
        );
        check(|it| it.source.kernel_lost = 10, "0.010 s lost");
        let data = own_data();
        data.control().count(Counter::LostLog);
        data.control().count_by(Counter::LostOverruns, 9);
        let lose = |it: &mut ProgramRun| it.counts = HandlerCounts::read(data.control());
        let lines = with_run(lose, |it| it.lines());
        let lost = lines.iter().find(|(label, _)| label == "lost").map(|(_, text)| text);
        assert!(lost.is_some_and(|text| text.contains("9 more periods")), "{lost:?}");
        check(lose, "0.010 s lost");
        check(|it| it.cpu = CpuClock::made_up(0, 80 * MS), "");
        check(
            |it| it.weights.system_ns = Some(9 * MS),
            "0.009 s in the kernel, which was not sampled",
        );
    }

    #[test]
    fn more_time_than_remainders_can_have_is_unexplained() {
        const UNKNOWN: &str =
            "unexplained (context switches and interrupts, on an overloaded machine)";
        let short = "in threads or remainders shorter than the period of 1.0 ms (a higher --freq \
                     samples them)";
        check(|it| it.store.threads.seen = 1, &format!("0.002 s {short}, 0.008 s {UNKNOWN}"));
        check(|it| it.store.threads.seen = 4, &format!("0.008 s {short}, 0.002 s {UNKNOWN}"));
        let late = "before threads had their timers and after the last tick of each";
        let timers = |it: &mut ProgramRun, missing_ms: u64| {
            it.choice.engine = Engine::Timer;
            it.store.threads.seen = 1;
            it.cpu = CpuClock::made_up(0, (90 + missing_ms) * MS);
        };
        check(|it| timers(it, 30), &format!("0.030 s {late}"));
        check(|it| timers(it, 300), &format!("0.100 s {late}, 0.200 s {UNKNOWN}"));
    }

    #[test]
    fn no_sample_at_all_has_its_reason() {
        let little = |it: &mut ProgramRun| it.cpu = CpuClock::made_up(0, MS / 2);
        let why = with_run(little, |it| it.no_samples_reason());
        assert!(why.contains("0.5 ms of CPU time, less than one"), "{why}");
        let why = with_run(|it| it.source.blocked_ns = 4 * MS, |it| it.no_samples_reason());
        assert!(why.contains("sampled: 0.004 s in threads that block the signal"), "{why}");
    }

    #[test]
    fn scribbled_counters_are_only_wrong() {
        let data = own_data();
        for counter in &data.control().counters {
            counter.store(u64::MAX, Ordering::Relaxed);
        }
        let scribble = |it: &mut ProgramRun| it.counts = HandlerCounts::read(data.control());
        with_run(scribble, |it| {
            assert_eq!(it.program_run.counts.lost(), u64::MAX);
            assert!(!it.lines().is_empty());
            assert!(!it.metadata().is_empty());
        });
        check(scribble, "0.010 s lost");
    }
}
