//! The rows of the live table, sorted, as columns of text.

use super::board::Times;
use super::look::{Look, Order};
use super::tally::{Label, Weight};
use crate::view::mode::Mode;
use crate::view::rows::percent;

/// A row of both times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row<'a> {
    /// What it is called.
    pub(super) label: &'a Label,
    /// In the last interval.
    pub(super) last: Weight,
    /// Since the start.
    pub(super) all: Weight,
}

/// Rows, heaviest first, and what their shares are of.
#[derive(Debug)]
pub(super) struct Table<'a> {
    /// The rows.
    pub(super) rows: Vec<Row<'a>>,
    last_all: u64,
    all_all: u64,
}

impl<'a> Table<'a> {
    /// All rows of what is looked at. Without `since_start` those that have something in the last
    /// interval come first, then the others by their weight since the start.
    pub(super) fn new(times: &'a Times, look: &Look) -> Self {
        let last = |label| times.last.rows.get(label).copied().unwrap_or_default();
        let rows = times.all.rows.iter();
        let mut rows: Vec<Row<'a>> =
            rows.map(|(label, all)| Row { label, last: last(label), all: *all }).collect();
        let weight = |weight: &Weight| match look.order {
            Order::Own => (weight.own, weight.total),
            Order::Total => (weight.total, weight.own),
        };
        let rank = |row: &Row<'_>| match look.since_start {
            true => (weight(&row.all), weight(&row.last)),
            false => (weight(&row.last), weight(&row.all)),
        };
        rows.sort_by(|a, b| rank(b).cmp(&rank(a)).then_with(|| a.label.cmp(b.label)));
        Self { rows, last_all: times.last.all, all_all: times.all.all }
    }

    /// The four columns of numbers.
    pub(super) fn numbers(&self, row: &Row<'_>) -> String {
        let last = [row.last.own, row.last.total].map(|part| share(part, self.last_all));
        let all = [row.all.own, row.all.total].map(|part| share(part, self.all_all));
        format!("{}{}{}{}", last[0], last[1], all[0], all[1])
    }

    /// The columns of numbers of all rows but the first `shown`, which have no other line: what they
    /// have in common by way of callers would count twice, so `total` is left out.
    pub(super) fn rest(&self, shown: usize) -> Option<String> {
        let rest = self.rows.get(shown..).filter(|rest| !rest.is_empty())?;
        let sum = |of: fn(&Row<'_>) -> u64| rest.iter().fold(0u64, |sum, row| sum + of(row));
        let last = share(sum(|row| row.last.own), self.last_all);
        let all = share(sum(|row| row.all.own), self.all_all);
        Some(format!("{last}{:>8}{all}{:>8}  ... {} more", "", "", rest.len()))
    }
}

/// A column of a share in percent.
fn share(part: u64, whole: u64) -> String {
    match part {
        0 => format!("{:>8}", "-"),
        _ => format!("{:8.1}", percent(part, whole)),
    }
}

/// The two lines above the columns; an arrow marks what they are sorted by.
pub(super) fn heading(look: &Look, interval_s: f64) -> [String; 2] {
    let last = format!("last {interval_s:.1} s");
    let what = match look.mode {
        Mode::Cpu => "shares of CPU time",
        Mode::Wall => "shares of all time of threads",
    };
    let above = format!("{last:>16}{:>16}  {what}", "since start");
    let column = |name: &str, order: Order, since_start: bool| {
        let is_key = look.order == order && look.since_start == since_start;
        let text = if is_key { format!("▾{name} %") } else { format!("{name} %") };
        format!("{text:>8}")
    };
    let columns: String = [(Order::Own, false), (Order::Total, false)]
        .into_iter()
        .chain([(Order::Own, true), (Order::Total, true)])
        .map(|(order, since)| {
            let name = if order == Order::Own { "self" } else { "total" };
            column(name, order, since)
        })
        .collect();
    [above, columns]
}
