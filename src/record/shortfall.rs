//! Where the CPU time is that the target used and no sample stands for.

use traceprof_abi::layout::Counter;

use super::account::{Reckoning, count, lost, seconds};
use super::engine::Engine;

/// What a thread may use before it has its timer, and after the last hit of it.
const TIMERS_LATE_NS: u64 = 100_000_000;

impl Reckoning<'_> {
    /// Where the time is that was used and not sampled, as far as is known.
    pub(super) fn rest(&self) -> Vec<String> {
        let mut missing = self.cpu_ns.saturating_sub(self.sampled_ns());
        let mut known = Vec::new();
        let mut explain = |ns: u64, what: &str| {
            let part = ns.min(missing);
            if part > 0 {
                missing -= part;
                known.push(format!("{} {what}", seconds(part)));
            }
            missing
        };
        explain(self.blocked_ns, "in threads that block the signal");
        explain(self.unsampled.cpu_ns, "in threads that could have no timer");
        if let Some(system) = self.system_ns {
            explain(system, "in the kernel, which was not sampled");
        }
        let lost = lost(self.control)
            .saturating_add(count(self.control, Counter::LostOverruns))
            .saturating_add(self.storage.holes)
            .saturating_add(self.storage.unreadable)
            .saturating_add(self.kernel_lost)
            .saturating_add(self.totals.unattributed);
        let missing = explain(lost.saturating_mul(self.period_ns), "lost");
        if missing > self.period_ns {
            let (most_ns, what) = self.short();
            let most_ns = most_ns.saturating_mul(self.threads.seen.max(1) as u64);
            let left_ns = explain(most_ns, &what);
            if left_ns > self.period_ns {
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
        match self.choice.engine {
            // An inherited event starts with a whole period, so a thread that ends within its first
            // one is never hit; what is left of each thread's last period is not hit either.
            Engine::Perf => (
                self.period_ns.saturating_mul(2),
                format!(
                    "in threads or remainders shorter than the period of {:.1} ms (a higher --freq \
                     sees them)",
                    self.period_ns as f64 / 1e6,
                ),
            ),
            // A hit waits for the kernel's next tick, a thread's last ones for ever; 65 ms is the
            // most that was seen of that.
            Engine::Timer => (
                TIMERS_LATE_NS.max(self.period_ns.saturating_mul(2)),
                "before threads had their timers and after the last tick of each".to_owned(),
            ),
        }
    }

    /// Why there is no sample.
    pub(super) fn nothing(&self) -> String {
        if self.cpu_ns < self.period_ns {
            return format!(
                "the target used {:.3} ms of CPU time, less than one period of {:.3} ms (record \
                 for longer, or while the target works)",
                self.cpu_ns as f64 / 1e6,
                self.period_ns as f64 / 1e6,
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
    use crate::record::balance::Balanced;
    use crate::record::collect::Stats;
    use crate::record::engine::Choice;
    use crate::record::scribe::Totals;
    use crate::record::shm::own_data;
    use crate::record::tally;
    use crate::record::threads::ThreadMetrics;
    use crate::trace::Value;

    const MS: u64 = 1_000_000;

    fn check(change: impl FnOnce(&mut Reckoning<'_>), expected: &str) {
        let data = own_data();
        let choice =
            Choice { engine: Engine::Perf, why: String::new(), is_free: true, is_started: false };
        let (unsampled, relieved) = Default::default();
        let totals = Totals { samples: 90, weight: 90, ..Totals::default() };
        let mut reckoning = Reckoning {
            control: data.control(),
            totals: &totals,
            period_ns: MS,
            kernel: false,
            cpu_ns: 100 * MS,
            system_ns: None,
            blocked_ns: 0,
            blocked: Vec::new(),
            unsampled: &unsampled,
            relieved: &relieved,
            primed: 0,
            given: 0,
            balanced: Balanced::default(),
            choice: &choice,
            entries_ns: (0, 0),
            elapsed_ns: 200 * MS,
            storage: Stats::default(),
            threads: ThreadMetrics { seen: 5, ..ThreadMetrics::default() },
            kernel_lost: 0,
            heaviest: Vec::new(),
            attach_stops_ns: Vec::new(),
            detach_stopped_ns: None,
            is_gone: false,
        };
        change(&mut reckoning);
        let text = reckoning.cpu();
        let rest = text.split_once("; the rest: ").map_or("", |(_, rest)| rest);
        assert_eq!(rest, expected, "{text}");
    }

    #[test]
    fn what_is_missing_is_explained_once() {
        let short = "in threads or remainders shorter than the period of 1.0 ms (a higher --freq \
                     sees them)";
        check(|_| {}, &format!("0.010 s {short}"));
        check(
            |it| it.blocked_ns = 4 * MS,
            &format!("0.004 s in threads that block the signal, 0.006 s {short}"),
        );
        check(|it| it.blocked_ns = 400 * MS, "0.010 s in threads that block the signal");
        check(|it| it.storage.holes = 10, "0.010 s lost");
        check(
            |it| {
                it.given = 3;
                let text = it.cpu();
                assert!(text.contains("0.003 s of it reckoned for threads that ended"), "{text}");
                assert_eq!(it.metadata().get("rest_periods"), Some(&Value::Unsigned(3)));
            },
            &format!("0.010 s {short}"),
        );
        check(|it| it.kernel_lost = 10, "0.010 s lost");
        let lose = |it: &mut Reckoning<'_>| {
            it.control.count(Counter::LostLog);
            it.control.count_by(Counter::LostOverruns, 9);
            let lines = it.lines();
            let lost = lines.iter().find(|(label, _)| label == "lost").map(|(_, text)| text);
            assert!(lost.is_some_and(|text| text.contains("9 periods more")), "{lost:?}");
        };
        check(lose, "0.010 s lost");
        check(|it| it.cpu_ns = 80 * MS, "");
        check(|it| it.system_ns = Some(9 * MS), "0.009 s in the kernel, which was not sampled");
    }

    #[test]
    fn what_is_too_much_for_remainders_is_not_called_so() {
        const UNKNOWN: &str = "not explained (switches of threads and interrupts, on a machine \
                               that has more to do than it can)";
        let short = "in threads or remainders shorter than the period of 1.0 ms (a higher --freq \
                     sees them)";
        check(|it| it.threads.seen = 1, &format!("0.002 s {short}, 0.008 s {UNKNOWN}"));
        check(|it| it.threads.seen = 4, &format!("0.008 s {short}, 0.002 s {UNKNOWN}"));
        let late = "before threads had their timers and after the last tick of each";
        let timers = |it: &mut Reckoning<'_>, missing_ms: u64| {
            let choice = Choice { engine: Engine::Timer, ..it.choice.clone() };
            it.choice = Box::leak(Box::new(choice));
            (it.threads.seen, it.cpu_ns) = (1, (90 + missing_ms) * MS);
        };
        check(|it| timers(it, 30), &format!("0.030 s {late}"));
        check(|it| timers(it, 300), &format!("0.100 s {late}, 0.200 s {UNKNOWN}"));
    }

    #[test]
    fn no_sample_at_all_has_its_reason() {
        let little = |it: &mut Reckoning<'_>| {
            it.cpu_ns = MS / 2;
            assert!(
                it.nothing().contains("0.500 ms of CPU time, less than one"),
                "{}",
                it.nothing()
            );
        };
        check(little, "");
        let blocked = |it: &mut Reckoning<'_>| {
            it.blocked_ns = 4 * MS;
            let why = it.nothing();
            assert!(why.contains("sampled: 0.004 s in threads that block the signal"), "{why}");
            it.blocked_ns = 400 * MS;
        };
        check(blocked, "0.010 s in threads that block the signal");
    }

    #[test]
    fn scribbled_counters_are_only_wrong() {
        let scribble = |reckoning: &mut Reckoning<'_>| {
            for counter in &reckoning.control.counters {
                counter.store(u64::MAX, Ordering::Relaxed);
            }
            assert_eq!(lost(reckoning.control), u64::MAX);
            assert!(!reckoning.lines().is_empty());
            assert!(!reckoning.metadata().is_empty());
            assert!(!tally::lines(reckoning).is_empty());
        };
        check(scribble, "0.010 s lost");
    }
}
