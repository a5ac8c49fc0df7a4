//! What is told of the costs: in the closing report and in the trace.

use crate::record::weigh::overhead::Spent;
use crate::trace::Value;

/// A share, in percent; two figures of it.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        10.0.. => format!("{percent:.0} %"),
        1.0.. => format!("{percent:.1} %"),
        _ => format!("{percent:.2} %"),
    }
}

/// A budget, as it was asked for.
fn asked(budget: f64) -> String {
    // Without the last digits of what cannot be written in binary.
    format!("{} %", (budget * 1e8).round() / 1e6)
}

impl Spent {
    fn share(&self, ns: u64) -> f64 {
        ns as f64 / self.cost.used_ns.max(1) as f64
    }

    /// CPU time that the handlers and their delivery took of the target's.
    pub(crate) fn signals_ns(&self) -> u64 {
        self.cost.handlers_ns.saturating_add(self.cost.delivery_ns)
    }

    /// The line of the closing report.
    pub(crate) fn line(&self) -> Option<String> {
        let cost = &self.cost;
        if cost.used_ns == 0 {
            return None;
        }
        let each_us = |ns: u64| ns as f64 / 1e3 / cost.hits.max(1) as f64;
        let mut text = format!(
            "{} of {} CPU time in {} hits ({:.1} us each in handlers, {:.1} us in their \
             delivery), the recorder used {}",
            percent(self.share(self.signals_ns())),
            if self.is_of_several { "the targets'" } else { "the target's" },
            cost.hits,
            each_us(cost.handlers_ns),
            each_us(cost.delivery_ns),
            percent(self.share(cost.recorder_ns)),
        );
        if let Some(budget) = self.budget {
            let all = self.share(self.signals_ns().saturating_add(cost.recorder_ns));
            text.push_str(&format!("; {} in all, ", percent(all)));
            text.push_str(&match all <= budget {
                true => format!("within the {} of --max-overhead", asked(budget)),
                false => format!(
                    "more than the {} of --max-overhead: {}",
                    asked(budget),
                    self.why_more(budget)
                ),
            });
        }
        Some(text)
    }

    /// What of one of several processes is told: the share of its CPU time that all of it took.
    pub(crate) fn short(&self) -> Option<String> {
        let all_ns = self.signals_ns().saturating_add(self.cost.recorder_ns);
        (self.cost.used_ns > 0).then(|| format!("cost {}", percent(self.share(all_ns))))
    }

    /// Why the budget was not kept.
    fn why_more(&self, budget: f64) -> String {
        let recorder = self.share(self.cost.recorder_ns);
        match &self.refused {
            Some(why) => format!("the rate could not be lowered ({why}); lower --freq"),
            None if self.share(self.signals_ns()) > budget && self.is_at_its_end => {
                "the signals alone take that at the slowest rate".to_owned()
            }
            None if recorder > 0.75 * budget => format!(
                "the recorder takes {}, most of it at any rate (a busier target makes that a \
                 smaller \
                 share)",
                percent(recorder)
            ),
            None => "it was used before the costs were known; record for longer".to_owned(),
        }
    }

    /// What the line of the rate adds, for a rate in Hz that was asked for.
    pub(crate) fn rate(&self, asked_hz: f64) -> Option<String> {
        let slowest_hz = asked_hz / self.slowest.max(1) as f64;
        let digits = if slowest_hz < 10.0 { 1 } else { 0 };
        match self.changed {
            0 => None,
            1 => Some(format!("lowered to {slowest_hz:.digits$} Hz for --max-overhead")),
            times => Some(format!(
                "changed {times} times for --max-overhead, to {slowest_hz:.digits$} Hz at the \
                 slowest"
            )),
        }
    }

    /// What the trace keeps.
    pub(crate) fn metadata(&self) -> impl Iterator<Item = (String, Value)> {
        let number = Value::Unsigned;
        let mut metadata = vec![
            ("cost_handlers_ns", number(self.cost.handlers_ns)),
            ("cost_delivery_ns", number(self.cost.delivery_ns)),
            ("cost_recorder_ns", number(self.cost.recorder_ns)),
            ("cost_hits", number(self.cost.hits)),
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

    fn spent() -> Spent {
        let cost = Cost {
            used_ns: 10_000 * MS,
            handlers_ns: 2 * MS,
            delivery_ns: 64 * MS,
            recorder_ns: 21 * MS,
            hits: 4000,
            timed: 250,
        };
        Spent { cost, slowest: 1, ..Spent::default() }
    }

    fn check(change: impl FnOnce(&mut Spent), expected: &str) {
        let mut spent = spent();
        change(&mut spent);
        let line = spent.line().unwrap();
        let end = line.split_once("recorder used ").map(|(_, end)| end);
        assert_eq!(end, Some(expected), "{line}");
    }

    #[test]
    fn the_cost_is_told_and_why_it_is_more_than_was_asked_for() {
        let line = spent().line().unwrap();
        let hits = "0.66 % of the target's CPU time in 4000 hits (0.5 us each in handlers, 16.0 us \
            in \
                    their delivery), the recorder used 0.21 %";
        assert_eq!(line, hits);
        assert_eq!(Spent::default().line(), None, "of no time there are no shares");
        check(
            |it| it.budget = Some(0.01),
            "0.21 %; 0.87 % in all, within the 1 % of --max-overhead",
        );
        let more = "0.21 %; 0.87 % in all, more than the 0.5 % of --max-overhead: ";
        let tight = |it: &mut Spent| it.budget = Some(0.5 / 100.0);
        check(tight, &format!("{more}it was used before the costs were known; record for longer"));
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
                it.is_at_its_end = true;
            },
            &format!("{more}the signals alone take that at the slowest rate"),
        );
        check(
            |it| {
                tight(it);
                it.cost.recorder_ns = 1200 * MS;
            },
            "12 %; 13 % in all, more than the 0.5 % of --max-overhead: the recorder takes 12 %, \
             most \
             of it at any rate (a busier target makes that a smaller share)",
        );
    }

    #[test]
    fn changes_of_the_rate_are_told_and_kept() {
        let mut spent = Spent { budget: Some(0.01), ..spent() };
        assert_eq!(spent.rate(10_000.0), None);
        let changes = |spent: &Spent| {
            spent.metadata().find(|(key, _)| key == "rate_changes").map(|(_, value)| value)
        };
        assert_eq!(changes(&spent), Some(Value::List(Vec::new())));
        (spent.changes, spent.changed, spent.slowest) = (vec![(77, 32)], 1, 32);
        let pair = Value::List(vec![Value::Unsigned(77), Value::Unsigned(32)]);
        assert_eq!(changes(&spent), Some(Value::List(vec![pair])));
        assert_eq!(spent.rate(10_000.0).unwrap(), "lowered to 312 Hz for --max-overhead");
        spent.add(Spent { changed: 2, slowest: 64, ..spent.clone() });
        let told = "changed 3 times for --max-overhead, to 3.1 Hz at the slowest";
        assert_eq!(spent.rate(199.0).unwrap(), told);
        assert_eq!((spent.changes.len(), spent.cost.hits), (2, 8000));
        let keys = |spent: &Spent| spent.metadata().count();
        assert_eq!((keys(&spent), keys(&Spent { budget: None, ..spent.clone() })), (7, 5));
    }
}
