//! The rows of the live table, sorted, as columns of text.

use super::display_state::{DisplayState, Order};
use super::live_counts::LastAndAll;
use super::row_weights::{RowLabel, RowWeight};
use crate::view::recording::mode::Mode;
use crate::view::text::number::percent;

/// A row with its weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiveRow<'a> {
    /// The name.
    pub(super) label: &'a RowLabel,
    /// The weight in the last interval.
    pub(super) last: RowWeight,
    /// The weight since the start.
    pub(super) all: RowWeight,
}

/// The pairs of columns that fit: for the last interval, and since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LiveColumns {
    last: bool,
    all: bool,
}

impl LiveColumns {
    /// Both pairs.
    pub(super) const BOTH: Self = Self { last: true, all: true };

    /// Returns the pairs that fit on a line. A narrow terminal shows the pair that sorts the rows.
    pub(super) fn fitting(width: usize, display: &DisplayState) -> Self {
        match width {
            WIDE.. => Self::BOTH,
            _ => Self { last: !display.since_start, all: display.since_start },
        }
    }

    /// Returns the number of characters of the columns.
    pub(super) fn width(self) -> usize {
        PAIR * (usize::from(self.last) + usize::from(self.all))
    }

    /// Returns the texts of the shown pairs, one after another.
    fn both(self, last: String, all: String) -> String {
        let pairs = [(self.last, last), (self.all, all)];
        pairs.into_iter().filter(|(is_shown, _)| *is_shown).map(|(_, text)| text).collect()
    }
}

/// Minimum width at which both pairs fit next to a name.
const WIDE: usize = 60;
/// Width of a pair in characters.
const PAIR: usize = 16;

/// The rows, heaviest first, and the totals that their shares refer to.
#[derive(Debug)]
pub(super) struct LiveTable<'a> {
    /// The rows.
    pub(super) rows: Vec<LiveRow<'a>>,
    last_all: u64,
    all_all: u64,
    columns: LiveColumns,
}

impl<'a> LiveTable<'a> {
    /// Returns all rows that the filter admits, sorted.
    ///
    /// Without `since_start` the rows of the last interval come first, then the other rows by their
    /// weight since the start.
    pub(super) fn new(times: &'a LastAndAll, display: &DisplayState, columns: LiveColumns) -> Self {
        let last = |label| times.last.rows.get(label).copied().unwrap_or_default();
        let is_shown = |label: &RowLabel| display.admits(&label.text, &label.qualifier);
        let rows = times.all.rows.iter().filter(|(label, _)| is_shown(label));
        let mut rows: Vec<LiveRow<'a>> =
            rows.map(|(label, all)| LiveRow { label, last: last(label), all: *all }).collect();
        let weight = |weight: &RowWeight| match display.order {
            Order::Own => (weight.own, weight.total),
            Order::Total => (weight.total, weight.own),
        };
        let rank = |row: &LiveRow<'_>| match display.since_start {
            true => (weight(&row.all), weight(&row.last)),
            false => (weight(&row.last), weight(&row.all)),
        };
        rows.sort_by(|a, b| rank(b).cmp(&rank(a)).then_with(|| a.label.cmp(b.label)));
        Self { rows, last_all: times.last.all, all_all: times.all.all, columns }
    }

    /// Returns the columns of numbers.
    pub(super) fn numbers(&self, row: &LiveRow<'_>) -> String {
        let pair = |of: RowWeight, all| format!("{}{}", share(of.own, all), share(of.total, all));
        self.columns.both(pair(row.last, self.last_all), pair(row.all, self.all_all))
    }

    /// Returns the sum of all rows after the first `shown`.
    ///
    /// Totals are left out, because common callers would count twice.
    pub(super) fn rest(&self, shown: usize) -> Option<String> {
        let rest = self.rows.get(shown..).filter(|rest| !rest.is_empty())?;
        let sum = |of: fn(&LiveRow<'_>) -> u64| rest.iter().fold(0u64, |sum, row| sum + of(row));
        let pair = |own: u64, all: u64| format!("{}{:>8}", share(own, all), "");
        let last = pair(sum(|row| row.last.own), self.last_all);
        let all = pair(sum(|row| row.all.own), self.all_all);
        Some(format!("{}  ... {} more", self.columns.both(last, all), rest.len()))
    }
}

/// Returns a column with a share in percent.
fn share(part: u64, whole: u64) -> String {
    match part {
        0 => format!("{:>8}", "-"),
        _ => format!("{:8.1}", percent(part, whole)),
    }
}

/// Returns the two lines above the columns, with or without idle threads. An arrow marks the sort
/// order.
pub(super) fn heading(
    display: &DisplayState,
    columns: LiveColumns,
    without_idle: bool,
    interval_s: f64,
) -> [String; 2] {
    let what = match display.mode {
        Mode::Cpu => "shares of CPU time",
        Mode::Wall if without_idle => "shares of time, without idle threads",
        Mode::Wall => "shares of all time of threads",
    };
    let last = format!("{:>PAIR$}", format!("last {interval_s:.1} s"));
    let above = columns.both(last, format!("{:>PAIR$}", "since start"));
    let column = |order: Order, since_start: bool| {
        let name = if order == Order::Own { "self" } else { "total" };
        let is_key = display.order == order && display.since_start == since_start;
        let text = if is_key { format!("▾{name} %") } else { format!("{name} %") };
        format!("{text:>8}")
    };
    let pair = |since: bool| column(Order::Own, since) + &column(Order::Total, since);
    [format!("{above}  {what}"), columns.both(pair(false), pair(true))]
}
