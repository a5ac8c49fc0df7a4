//! The reckoning at the end: what was sampled against what the target used.

use std::time::Instant;

use nix::time::ClockId;
use nix::unistd::Pid;
use traceprof_abi::layout::Counter;
use traceprof_abi::unwind::EndReason;

use super::balance::Balanced;
use super::clock::clock_ns;
use super::contexts;
use super::counts::LOSSES;
use super::engine::Choice;
use super::executions::Executions;
use super::failures::Unsampled;
use super::kernel::cpus;
use super::liveness::Heavy;
use super::scribe::Totals;
use super::stint::Stint;
use super::tally;
use super::wall;
use crate::trace::{Metadata, Value};

/// The target's CPU clock, read from outside.
#[derive(Debug, Clone)]
pub(super) struct CpuClock {
    clock: Option<ClockId>,
    start_ns: u64,
    last_ns: u64,
    last_read: Instant,
}

impl CpuClock {
    /// Of a process, from now on.
    pub(super) fn start(pid: i32) -> Self {
        let clock = nix::time::clock_getcpuclockid(Pid::from_raw(pid)).ok();
        let now = clock.map_or(0, clock_ns);
        Self { clock, start_ns: now, last_ns: now, last_read: Instant::now() }
    }

    /// Reads the clock while the process is there; what it last said counts when it is gone.
    pub(super) fn advance(&mut self) {
        let read = Instant::now();
        let now_ns = self.clock.map_or(0, clock_ns);
        if now_ns > 0 {
            (self.last_ns, self.last_read) = (self.last_ns.max(now_ns), read);
        }
    }

    /// Goes on to the end of a later reading of the same clock. The time between the two.
    pub(super) fn extend(&mut self, later: &Self) -> u64 {
        let between_ns = later.start_ns.saturating_sub(self.last_ns);
        self.last_ns = self.last_ns.max(later.last_ns);
        between_ns
    }

    /// Adds what another process used; there is no clock any more.
    pub(super) fn join(&mut self, other: &Self) {
        let used_ns = self.used_ns() + other.used_ns();
        *self = Self { clock: None, start_ns: 0, last_ns: used_ns, last_read: self.last_read };
    }

    /// CPU time since the start in nanoseconds.
    pub(super) fn used_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.start_ns)
    }

    /// The most that it can be now, in nanoseconds: exact while the process is there, and afterwards as if
    /// it had run on all cores since the last reading.
    pub(super) fn used_at_most_ns(&self) -> u64 {
        match self.clock.map(clock_ns).filter(|now_ns| *now_ns > 0) {
            Some(now_ns) => now_ns.saturating_sub(self.start_ns),
            None => {
                let since_ns = u64::try_from(self.last_read.elapsed().as_nanos());
                let unread_ns = since_ns.unwrap_or(u64::MAX).saturating_mul(cpus().len() as u64);
                self.used_ns().saturating_add(unread_ns)
            }
        }
    }

    #[cfg(test)]
    pub(super) fn made_up(start_ns: u64, last_ns: u64) -> Self {
        Self { clock: None, start_ns, last_ns, last_read: Instant::now() }
    }
}

/// For the eye.
pub(super) fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

/// The first few names, and how many more there are.
fn listed(names: impl Iterator<Item = String>, count: usize) -> String {
    const SHOWN: usize = 8;
    let names: Vec<String> = names.take(SHOWN).collect();
    let more = match count.saturating_sub(names.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", names.join(", "))
}

/// All that the trailer tells.
#[derive(Debug)]
pub(super) struct Reckoning<'a> {
    /// What the sampling came to.
    pub(super) stint: &'a Stint,
    /// What was written.
    pub(super) totals: &'a Totals,
    /// The programs that the target executed.
    pub(super) executions: &'a Executions,
    /// The target ended, or runs another program now.
    pub(super) is_gone: bool,
}

