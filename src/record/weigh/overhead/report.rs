//! The cost of profiling as text for the closing report and as metadata of the trace.

use crate::record::contract::number_format::seconds;
use crate::record::weigh::overhead::{Cost, OverheadSummary};
use crate::trace::Value;

/// The largest share that is shown as one: above it, the target was idle and the share says nothing
/// about sampling.
const SHARE_MAX: f64 = 10.0;

/// The time below which the recorder's share of a CPU says nothing: attaching takes most of it.
const SHORT_NS: u64 = 500_000_000;

/// Returns a share in percent with two significant digits.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        10.0.. => format!("{percent:.0} %"),
        1.0.. => format!("{percent:.1} %"),
        _ => format!("{percent:.2} %"),
    }
}

/// Returns a budget as the user wrote it.
fn budget_text(budget: f64) -> String {
    // Rounded, to drop the error of the binary representation.
    format!("{} %", (budget * 1e8).round() / 1e6)
}

impl OverheadSummary {
    /// Returns the summary of a process in which nothing was changed. The recorder's work for it is
    /// charged to the processes with an agent.
    pub(crate) fn without_agent(used_ns: u64) -> Self {
        Self { cost: Cost { used_ns, ..Cost::default() }, ..Self::default() }
    }

    fn share(&self, ns: u64) -> f64 {
        ns as f64 / self.cost.used_ns.max(1) as f64
    }

    /// Returns a cost as a share of the target's CPU time, or as a time if the target used next to
    /// none.
    fn amount(&self, ns: u64) -> String {
        match self.share(ns) {
            share if share <= SHARE_MAX => percent(share),
            _ => seconds(ns),
        }
    }

    /// Returns the target's CPU time in handlers and in the delivery of their signals, in
    /// nanoseconds.
    pub(crate) fn signals_ns(&self) -> u64 {
        self.cost.signals_ns()
    }

    /// Returns the line of the closing report; `None` if the target used no CPU time.
    pub(crate) fn line(&self) -> Option<String> {
        let cost = &self.cost;
        if cost.used_ns == 0 {
            return None;
        }
        let each_us = |ns: u64| ns as f64 / 1e3 / cost.expiries.max(1) as f64;
        let mut text = format!(
            "{} of {} CPU time for {} expiries (each {:.1} us in the handler, {:.1} us for \
             delivery), the recorder used {}",
            self.amount(self.signals_ns()),
            if self.is_combined { "the targets'" } else { "the target's" },
            cost.expiries,
            each_us(cost.handlers_ns),
            each_us(cost.delivery_ns),
            self.amount(cost.recorder_ns),
        );
        if let Some(budget) = self.budget {
            let all_ns = self.signals_ns().saturating_add(cost.recorder_ns);
            let all = self.share(all_ns);
            text.push_str(&format!("; {} in total, ", self.amount(all_ns)));
            text.push_str(&match all <= budget {
                true => format!("within the {} of --max-overhead", budget_text(budget)),
                false => format!(
                    "more than the {} of --max-overhead: {}",
                    budget_text(budget),
                    self.reason_over_budget(budget)
                ),
            });
        }
        Some(text)
    }

    /// Returns the text for the short report: the part of the target's CPU time that sampling
    /// took, and what the recorder used in `elapsed_ns`.
    pub(crate) fn brief(&self, elapsed_ns: u64) -> Option<String> {
        let cost = &self.cost;
        if cost.used_ns == 0 {
            return None;
        }
        let whose = if self.is_combined { "the programs'" } else { "the program's" };
        let own = percent(self.share(self.signals_ns()).min(1.0));
        let recorder = match elapsed_ns {
            SHORT_NS.. => {
                format!("{} of a CPU", percent(cost.recorder_ns as f64 / elapsed_ns as f64))
            }
            _ => seconds(cost.recorder_ns),
        };
        Some(format!("{own} of {whose} CPU time; {recorder} in the recorder"))
    }

    /// Returns the text for one of several processes: the total cost as a share of its CPU time.
    pub(crate) fn short(&self) -> Option<String> {
        let all_ns = self.signals_ns().saturating_add(self.cost.recorder_ns);
        (self.cost.used_ns > 0 && all_ns > 0).then(|| format!("cost {}", self.amount(all_ns)))
    }

    /// Returns why the cost exceeded the budget.
    fn reason_over_budget(&self, budget: f64) -> String {
        let recorder = self.share(self.cost.recorder_ns);
        match &self.refused {
            Some(why) => format!("the rate could not be lowered ({why}); lower --freq"),
            None if self.share(self.signals_ns()) > budget && self.is_at_slowest_rate => {
                "the signals alone exceed it at the lowest rate".to_owned()
            }
            None if recorder > 0.75 * budget => format!(
                "the recorder takes {}, most of it independent of the rate (for a busier target \
                 that is a smaller share)",
                self.amount(self.cost.recorder_ns)
            ),
            None => {
                "the budget was used up before the cost was known; record for longer".to_owned()
            }
        }
    }

