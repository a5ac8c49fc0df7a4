//! The final accounting: the CPU time that was sampled against the CPU time that the target used.

use crate::record::contract::number_format::{percent, seconds};
use traceprof_abi::layout::Counter;
use traceprof_abi::unwind::EndReason;

use crate::record::contract::sampling::Choice;
use crate::record::name::contexts;
use crate::record::run::counted;
use crate::record::run::executions::Executions;
use crate::record::session::program_run::ProgramRun;
use crate::record::source::kernel::Obstacle;
use crate::record::source::timer_failures::Unsampled;
use crate::record::source::wall;
use crate::record::store::liveness::Heavy;
use crate::record::target::counters::LOSSES;
use crate::record::weigh::balance::Balanced;
use crate::record::write::writer::WrittenTotals;
use crate::trace::{Metadata, Value};

/// The label of the report's line about lost samples.
pub(crate) const LOST: &str = "lost";
/// The text of that line if nothing is lost.
pub(crate) const NONE: &str = "none";

/// Returns the first few names, and the number of further ones.
fn listed(names: impl Iterator<Item = String>, count: usize) -> String {
    const SHOWN: usize = 8;
    let names: Vec<String> = names.take(SHOWN).collect();
    let more = match count.saturating_sub(names.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", names.join(", "))
}

/// What the handlers could not read of the application's contexts, with the keys of the metadata.
const CONTEXT_COUNTERS: [(&str, Counter); 5] = [
    ("contexts.torn", Counter::ContextTorn),
    ("contexts.records_unreadable", Counter::RecordUnreadable),
    ("contexts.tables_unreadable", Counter::TableUnreadable),
    ("contexts.records_foreign", Counter::RecordForeign),
    ("contexts.attributes_lost", Counter::AttributesLost),
];

/// The figures of the closing report and of the closing metadata.
#[derive(Debug)]
pub(crate) struct Accounting<'a> {
    /// The totals of the sampling.
    pub(crate) program_run: &'a ProgramRun,
    /// The totals of the writer.
    pub(crate) totals: &'a WrittenTotals,
    /// The programs that the target executed.
    pub(crate) executions: &'a Executions,
    /// Whether the target exited or runs another program now.
    pub(crate) is_gone: bool,
}

