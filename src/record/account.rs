//! The reckoning at the end: what was sampled against what the target used.

use nix::time::ClockId;
use nix::unistd::Pid;
use traceprof_abi::layout::{ControlBlock, Counter};
use traceprof_abi::sync::Ordering;
use traceprof_abi::unwind::EndReason;

use super::clock::clock_ns;
use super::collect::Stats;
use super::engine::{Choice, Engine};
use super::liveness::Heavy;
use super::scribe::Totals;
use super::tally;
use super::threads::ThreadMetrics;
use crate::trace::{Metadata, Value};

/// The target's CPU clock, read from outside.
#[derive(Debug)]
pub(super) struct CpuClock {
    clock: Option<ClockId>,
    start_ns: u64,
    last_ns: u64,
}

impl CpuClock {
    /// Of a process, from now on.
    pub(super) fn start(pid: i32) -> Self {
        let clock = nix::time::clock_getcpuclockid(Pid::from_raw(pid)).ok();
        let now = clock.map_or(0, clock_ns);
        Self { clock, start_ns: now, last_ns: now }
    }

    /// Reads the clock while the process is there; what it last said counts when it is gone.
    pub(super) fn advance(&mut self) {
        self.last_ns = self.last_ns.max(self.clock.map_or(0, clock_ns));
    }

    /// CPU time since the start in nanoseconds.
    pub(super) fn used_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.start_ns)
    }
}

/// Samples that were not stored, by reason, in the words of the trailer.
pub(super) const LOSSES: [(Counter, &str); 7] = [
    (Counter::LostThreadSlot, "no thread slot"),
    (Counter::LostHazard, "no hazard slot"),
    (Counter::LostRotation, "overtaken by rotations"),
    (Counter::LostLog, "log full"),
    (Counter::Broken, "control block unusable"),
    (Counter::Nested, "inside the handler"),
    (Counter::Off, "sampling off"),
];

/// The value of one counter.
pub(super) fn count(control: &ControlBlock, counter: Counter) -> u64 {
    // Relaxed: a count.
    control.counters[counter as usize].load(Ordering::Relaxed)
}

/// Samples lost for whatever reason, while sampling was on.
pub(super) fn lost(control: &ControlBlock) -> u64 {
    let during = LOSSES.iter().filter(|(counter, _)| *counter != Counter::Off);
    // The counters lie where the target may write anything.
    during.map(|(counter, _)| count(control, *counter)).fold(0, u64::saturating_add)
}

/// All that the trailer tells.
#[derive(Debug)]
pub(super) struct Reckoning<'a> {
    /// The handlers' counters.
    pub(super) control: &'a ControlBlock,
    /// What was written.
    pub(super) totals: &'a Totals,
    /// Nanoseconds between samples.
    pub(super) period_ns: u64,
    /// Time in the kernel was sampled.
    pub(super) kernel: bool,
    /// CPU time that the target used.
    pub(super) cpu_ns: u64,
    /// Of it, time in the kernel, if that was not sampled.
    pub(super) system_ns: Option<u64>,
    /// Of it, time of threads that block the signal.
    pub(super) blocked_ns: u64,
    /// Such threads: id and name.
    pub(super) blocked: Vec<(i32, String)>,
    /// Threads that could have no timer, with the errno that says why.
    pub(super) failed: Vec<(i32, i32)>,
    /// CPU time of theirs.
    pub(super) failed_ns: u64,
    /// Priming signals sent.
    pub(super) primed: u64,
    /// Periods of the sum that no hit stands for: rests of threads that ended, given to their last
    /// stacks.
    pub(super) given: u64,
    /// What sampled, and why.
    pub(super) choice: &'a Choice,
    /// Stops of a thread while recording, in nanoseconds: of how many, the longest.
    pub(super) entries_ns: (u64, u64),
    /// Wall-clock time of the recording in nanoseconds.
    pub(super) elapsed_ns: u64,
    /// The target's threads, and their slots.
    pub(super) threads: ThreadMetrics,
    /// What the rotations met.
    pub(super) storage: Stats,
    /// Kernel hits that found the ring buffer full.
    pub(super) kernel_lost: u64,
    /// The heaviest traces, if the user asked for them.
    pub(super) heaviest: Vec<Heavy>,
    /// Stops of a thread at attach, in nanoseconds.
    pub(super) attach_stops_ns: Vec<u64>,
    /// How long the target was stopped at detach, if it was still there.
    pub(super) detach_stopped_ns: Option<u64>,
    /// The target ended, or runs another program now.
    pub(super) is_gone: bool,
}