    /// Returns what to add to the report's line on the rate, given the requested rate in Hz.
    pub(crate) fn rate(&self, requested_hz: f64) -> Option<String> {
        let slowest_hz = requested_hz / self.slowest.max(1) as f64;
        let digits = if slowest_hz < 10.0 { 1 } else { 0 };
        match self.changed {
            0 => None,
            1 => Some(format!("lowered to {slowest_hz:.digits$} Hz for --max-overhead")),
            times => Some(format!(
                "changed {times} times for --max-overhead, to {slowest_hz:.digits$} Hz at the \
                 lowest"
            )),
        }
    }

    /// Returns the metadata for the trace.
    pub(crate) fn metadata(&self) -> impl Iterator<Item = (String, Value)> {
        let number = Value::Unsigned;
        let mut metadata = vec![
            ("cost_handlers_ns", number(self.cost.handlers_ns)),
            ("cost_delivery_ns", number(self.cost.delivery_ns)),
            ("cost_recorder_ns", number(self.cost.recorder_ns)),
            ("cost_hits", number(self.cost.expiries)),
            ("cost_handlers_timed", number(self.cost.timed)),
        ];
        if let Some(budget) = self.budget {
            let pair = |(time_ns, divisor): &(u64, u64)| {
                Value::List(vec![number(*time_ns), number(*divisor)])
            };
            metadata.push(("max_overhead_ppm", number((budget * 1e6).round() as u64)));
            metadata.push(("rate_changes", Value::List(self.changes.iter().map(pair).collect())));
        }
        metadata.into_iter().map(|(key, value)| (key.to_owned(), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::weigh::overhead::Cost;

    const MS: u64 = 1_000_000;

    fn summary() -> OverheadSummary {
        let cost = Cost {
            used_ns: 10_000 * MS,
            handlers_ns: 2 * MS,
            delivery_ns: 64 * MS,
            recorder_ns: 21 * MS,
            expiries: 4000,
            timed: 250,
        };
        OverheadSummary { cost, slowest: 1, ..OverheadSummary::default() }
    }

    fn check(change: impl FnOnce(&mut OverheadSummary), expected: &str) {
        let mut summary = summary();
        change(&mut summary);
        let line = summary.line().unwrap();
        let end = line.split_once("recorder used ").map(|(_, end)| end);
        assert_eq!(end, Some(expected), "{line}");
    }

    #[test]
    fn the_report_states_the_cost_and_why_it_exceeds_the_budget() {
        let line = summary().line().unwrap();
        let expected = "0.66 % of the target's CPU time for 4000 expiries (each 0.5 us in the \
                        handler, 16.0 us for delivery), the recorder used 0.21 %";
        assert_eq!(line, expected);
        assert_eq!(OverheadSummary::default().line(), None, "no time has no shares");
        check(
            |it| it.budget = Some(0.01),
            "0.21 %; 0.87 % in total, within the 1 % of --max-overhead",
        );
        let more = "0.21 %; 0.87 % in total, more than the 0.5 % of --max-overhead: ";
        let tight = |it: &mut OverheadSummary| it.budget = Some(0.5 / 100.0);
        check(
            tight,
            &format!("{more}the budget was used up before the cost was known; record for longer"),
        );
        check(
            |it| {
                tight(it);
                it.refused = Some("too many open files".to_owned());
            },
            &format!("{more}the rate could not be lowered (too many open files); lower --freq"),
        );
        check(
            |it| {
                tight(it);
                it.is_at_slowest_rate = true;
            },
            &format!("{more}the signals alone exceed it at the lowest rate"),
        );
        check(
            |it| {
                tight(it);
                it.cost.recorder_ns = 1200 * MS;
            },
            "12 %; 13 % in total, more than the 0.5 % of --max-overhead: the recorder takes 12 %, \
             most of it independent of the rate (for a busier target that is a smaller share)",
        );
    }

    #[test]
    fn changes_of_the_rate_are_reported_and_kept() {
        let mut summary = OverheadSummary { budget: Some(0.01), ..summary() };
        assert_eq!(summary.rate(10_000.0), None);
        let changes = |summary: &OverheadSummary| {
            summary.metadata().find(|(key, _)| key == "rate_changes").map(|(_, value)| value)
        };
        assert_eq!(changes(&summary), Some(Value::List(Vec::new())));
        (summary.changes, summary.changed, summary.slowest) = (vec![(77, 32)], 1, 32);
        let pair = Value::List(vec![Value::Unsigned(77), Value::Unsigned(32)]);
        assert_eq!(changes(&summary), Some(Value::List(vec![pair])));
        assert_eq!(summary.rate(10_000.0).unwrap(), "lowered to 312 Hz for --max-overhead");
        summary.add(OverheadSummary { changed: 2, slowest: 64, ..summary.clone() });
        let expected = "changed 3 times for --max-overhead, to 3.1 Hz at the lowest";
        assert_eq!(summary.rate(199.0).unwrap(), expected);
        assert_eq!((summary.changes.len(), summary.cost.expiries), (2, 8000));
        let keys = |summary: &OverheadSummary| summary.metadata().count();
        assert_eq!(
            (keys(&summary), keys(&OverheadSummary { budget: None, ..summary.clone() })),
            (7, 5)
        );
    }
}