impl Accounting<'_> {
    /// Returns the sampling period in nanoseconds.
    pub(crate) fn period_ns(&self) -> u64 {
        self.program_run.setup.period_ns
    }

    /// Returns the CPU time that the target used, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.program_run.cpu.used_ns()
    }

    /// Returns the time between the first start and the last end of sampling, in nanoseconds.
    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.program_run.times_ns.1.saturating_sub(self.program_run.times_ns.0)
    }

    /// Returns the number of samples that were unwound to the root.
    pub(crate) fn rooted(&self) -> u64 {
        self.totals.reasons[EndReason::Root as usize]
    }

    /// Returns the CPU time that the weights stand for, in nanoseconds.
    pub(crate) fn sampled_ns(&self) -> u64 {
        self.totals.weight.saturating_mul(self.period_ns())
    }

    /// Returns the closing metadata of the trace.
    pub(crate) fn metadata(&self) -> Metadata {
        let mut metadata: Metadata = self.program_run.overhead.metadata().collect();
        let mut set = |key: &str, value: u64| {
            metadata.insert(key.to_string(), Value::Unsigned(value));
        };
        set("samples", self.totals.samples);
        set("weight_sum", self.totals.weight);
        set("cpu_time_ns", self.cpu_ns());
        set("rooted", self.rooted());
        set("threads", self.program_run.store.threads.seen as u64);
        set("kernel_included", u64::from(self.program_run.setup.kernel));
        set("elapsed_ns", self.elapsed_ns());
        for (reason, samples) in EndReason::ALL.iter().zip(self.totals.reasons) {
            set(&format!("ended.{}", reason.name()), samples);
        }
        for (counter, name) in LOSSES {
            set(&format!("lost.{name}"), self.program_run.counts.of(counter));
        }
        set("lost.periods besides", self.program_run.counts.of(Counter::LostOverruns));
        set("lost.log holes", self.program_run.store.storage.holes);
        set("lost.log records unreadable", self.program_run.store.storage.unreadable);
        set("lost.kernel ring full", self.program_run.source.kernel_lost);
        set("lost.thread unknown", self.totals.unattributed);
        set("lost.size limit", self.totals.left_out);
        set("unnamed_addresses", self.totals.unnamed);
        self.totals.managed.numbers().for_each(|(key, number)| set(&key, number));
        counted::numbers(self.program_run).into_iter().for_each(|(key, number)| set(key, number));
        set("followed_outside", self.program_run.store.unwound_outside);
        set("corrected_for_remaps", self.program_run.names.corrected);
        set("priming_signals", self.program_run.source.primed);
        set("rest_periods", self.program_run.weights.credited);
        set("balance_added", self.program_run.weights.balanced.added);
        set("balance_removed", self.program_run.weights.balanced.removed);
        set("entries", self.program_run.entries_ns.0);
        set("threads_without_timer", self.program_run.source.unsampled.count);
        set("threads_with_little_stack", self.program_run.source.narrow.threads.len() as u64);
        set("executions", self.executions.count());
        set("unsampled_between_ns", self.program_run.between_ns);
        set("later_attach_stops", self.program_run.later_stops_ns.0);
        set("later_attach_stop_ns_max", self.program_run.later_stops_ns.1);
        set("threads_by_events", self.program_run.source.timerless.threads);
        for (key, number) in self.program_run.source.wall.iter().flat_map(wall::report::numbers) {
            set(&key, number);
        }
        for (key, number) in contexts::report::numbers(&self.program_run.names.contexts) {
            set(key, number);
        }
        for (key, counter) in CONTEXT_COUNTERS {
            set(key, self.program_run.counts.of(counter));
        }
        set("wall.samples", self.totals.wall.0);
        set("wall.rooted", self.totals.wall.1);
        metadata.extend(self.pauses());
        metadata.insert(
            "engine".to_owned(),
            Value::Text(self.program_run.choice.engine.name().to_owned()),
        );
        metadata.insert("engine_why".to_owned(), Value::Text(self.program_run.choice.why.clone()));
        if !self.program_run.heaviest.is_empty() {
            let numbers = |it: &Heavy| {
                Value::List([it.id, it.weight, it.excess].map(Value::Unsigned).to_vec())
            };
            let list = Value::List(self.program_run.heaviest.iter().map(numbers).collect());
            metadata.insert("preserved_traces".to_string(), list);
        }
        metadata
    }

    /// Returns the metadata about the stops of the target.
    fn pauses(&self) -> impl Iterator<Item = (String, Value)> {
        let run = self.program_run;
        let detach = run.detached.stopped_ns.map(|ns| ("detach_stopped_ns", ns));
        let sums = [("paused_ns", run.paused_ns), ("paused_ns_max", self.longest_pause_ns())];
        let sums = sums.into_iter().chain(detach);
        let sums = sums.map(|(key, ns)| (key.to_string(), Value::Unsigned(ns)));
        let stops = run.attach_stops_ns.iter().map(|ns| Value::Unsigned(*ns)).collect();
        sums.chain([("attach_stops_ns".to_string(), Value::List(stops))])
    }

    /// Returns the lines of the closing report: labels and texts.
    pub(crate) fn lines(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        let mut line = |label: &str, value: String| lines.push((label.to_string(), value));
        let scope =
            if self.program_run.setup.kernel { "user and kernel mode" } else { "user mode only" };
        let Choice { engine, why, .. } = &self.program_run.choice;
        line("engine", format!("{}, {scope} ({why})", engine.name()));
        if let Some(obstacle) = Obstacle::to(self.program_run.setup.frames) {
            line("kernel", obstacle.line());
        }
        line("rate", self.rate());
        line("samples", self.samples());
        line("threads", self.thread_line());
        if let Some(executed) = self.executions.text(self.program_run.times_ns.0) {
            line("executed", executed);
        }
        line(LOST, self.losses());
        if self.totals.unnamed > 0 {
            let count = self.totals.unnamed;
            line("names", format!("{count} addresses were written before their names were found"));
        }
        let all = self.totals.samples + self.totals.wall.0;
        let by_kernel = engine.has_events() && self.program_run.setup.kernel;
        for (language, text) in self.totals.managed.lines(all, by_kernel) {
            line(language, text);
        }
        line("CPU time", self.cpu());
        if let Some(cost) = self.program_run.overhead.line() {
            line("cost", cost);
        }
        for (label, text) in self.program_run.source.wall.iter().flat_map(wall::report::lines) {
            line(label, text);
        }
        let counts = &self.program_run.counts;
        let handled = contexts::report::ContextHandlerCounts {
            torn: counts.of(Counter::ContextTorn),
            unreadable: counts.of(Counter::RecordUnreadable),
            tables_unreadable: counts.of(Counter::TableUnreadable),
            lost: counts.of(Counter::AttributesLost),
            foreign: counts.of(Counter::RecordForeign),
        };
        if let Some(text) = contexts::report::line(&self.program_run.names.contexts, all, handled) {
            line("contexts", text);
        }
        if !self.program_run.source.blocked.is_empty() {
            let names =
                self.program_run.source.blocked.iter().map(|(tid, name)| format!("{tid} ({name})"));
            let names = listed(names, self.program_run.source.blocked.len());
            line("not sampled", format!("threads that block the signal: {names}"));
        }
        let names = |threads: &[(i32, String)]| {
            let each = threads.iter().map(|(tid, name)| format!("{tid} ({name})"));
            listed(each, threads.len())
        };
        if let Some((label, text)) = self.program_run.source.narrow.line(names) {
            line(label, text);
        }
        if self.program_run.source.timerless.threads > 0 {
            line("by events", self.by_events());
        }
        if self.program_run.source.unsampled.count > 0 {
            line("not sampled", self.without_timer());
        }
        if !self.program_run.heaviest.is_empty() {
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
                "{asked:.0} Hz of CPU time requested; the target used less than one period"
            );
        }
        let delivered = match self.program_run.counts.of(Counter::TimerExpiries) {
            0 => String::new(),
            signals => {
                let hz = signals as f64 / (self.cpu_ns().max(1) as f64 / 1e9);
                format!(", by {hz:.0} signals per second, {signals} in total")
            }
        };
        let changed =
            self.program_run.overhead.rate(asked).map_or(String::new(), |text| format!(", {text}"));
        format!(
            "{asked:.0} Hz of CPU time requested, {effective:.0} Hz achieved{delivered}{changed}"
        )
    }

    /// Describes threads whose timer could not be created.
    fn without_timer(&self) -> String {
        let Unsampled { count, first, .. } = &self.program_run.source.unsampled;
        let error = first.first().map_or(0, |(_, errno)| *errno);
        let error = std::io::Error::from_raw_os_error(error);
        let names = listed(first.iter().map(|(tid, _)| tid.to_string()), *count as usize);
        let why = self.program_run.source.timerless.denied.as_ref();
        let why =
            why.map_or(String::new(), |why| format!("; no perf events in their place: {why}"));
        format!("threads without a timer ({error}; see the limit of pending signals): {names}{why}")
    }

    /// Describes threads that had perf events in place of a timer.
    fn by_events(&self) -> String {
        let scope =
            if self.program_run.source.timerless.is_user_only { ", in user mode only" } else { "" };
        format!(
            "{} threads sampled by perf events because they could not get a timer{scope}",
            self.program_run.source.timerless.threads
        )
    }

    fn samples(&self) -> String {
        let samples = self.totals.samples;
        let mut text = format!("{samples}, {} reach the root", percent(self.rooted(), samples));
        let others = EndReason::ALL.iter().zip(self.totals.reasons);
        let others = others.filter(|(reason, count)| **reason != EndReason::Root && *count > 0);
        let others: Vec<_> =
            others.map(|(reason, count)| format!("{} {count}", reason.name())).collect();
        if !others.is_empty() {
            text.push_str(&format!("; stopped early: {}", others.join(", ")));
        }
        text
    }

    fn thread_line(&self) -> String {
        format!(
            "{} seen, {} with samples",
            self.program_run.store.threads.seen, self.totals.threads
        )
    }

    pub(crate) fn losses(&self) -> String {
        let mut parts: Vec<String> = LOSSES
            .iter()
            .map(|(counter, name)| (self.program_run.counts.of(*counter), *name))
            .chain([
                (self.program_run.store.storage.holes, "log holes"),
                (self.program_run.store.storage.unreadable, "log records unreadable"),
                (self.program_run.source.kernel_lost, "kernel ring full"),
                (self.totals.unattributed, "thread unknown"),
                (self.totals.left_out, "size limit"),
            ])
            .filter(|(count, _)| *count > 0)
            .map(|(count, name)| format!("{count} ({name})"))
            .collect();
        let dropped = self.program_run.counts.dropped();
        if dropped > 0 {
            parts.push(format!("{dropped} kept without a stack (table full)"));
        }
        if self.program_run.store.storage.orphans > 0 {
            parts.push(format!(
                "{} kept without a stack (not found)",
                self.program_run.store.storage.orphans
            ));
        }
        let more = self.program_run.counts.of(Counter::LostOverruns);
        if more > 0 {
            parts.push(format!("and {more} more periods that these samples stood for"));
        }
        if parts.is_empty() { NONE.to_string() } else { parts.join(", ") }
    }

    /// Compares the sum of the weights with the CPU clock, and explains the difference.
    pub(crate) fn cpu(&self) -> String {
        let mut text = format!(
            "{} used, {} sampled ({})",
            seconds(self.cpu_ns()),
            seconds(self.sampled_ns()),
            percent(self.sampled_ns(), self.cpu_ns()),
        );
        if self.program_run.weights.credited > 0 {
            // The report must not present estimated time as sampled time.
            let credited_ns = self.program_run.weights.credited.saturating_mul(self.period_ns());
            text.push_str(&format!(
                ", {} of it estimated for threads that exited, slept or started others between \
                 samples",
                seconds(credited_ns)
            ));
        }
        if self.program_run.weights.balanced != Balanced::default() {
            let of = |periods: u64| seconds(periods.saturating_mul(self.period_ns()));
            text.push_str(&format!(
                ", corrected by the threads' own clocks: {} added, {} removed",
                of(self.program_run.weights.balanced.added),
                of(self.program_run.weights.balanced.removed),
            ));
        }
        if self.sampled_ns() > self.cpu_ns() + self.cpu_ns() / 50 + self.period_ns() {
            // The signalling events' timers never expire while their own signal is delivered, so
            // they count that time as user time. The kernel's events count it as well.
            text.push_str(
                "; the excess is the cost of the signals, which both event families count",
            );
        }
        let rest = self.shortfall();
        if !rest.is_empty() {
            text.push_str(&format!("; not sampled: {}", rest.join(", ")));
        }
        text
    }

    /// Describes the share of the heaviest traces: a lower bound, because each weight may include
    /// an excess.
    fn heaviest(&self) -> String {
        let least = |it: &Heavy| it.weight.saturating_sub(it.excess);
        let sum = self.program_run.heaviest.iter().map(least).fold(0, u64::saturating_add);
        let (count, share) = (self.program_run.heaviest.len(), percent(sum, self.totals.weight));
        format!("{count} call traces hold {share} of the time")
    }

    /// Returns the longest stop of the target, in nanoseconds.
    pub(crate) fn longest_pause_ns(&self) -> u64 {
        let run = self.program_run;
        let attaches = run.attach_stops_ns.iter().copied().max().unwrap_or(0);
        let detach = run.detached.stopped_ns.unwrap_or(0);
        attaches.max(run.later_stops_ns.1).max(run.entries_ns.1).max(detach)
    }

    fn stops(&self) -> String {
        let us = |ns: &u64| format!("{:.0} us", *ns as f64 / 1e3);
        // An attach stops a process twice.
        const SHOWN: usize = 6;
        let stops = &self.program_run.attach_stops_ns;
        let attach: Vec<String> = stops.iter().map(us).collect();
        let attach = match stops.iter().max() {
            None => "never".to_string(),
            Some(longest) if stops.len() > SHOWN => {
                format!("{} times, for {} at most,", stops.len(), us(longest))
            }
            Some(_) => attach.join(" + "),
        };
        let attach = match self.program_run.later_stops_ns {
            (0, _) => format!("{attach} at attach"),
            (times, longest) => {
                format!(
                    "{attach} at attach, {times} times at later attaches ({} at most)",
                    us(&longest)
                )
            }
        };
        let meanwhile = match self.program_run.entries_ns {
            (0, _) => String::new(),
            (times, longest) => {
                let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
                format!(", {times} while recording ({} at most)", us(&longest))
            }
        };
        match &self.program_run.detached.stopped_ns {
            Some(ns) => format!("{attach}{meanwhile}, {} at detach", us(ns)),
            None if self.is_gone => {
                format!("{attach}{meanwhile}; the program was gone before the detach")
            }
            None => format!("{attach}{meanwhile}; the detach failed"),
        }
    }
}