impl Reckoning<'_> {
    /// Samples whose stack reached the root.
    pub(super) fn rooted(&self) -> u64 {
        self.totals.reasons[EndReason::Root as usize]
    }

    /// CPU time that the weights stand for, in nanoseconds.
    fn sampled_ns(&self) -> u64 {
        self.totals.weight.saturating_mul(self.period_ns)
    }

    /// What the trace keeps of it.
    pub(super) fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        let mut set = |key: &str, value: u64| {
            metadata.insert(key.to_string(), Value::Unsigned(value));
        };
        set("samples", self.totals.samples);
        set("weight_sum", self.totals.weight);
        set("cpu_time_ns", self.cpu_ns);
        set("rooted", self.rooted());
        set("threads", self.threads.seen as u64);
        set("kernel_included", u64::from(self.kernel));
        set("elapsed_ns", self.elapsed_ns);
        for (reason, samples) in EndReason::ALL.iter().zip(self.totals.reasons) {
            set(&format!("ended.{}", reason.name()), samples);
        }
        for (counter, name) in LOSSES {
            set(&format!("lost.{name}"), count(self.control, counter));
        }
        set("lost.log holes", self.storage.holes);
        set("lost.log records unreadable", self.storage.unreadable);
        set("lost.kernel ring full", self.kernel_lost);
        set("lost.thread unknown", self.totals.unattributed);
        for (key, number) in tally::numbers(self) {
            set(key, number);
        }
        set("priming_signals", self.primed);
        set("rest_periods", self.given);
        set("entries", self.entries_ns.0);
        set("threads_without_timer", self.failed.len() as u64);
        if let Some(ns) = self.detach_stopped_ns {
            set("detach_stopped_ns", ns);
        }
        let stops = self.attach_stops_ns.iter().map(|ns| Value::Unsigned(*ns)).collect();
        metadata.insert("attach_stops_ns".to_string(), Value::List(stops));
        metadata.insert("engine".to_owned(), Value::Text(self.choice.engine.name().to_owned()));
        metadata.insert("engine_why".to_owned(), Value::Text(self.choice.why.clone()));
        if !self.heaviest.is_empty() {
            let numbers = |it: &Heavy| {
                Value::List([it.id, it.weight, it.excess].map(Value::Unsigned).to_vec())
            };
            let list = Value::List(self.heaviest.iter().map(numbers).collect());
            metadata.insert("preserved_traces".to_string(), list);
        }
        metadata
    }

    /// The lines of the trailer.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        let mut line = |label: &str, value: String| lines.push((label.to_string(), value));
        let scope = if self.kernel { "user and kernel mode" } else { "user mode only" };
        let Choice { engine, why, .. } = self.choice;
        line("engine", format!("{}, {scope} ({why})", engine.name()));
        line("rate", self.rate());
        line("samples", self.samples());
        line("threads", self.thread_line());
        line("lost", self.losses());
        line("CPU time", self.cpu());
        if !self.blocked.is_empty() {
            let names = self.blocked.iter().map(|(tid, name)| format!("{tid} ({name})"));
            let names = names.collect::<Vec<_>>().join(", ");
            line("not sampled", format!("threads that block the signal: {names}"));
        }
        if !self.failed.is_empty() {
            line("not sampled", self.without_timer());
        }
        if !self.heaviest.is_empty() {
            line("heaviest", self.heaviest());
        }
        line("stopped", self.stops());
        lines
    }

    fn rate(&self) -> String {
        let asked = 1e9 / self.period_ns as f64;
        let effective = self.totals.weight as f64 / (self.cpu_ns.max(1) as f64 / 1e9);
        if self.cpu_ns < self.period_ns {
            return format!(
                "{asked:.0} Hz of CPU time asked; the target used less than one period"
            );
        }
        let timer_hits = count(self.control, Counter::TimerHits);
        let delivered = match timer_hits {
            0 => String::new(),
            hits => {
                let hz = hits as f64 / (self.cpu_ns.max(1) as f64 / 1e9);
                format!(", in {hz:.0} signals a second, {timer_hits} in all")
            }
        };
        format!("{asked:.0} Hz of CPU time asked, {effective:.0} Hz had{delivered}")
    }

    /// Threads whose timer could not be created.
    fn without_timer(&self) -> String {
        const SHOWN: usize = 8;
        let error = self.failed.first().map_or(0, |(_, errno)| *errno);
        let error = std::io::Error::from_raw_os_error(error);
        let names: Vec<String> =
            self.failed.iter().take(SHOWN).map(|(tid, _)| tid.to_string()).collect();
        let more = match self.failed.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!(
            "threads that could have no timer ({error}; see the limit of pending signals): \
             {}{more}",
            names.join(", ")
        )
    }

    fn samples(&self) -> String {
        let samples = self.totals.samples;
        let mut text =
            format!("{samples}, of which {} reached a root", percent(self.rooted(), samples));
        let others = EndReason::ALL.iter().zip(self.totals.reasons);
        let others = others.filter(|(reason, count)| **reason != EndReason::Root && *count > 0);
        let others: Vec<_> =
            others.map(|(reason, count)| format!("{} {count}", reason.name())).collect();
        if !others.is_empty() {
            text.push_str(&format!(" (others ended: {})", others.join(", ")));
        }
        text
    }

    fn thread_line(&self) -> String {
        format!("{} seen, {} with samples", self.threads.seen, self.totals.threads)
    }

    fn losses(&self) -> String {
        let mut parts: Vec<String> = LOSSES
            .iter()
            .map(|(counter, name)| (count(self.control, *counter), *name))
            .chain([
                (self.storage.holes, "log holes"),
                (self.storage.unreadable, "log records unreadable"),
                (self.kernel_lost, "kernel ring full"),
                (self.totals.unattributed, "thread unknown"),
            ])
            .filter(|(count, _)| *count > 0)
            .map(|(count, name)| format!("{count} ({name})"))
            .collect();
        let dropped = tally::dropped(self.control);
        if dropped > 0 {
            parts.push(format!("{dropped} kept without their stack (table full)"));
        }
        if self.storage.orphans > 0 {
            parts.push(format!("{} kept without their stack (not found)", self.storage.orphans));
        }
        if parts.is_empty() { "none".to_string() } else { parts.join(", ") }
    }

    /// Sum of the weights against the CPU clock, and what is known of the difference.
    fn cpu(&self) -> String {
        let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
        let mut text = format!(
            "{} used, {} sampled ({})",
            seconds(self.cpu_ns),
            seconds(self.sampled_ns()),
            percent(self.sampled_ns(), self.cpu_ns),
        );
        if self.given > 0 {
            // What is sampled must not look like more than what was hit.
            let given_ns = self.given.saturating_mul(self.period_ns);
            text.push_str(&format!(
                ", {} of it reckoned for threads that ended or started others between two hits",
                seconds(given_ns)
            ));
        }
        let Some(mut missing) = self.cpu_ns.checked_sub(self.sampled_ns()) else {
            if self.sampled_ns() > self.cpu_ns + self.cpu_ns / 50 + self.period_ns {
                // The signalling events' timers never expire while their own signal is delivered, so
                // they count that time as user time; the kernel's events see it as well.
                text.push_str(
                    "; what is above is the cost of the signals, seen by both event families",
                );
            }
            return text;
        };
        let mut known = Vec::new();
        let mut explain = |ns: u64, what: &str| {
            let part = ns.min(missing);
            if part > 0 {
                missing -= part;
                known.push(format!("{} {what}", seconds(part)));
            }
        };
        explain(self.blocked_ns, "in threads that block the signal");
        explain(self.failed_ns, "in threads that could have no timer");
        if let Some(system) = self.system_ns {
            explain(system, "in the kernel, which was not sampled");
        }
        let lost = lost(self.control)
            .saturating_add(self.storage.holes)
            .saturating_add(self.storage.unreadable)
            .saturating_add(self.kernel_lost)
            .saturating_add(self.totals.unattributed);
        explain(lost.saturating_mul(self.period_ns), "lost");
        if missing > self.period_ns {
            // An inherited event starts with a whole period, so a thread that ends within its first
            // one is never hit; what is left of each thread's last period is not hit either.
            known.push(match self.choice.engine {
                Engine::Perf => format!(
                    "{} in threads or remainders shorter than the period of {:.1} ms (a higher \
                     --freq sees them)",
                    seconds(missing),
                    self.period_ns as f64 / 1e6,
                ),
                // A hit waits for the kernel's next tick, a thread's last ones for ever.
                Engine::Timer => format!(
                    "{} before threads had their timers and after the last tick of each",
                    seconds(missing),
                ),
            });
        }
        if !known.is_empty() {
            text.push_str(&format!("; the rest: {}", known.join(", ")));
        }
        text
    }

    /// How much the heaviest traces hold at least.
    fn heaviest(&self) -> String {
        let least = |it: &Heavy| it.weight.saturating_sub(it.excess);
        let sum = self.heaviest.iter().map(least).fold(0, u64::saturating_add);
        let (count, share) = (self.heaviest.len(), percent(sum, self.totals.weight));
        format!("{count} call traces hold {share} of the time")
    }

    fn stops(&self) -> String {
        let us = |ns: &u64| format!("{:.0} us", *ns as f64 / 1e3);
        let attach: Vec<String> = self.attach_stops_ns.iter().map(us).collect();
        let attach = if attach.is_empty() { "never".to_string() } else { attach.join(" + ") };
        let meanwhile = match self.entries_ns {
            (0, _) => String::new(),
            (times, longest) => {
                let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
                format!(", {times} while recording ({} at most)", us(&longest))
            }
        };
        match &self.detach_stopped_ns {
            Some(ns) => format!("{attach} at attach{meanwhile}, {} at detach", us(ns)),
            None if self.is_gone => {
                format!("{attach} at attach{meanwhile}; the target was gone at detach")
            }
            None => format!("{attach} at attach{meanwhile}; the detach failed"),
        }
    }
}

/// A share in percent.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use traceprof_abi::layout;

    use super::*;
    use crate::record::shm::Shared;

    const MS: u64 = 1_000_000;

    fn check(change: impl FnOnce(&mut Reckoning<'_>), expected: &str) {
        let user = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let data = Shared::create(layout::DATA_LEN, user).unwrap().as_data();
        let choice = Choice { engine: Engine::Perf, why: String::new(), is_free: true };
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
            failed: Vec::new(),
            failed_ns: 0,
            primed: 0,
            given: 0,
            choice: &choice,
            entries_ns: (0, 0),
            elapsed_ns: 200 * MS,
            storage: Stats::default(),
            threads: ThreadMetrics { seen: 1, ..ThreadMetrics::default() },
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
        check(|it| it.cpu_ns = 80 * MS, "");
        check(|it| it.system_ns = Some(9 * MS), "0.009 s in the kernel, which was not sampled");
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
