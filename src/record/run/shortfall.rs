//! Where the CPU time is that the target used and no sample stands for.

use traceprof_abi::layout::Counter;

use crate::record::contract::figures::seconds;
use crate::record::contract::sampling::Engine;
use crate::record::run::accounting::Reckoning;

/// What a thread may use before it has its timer, and after the last hit of it.
const TIMERS_LATE_NS: u64 = 100_000_000;

impl Reckoning<'_> {
    /// Where the time is that was used and not sampled, as far as is known.
    pub(crate) fn rest(&self) -> Vec<String> {
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
        explain(self.program_run.between_ns, "before programs that were executed could be sampled");
        explain(self.program_run.source.blocked_ns, "in threads that block the signal");
        explain(self.program_run.source.unsampled.cpu_ns, "in threads that could have no timer");
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
            let (most_ns, what) = self.short();
            let most_ns = most_ns.saturating_mul(self.program_run.store.threads.seen.max(1) as u64);
            let left_ns = explain(most_ns, &what);
            if left_ns > self.period_ns() {
                explain(
                    left_ns,
                    "not explained (switches of threads and interrupts, on a machine that has more \
                     to do than it can)",
                );
            }
        }
        known
    }

    /// What the way of sampling misses of each thread, at most, and what that is.
    fn short(&self) -> (u64, String) {
        match self.program_run.choice.engine {
            // An inherited event starts with a whole period, so a thread that ends within its first
            // one is never hit; what is left of each thread's last period is not hit either.
            Engine::Perf => (
                self.slowest_ns().saturating_mul(2),
                format!(
                    "in threads or remainders shorter than the period of {:.1} ms (a higher --freq \
                     sees them)",
                    self.slowest_ns() as f64 / 1e6,
                ),
            ),
            // A hit waits for the kernel's next tick, a thread's last ones for ever; 65 ms is the
            // most that was seen of that.
            Engine::Timer => (
                TIMERS_LATE_NS.max(self.slowest_ns().saturating_mul(2)),
                "before threads had their timers and after the last tick of each".to_owned(),
            ),
        }
    }

    /// What a hit stands for at the slowest rate that there was.
    fn slowest_ns(&self) -> u64 {
        self.period_ns().saturating_mul(self.program_run.spent.slowest.max(1))
    }

    /// Why there is no sample.
    pub(crate) fn nothing(&self) -> String {
        if self.cpu_ns() < self.period_ns() {
            return format!(
                "the target used {:.3} ms of CPU time, less than one period of {:.3} ms (record \
                 for longer, or while the target works)",
                self.cpu_ns() as f64 / 1e6,
                self.period_ns() as f64 / 1e6,
            );
        }
        let rest = self.rest().join(", ");
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
    use crate::record::target::counters::Counts;
    use crate::record::target::shm::own_data;
    use crate::record::weigh::cpu_clock::CpuClock;
    use crate::record::write::writer::Totals;
    use crate::trace::Value;

    const MS: u64 = 1_000_000;

    /// What is told of a program run of 100 ms, 90 of them sampled, that is changed before.
    fn told<T>(change: impl FnOnce(&mut ProgramRun), look: impl FnOnce(&Reckoning<'_>) -> T) -> T {
        let mut program_run = made_up();
        change(&mut program_run);
        let totals = Totals { samples: 90, weight: 90, ..Totals::default() };
        let executions = Executions::default();
        let (program_run, totals, executions) = (&program_run, &totals, &executions);
        look(&Reckoning { program_run, totals, executions, is_gone: false })
    }

    fn check(change: impl FnOnce(&mut ProgramRun), expected: &str) {
        let text = told(change, |it| it.cpu());
        let rest = text.split_once("; the rest: ").map_or("", |(_, rest)| rest);
        assert_eq!(rest, expected, "{text}");
    }

    #[test]
    fn what_is_missing_is_explained_once() {
        let short = "in threads or remainders shorter than the period of 1.0 ms (a higher --freq \
                     sees them)";
        check(|_| {}, &format!("0.010 s {short}"));
        check(
            |it| it.source.blocked_ns = 4 * MS,
            &format!("0.004 s in threads that block the signal, 0.006 s {short}"),
        );
        check(|it| it.source.blocked_ns = 400 * MS, "0.010 s in threads that block the signal");
        check(|it| it.store.storage.holes = 10, "0.010 s lost");
        check(|it| it.weights.given = 3, &format!("0.010 s {short}"));
        let (text, metadata) = told(|it| it.weights.given = 3, |it| (it.cpu(), it.metadata()));
        assert!(text.contains("0.003 s of it reckoned for threads that ended"), "{text}");
        assert_eq!(metadata.get("rest_periods"), Some(&Value::Unsigned(3)));
        check(
            |it| it.between_ns = 8 * MS,
            "0.008 s before programs that were executed could be sampled, 0.002 s in threads or \
             remainders shorter than the period of 1.0 ms (a higher --freq sees them)",
        );
        check(|it| it.source.kernel_lost = 10, "0.010 s lost");
        let data = own_data();
        data.control().count(Counter::LostLog);
        data.control().count_by(Counter::LostOverruns, 9);
        let lose = |it: &mut ProgramRun| it.counts = Counts::read(data.control());
        let lines = told(lose, |it| it.lines());
        let lost = lines.iter().find(|(label, _)| label == "lost").map(|(_, text)| text);
        assert!(lost.is_some_and(|text| text.contains("9 periods more")), "{lost:?}");
        check(lose, "0.010 s lost");
        check(|it| it.cpu = CpuClock::made_up(0, 80 * MS), "");
        check(
            |it| it.weights.system_ns = Some(9 * MS),
            "0.009 s in the kernel, which was not sampled",
        );
    }

    #[test]
    fn what_is_too_much_for_remainders_is_not_called_so() {
        const UNKNOWN: &str = "not explained (switches of threads and interrupts, on a machine \
                               that has more to do than it can)";
        let short = "in threads or remainders shorter than the period of 1.0 ms (a higher --freq \
                     sees them)";
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
        let why = told(little, |it| it.nothing());
        assert!(why.contains("0.500 ms of CPU time, less than one"), "{why}");
        let why = told(|it| it.source.blocked_ns = 4 * MS, |it| it.nothing());
        assert!(why.contains("sampled: 0.004 s in threads that block the signal"), "{why}");
    }

    #[test]
    fn scribbled_counters_are_only_wrong() {
        let data = own_data();
        for counter in &data.control().counters {
            counter.store(u64::MAX, Ordering::Relaxed);
        }
        let scribble = |it: &mut ProgramRun| it.counts = Counts::read(data.control());
        told(scribble, |it| {
            assert_eq!(it.program_run.counts.lost(), u64::MAX);
            assert!(!it.lines().is_empty());
            assert!(!it.metadata().is_empty());
        });
        check(scribble, "0.010 s lost");
    }
}