impl Reckoning<'_> {
    /// Nanoseconds between samples.
    pub(super) fn period_ns(&self) -> u64 {
        self.stint.setup.period_ns
    }

    /// CPU time that the target used.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.stint.cpu.used_ns()
    }

    fn elapsed_ns(&self) -> u64 {
        self.stint.times_ns.1.saturating_sub(self.stint.times_ns.0)
    }

    /// Samples whose stack reached the root.
    pub(super) fn rooted(&self) -> u64 {
        self.totals.reasons[EndReason::Root as usize]
    }

    /// CPU time that the weights stand for, in nanoseconds.
    pub(super) fn sampled_ns(&self) -> u64 {
        self.totals.weight.saturating_mul(self.period_ns())
    }

    /// What the trace keeps of it.
    pub(super) fn metadata(&self) -> Metadata {
        let mut metadata: Metadata = self.stint.spent.metadata().collect();
        let mut set = |key: &str, value: u64| {
            metadata.insert(key.to_string(), Value::Unsigned(value));
        };
        set("samples", self.totals.samples);
        set("weight_sum", self.totals.weight);
        set("cpu_time_ns", self.cpu_ns());
        set("rooted", self.rooted());
        set("threads", self.stint.threads.seen as u64);
        set("kernel_included", u64::from(self.stint.setup.kernel));
        set("elapsed_ns", self.elapsed_ns());
        for (reason, samples) in EndReason::ALL.iter().zip(self.totals.reasons) {
            set(&format!("ended.{}", reason.name()), samples);
        }
        for (counter, name) in LOSSES {
            set(&format!("lost.{name}"), self.stint.counts.of(counter));
        }
        set("lost.periods besides", self.stint.counts.of(Counter::LostOverruns));
        set("lost.log holes", self.stint.storage.holes);
        set("lost.log records unreadable", self.stint.storage.unreadable);
        set("lost.kernel ring full", self.stint.kernel_lost);
        set("lost.thread unknown", self.totals.unattributed);
        set("lost.size limit", self.totals.left_out);
        set("unnamed_addresses", self.totals.unnamed);
        for (key, number) in tally::numbers(self) {
            set(key, number);
        }
        set("followed_outside", self.stint.followed);
        set("corrected_for_remaps", self.stint.corrected);
        set("priming_signals", self.stint.primed);
        set("rest_periods", self.stint.given);
        set("balance_added", self.stint.balanced.more);
        set("balance_removed", self.stint.balanced.less);
        set("entries", self.stint.entries_ns.0);
        set("threads_without_timer", self.stint.unsampled.count);
        set("executions", self.executions.count());
        set("unsampled_between_ns", self.stint.between_ns);
        set("later_attach_stops", self.stint.later_stops_ns.0);
        set("later_attach_stop_ns_max", self.stint.later_stops_ns.1);
        set("threads_by_events", self.stint.relieved.threads);
        for (key, number) in self.stint.wall.iter().flat_map(wall::report::numbers) {
            set(&key, number);
        }
        for (key, number) in contexts::report::numbers(&self.stint.contexts) {
            set(key, number);
        }
        set("contexts.torn", self.stint.counts.of(Counter::ContextTorn));
        set("contexts.records_unreadable", self.stint.counts.of(Counter::RecordUnreadable));
        set("contexts.records_foreign", self.stint.counts.of(Counter::RecordForeign));
        set("contexts.attributes_lost", self.stint.counts.of(Counter::AttributesLost));
        set("wall.samples", self.totals.wall.0);
        set("wall.rooted", self.totals.wall.1);
        if let Some(ns) = self.stint.detached.stopped_ns {
            set("detach_stopped_ns", ns);
        }
        let stops = self.stint.attach_stops_ns.iter().map(|ns| Value::Unsigned(*ns)).collect();
        metadata.insert("attach_stops_ns".to_string(), Value::List(stops));
        metadata
            .insert("engine".to_owned(), Value::Text(self.stint.choice.engine.name().to_owned()));
        metadata.insert("engine_why".to_owned(), Value::Text(self.stint.choice.why.clone()));
        if !self.stint.heaviest.is_empty() {
            let numbers = |it: &Heavy| {
                Value::List([it.id, it.weight, it.excess].map(Value::Unsigned).to_vec())
            };
            let list = Value::List(self.stint.heaviest.iter().map(numbers).collect());
            metadata.insert("preserved_traces".to_string(), list);
        }
        metadata
    }

    /// The lines of the trailer.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        let mut line = |label: &str, value: String| lines.push((label.to_string(), value));
        let scope = if self.stint.setup.kernel { "user and kernel mode" } else { "user mode only" };
        let Choice { engine, why, .. } = &self.stint.choice;
        line("engine", format!("{}, {scope} ({why})", engine.name()));
        line("rate", self.rate());
        line("samples", self.samples());
        line("threads", self.thread_line());
        if let Some(executed) = self.executions.text(self.stint.times_ns.0) {
            line("executed", executed);
        }
        line("lost", self.losses());
        if self.totals.unnamed > 0 {
            let count = self.totals.unnamed;
            line(
                "names",
                format!("not found in time for {count} addresses, which were written without"),
            );
        }
        line("CPU time", self.cpu());
        if let Some(cost) = self.stint.spent.line() {
            line("cost", cost);
        }
        for (label, text) in self.stint.wall.iter().flat_map(wall::report::lines) {
            line(label, text);
        }
        let counts = &self.stint.counts;
        let handled = contexts::report::Handled {
            torn: counts.of(Counter::ContextTorn),
            unreadable: counts.of(Counter::RecordUnreadable),
            lost: counts.of(Counter::AttributesLost),
            foreign: counts.of(Counter::RecordForeign),
        };
        let all = self.totals.samples + self.totals.wall.0;
        if let Some(text) = contexts::report::line(&self.stint.contexts, all, handled) {
            line("contexts", text);
        }
        if !self.stint.blocked.is_empty() {
            let names = self.stint.blocked.iter().map(|(tid, name)| format!("{tid} ({name})"));
            let names = listed(names, self.stint.blocked.len());
            line("not sampled", format!("threads that block the signal: {names}"));
        }
        if self.stint.relieved.threads > 0 {
            line("by events", self.by_events());
        }
        if self.stint.unsampled.count > 0 {
            line("not sampled", self.without_timer());
        }
        if !self.stint.heaviest.is_empty() {
            line("heaviest", self.heaviest());
        }
        line("stopped", self.stops());
        lines
    }

    fn rate(&self) -> String {
        let asked = 1e9 / self.period_ns() as f64;
        let effective = self.totals.weight as f64 / (self.cpu_ns().max(1) as f64 / 1e9);
        if self.cpu_ns() < self.period_ns() {
            return format!(
                "{asked:.0} Hz of CPU time asked; the target used less than one period"
            );
        }
        let timer_hits = self.stint.counts.of(Counter::TimerHits);
        let delivered = match timer_hits {
            0 => String::new(),
            hits => {
                let hz = hits as f64 / (self.cpu_ns().max(1) as f64 / 1e9);
                format!(", in {hz:.0} signals a second, {timer_hits} in all")
            }
        };
        let changed =
            self.stint.spent.rate(asked).map_or(String::new(), |text| format!(", {text}"));
        format!("{asked:.0} Hz of CPU time asked, {effective:.0} Hz had{delivered}{changed}")
    }

    /// Threads whose timer could not be created.
    fn without_timer(&self) -> String {
        let Unsampled { count, first, .. } = &self.stint.unsampled;
        let error = first.first().map_or(0, |(_, errno)| *errno);
        let error = std::io::Error::from_raw_os_error(error);
        let names = listed(first.iter().map(|(tid, _)| tid.to_string()), *count as usize);
        let why = self.stint.relieved.denied.as_ref();
        let why = why.map_or(String::new(), |why| format!("; no perf events instead: {why}"));
        format!(
            "threads that could have no timer ({error}; see the limit of pending signals): \
             {names}{why}"
        )
    }

    /// Threads that had events in place of a timer.
    fn by_events(&self) -> String {
        let scope = if self.stint.relieved.is_user_only { ", in user mode only" } else { "" };
        format!(
            "{} threads sampled by perf events, as they could have no timer{scope}",
            self.stint.relieved.threads
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
        format!("{} seen, {} with samples", self.stint.threads.seen, self.totals.threads)
    }

    fn losses(&self) -> String {
        let mut parts: Vec<String> = LOSSES
            .iter()
            .map(|(counter, name)| (self.stint.counts.of(*counter), *name))
            .chain([
                (self.stint.storage.holes, "log holes"),
                (self.stint.storage.unreadable, "log records unreadable"),
                (self.stint.kernel_lost, "kernel ring full"),
                (self.totals.unattributed, "thread unknown"),
                (self.totals.left_out, "size limit"),
            ])
            .filter(|(count, _)| *count > 0)
            .map(|(count, name)| format!("{count} ({name})"))
            .collect();
        let dropped = self.stint.counts.dropped();
        if dropped > 0 {
            parts.push(format!("{dropped} kept without their stack (table full)"));
        }
        if self.stint.storage.orphans > 0 {
            parts.push(format!(
                "{} kept without their stack (not found)",
                self.stint.storage.orphans
            ));
        }
        let more = self.stint.counts.of(Counter::LostOverruns);
        if more > 0 {
            parts.push(format!("with them {more} periods more that they stood for"));
        }
        if parts.is_empty() { "none".to_string() } else { parts.join(", ") }
    }

    /// Sum of the weights against the CPU clock, and what is known of the difference.
    pub(super) fn cpu(&self) -> String {
        let mut text = format!(
            "{} used, {} sampled ({})",
            seconds(self.cpu_ns()),
            seconds(self.sampled_ns()),
            percent(self.sampled_ns(), self.cpu_ns()),
        );
        if self.stint.given > 0 {
            // What is sampled must not look like more than what was hit.
            let given_ns = self.stint.given.saturating_mul(self.period_ns());
            text.push_str(&format!(
                ", {} of it reckoned for threads that ended or started others between two hits",
                seconds(given_ns)
            ));
        }
        if self.stint.balanced != Balanced::default() {
            let of = |periods: u64| seconds(periods.saturating_mul(self.period_ns()));
            text.push_str(&format!(
                ", after {} was added and {} taken away by the threads' own clocks",
                of(self.stint.balanced.more),
                of(self.stint.balanced.less),
            ));
        }
        if self.sampled_ns() > self.cpu_ns() + self.cpu_ns() / 50 + self.period_ns() {
            // The signalling events' timers never expire while their own signal is delivered, so
            // they count that time as user time; the kernel's events see it as well.
            text.push_str(
                "; what is above is the cost of the signals, seen by both event families",
            );
        }
        let rest = self.rest();
        if !rest.is_empty() {
            text.push_str(&format!("; the rest: {}", rest.join(", ")));
        }
        text
    }

    /// How much the heaviest traces hold at least.
    fn heaviest(&self) -> String {
        let least = |it: &Heavy| it.weight.saturating_sub(it.excess);
        let sum = self.stint.heaviest.iter().map(least).fold(0, u64::saturating_add);
        let (count, share) = (self.stint.heaviest.len(), percent(sum, self.totals.weight));
        format!("{count} call traces hold {share} of the time")
    }

    fn stops(&self) -> String {
        let us = |ns: &u64| format!("{:.0} us", *ns as f64 / 1e3);
        // Two of a process.
        const SHOWN: usize = 6;
        let stops = &self.stint.attach_stops_ns;
        let attach: Vec<String> = stops.iter().map(us).collect();
        let attach = match stops.iter().max() {
            None => "never".to_string(),
            Some(longest) if stops.len() > SHOWN => {
                format!("{} times, for {} at most,", stops.len(), us(longest))
            }
            Some(_) => attach.join(" + "),
        };
        let attach = match self.stint.later_stops_ns {
            (0, _) => format!("{attach} at attach"),
            (times, longest) => {
                format!(
                    "{attach} at attach and {} at most, {times} times, at later ones",
                    us(&longest)
                )
            }
        };
        let meanwhile = match self.stint.entries_ns {
            (0, _) => String::new(),
            (times, longest) => {
                let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
                format!(", {times} while recording ({} at most)", us(&longest))
            }
        };
        match &self.stint.detached.stopped_ns {
            Some(ns) => format!("{attach}{meanwhile}, {} at detach", us(ns)),
            None if self.is_gone => {
                format!("{attach}{meanwhile}; the target was gone at detach")
            }
            None => format!("{attach}{meanwhile}; the detach failed"),
        }
    }
}

/// A share in percent.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}
