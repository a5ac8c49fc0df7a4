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

/// Which columns of numbers have room: a pair of the last interval, a pair of all since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns {
    last: bool,
    all: bool,
}

impl Columns {
    /// Both pairs.
    pub(super) const BOTH: Self = Self { last: true, all: true };

    /// Those that fit into a line: on a narrow terminal the pair that rows are sorted by.
    pub(super) fn fitting(width: usize, look: &Look) -> Self {
        match width {
            WIDE.. => Self::BOTH,
            _ => Self { last: !look.since_start, all: look.since_start },
        }
    }

    /// Characters that they take.
    pub(super) fn width(self) -> usize {
        PAIR * (usize::from(self.last) + usize::from(self.all))
    }

    /// What there is of each pair, one after the other.
    fn both(self, last: String, all: String) -> String {
        let pairs = [(self.last, last), (self.all, all)];
        pairs.into_iter().filter(|(is_shown, _)| *is_shown).map(|(_, text)| text).collect()
    }
}

/// From so many characters on, both pairs have room beside a name.
const WIDE: usize = 60;
/// Characters of a pair.
const PAIR: usize = 16;

/// Rows, heaviest first, and what their shares are of.
#[derive(Debug)]
pub(super) struct Table<'a> {
    /// The rows.
    pub(super) rows: Vec<Row<'a>>,
    last_all: u64,
    all_all: u64,
    columns: Columns,
}

impl<'a> Table<'a> {
    /// All rows of what is looked at. Without `since_start` those that have something in the last
    /// interval come first, then the others by their weight since the start.
    pub(super) fn new(times: &'a Times, look: &Look, columns: Columns) -> Self {
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
        Self { rows, last_all: times.last.all, all_all: times.all.all, columns }
    }

    /// The columns of numbers.
    pub(super) fn numbers(&self, row: &Row<'_>) -> String {
        let pair = |of: Weight, all| format!("{}{}", share(of.own, all), share(of.total, all));
        self.columns.both(pair(row.last, self.last_all), pair(row.all, self.all_all))
    }

    /// The columns of numbers of all rows but the first `shown`, which have no other line: what they
    /// have in common by way of callers would count twice, so `total` is left out.
    pub(super) fn rest(&self, shown: usize) -> Option<String> {
        let rest = self.rows.get(shown..).filter(|rest| !rest.is_empty())?;
        let sum = |of: fn(&Row<'_>) -> u64| rest.iter().fold(0u64, |sum, row| sum + of(row));
        let pair = |own: u64, all: u64| format!("{}{:>8}", share(own, all), "");
        let last = pair(sum(|row| row.last.own), self.last_all);
        let all = pair(sum(|row| row.all.own), self.all_all);
        Some(format!("{}  ... {} more", self.columns.both(last, all), rest.len()))
    }
}

/// A column of a share in percent.
fn share(part: u64, whole: u64) -> String {
    match part {
        0 => format!("{:>8}", "-"),
        _ => format!("{:8.1}", percent(part, whole)),
    }
}

/// The two lines above the columns, with or without idle threads in them; an arrow marks what they are
/// sorted by.
pub(super) fn heading(
    look: &Look,
    columns: Columns,
    without_idle: bool,
    interval_s: f64,
) -> [String; 2] {
    let what = match look.mode {
        Mode::Cpu => "shares of CPU time",
        Mode::Wall if without_idle => "shares of time, without idle threads",
        Mode::Wall => "shares of all time of threads",
    };
    let last = format!("{:>PAIR$}", format!("last {interval_s:.1} s"));
    let above = columns.both(last, format!("{:>PAIR$}", "since start"));
    let column = |order: Order, since_start: bool| {
        let name = if order == Order::Own { "self" } else { "total" };
        let is_key = look.order == order && look.since_start == since_start;
        let text = if is_key { format!("▾{name} %") } else { format!("{name} %") };
        format!("{text:>8}")
    };
    let pair = |since: bool| column(Order::Own, since) + &column(Order::Total, since);
    [format!("{above}  {what}"), columns.both(pair(false), pair(true))]
}
