//! The heaviest functions, modules, lines, threads, processes or groups, as a table.
//!
//! Invariant: what the rows used in themselves, the line of all others and that of the idle threads add
//! up to the samples that are looked at.

use std::io::{self, Write};

use super::calls::Count;
use super::columns::dash;
use super::forest::TreeOptions;
use super::functions::{Rest, RowOf, Table, TableRow};
use super::idle;
use super::look::{Ink, Look};
use super::mode::Unit;
use super::parts::PartOf;
use super::profile::{Profile, ThreadProfile};
use super::rows::{Scale, counted, percent};

/// From this width on a terminal has room for weights beside the times.
const WIDE: usize = 110;

/// The rows, and what is not in them.
pub(super) struct Top<'a> {
    pub(super) table: Table,
    pub(super) idle: Vec<&'a ThreadProfile>,
    pub(super) of: RowOf,
    scale: Scale,
}

impl<'a> Top<'a> {
    /// Of the threads that are shown.
    pub(super) fn new(profile: &'a Profile, options: &TreeOptions) -> Self {
        let loops = if options.idle { Vec::new() } else { idle::idle_threads(profile) };
        let is_idle = |place: usize| loops.get(place).copied().unwrap_or(false);
        let all = profile.threads.iter().enumerate();
        let (idle, busy): (Vec<_>, Vec<_>) = all.partition(|(place, _)| is_idle(*place));
        let of = match &profile.groups {
            Some(_) => RowOf::Group,
            None => options.steps,
        };
        let busy = busy.into_iter().map(|(_, thread)| thread);
        let scale = Scale {
            all: profile.count().weight,
            unit: Unit::new(profile.mode, &profile.recording),
        };
        let idle = idle.into_iter().map(|(_, thread)| thread).collect();
        Self { table: Table::of_threads(profile, busy, of), idle, of, scale }
    }

    /// The heaviest rows, no more than so many, and what all others come to.
    pub(super) fn heaviest(&self, most: usize, options: &TreeOptions) -> (Vec<&TableRow>, Rest) {
        // The share as it is told: a weight made of the limit is a little more than one just at it.
        let share = |weight| percent(weight, self.scale.all);
        self.table.heaviest(most, |weight| share(weight) >= options.rows_min_percent)
    }

    /// What the idle threads come to.
    pub(super) fn idle_count(&self) -> Count {
        let mut count = Count::default();
        self.idle.iter().for_each(|thread| count += thread.count);
        count
    }
}

/// What a row is, and many are.
pub(super) fn nouns(profile: &Profile, of: RowOf) -> [String; 2] {
    let named = |one: &str| [one.to_owned(), format!("{one}s")];
    match (of, &profile.groups) {
        (RowOf::Group, Some(groups)) => groups.nouns().clone(),
        (RowOf::Group, None) => named("group"),
        (RowOf::Function, _) => named("function"),
        (RowOf::Module, _) => named("module"),
        (RowOf::Line, _) => named("line"),
        (RowOf::Thread, _) => PartOf::Threads.nouns().map(str::to_owned),
        (RowOf::Process, _) => PartOf::Processes.nouns().map(str::to_owned),
    }
}

/// Writes the heaviest rows, no more than `most`.
pub fn write(
    profile: &Profile,
    most: usize,
    options: &TreeOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let top = Top::new(profile, options);
    let [noun, nouns] = nouns(profile, top.of);
    let (rows, rest) = top.heaviest(most, options);
    if rows.is_empty() && rest.number == 0 && top.idle.is_empty() {
        return Ok(());
    }
    let look = options.look;
    // What is in a thread or a span is all its own.
    let both = !matches!(top.of, RowOf::Thread | RowOf::Process | RowOf::Group);
    let columns = Columns { scale: top.scale, both, wide: is_wide(&look) };
    let head = columns.head();
    writeln!(out)?;
    writeln!(out, "{}", look.paint(Some(Ink::Heading), &format!("{head}  {noun}")))?;
    for row in rows {
        let numbers = columns.row(row.own, Some(row.total));
        let ink = Ink::of_share(percent(row.own.weight, top.scale.all));
        let text = look.fit(&named(row, look.width), head.len() + 2).into_owned();
        writeln!(out, "{}  {text}", look.paint(ink, &numbers))?;
    }
    let Rest { number, own } = rest;
    if number > 0 {
        let what = format!("{number} other {}", if number == 1 { noun } else { nouns });
        let what = match own.samples {
            0 => format!("{what} that only call others"),
            samples => format!("{what}, {}", counted(samples, "sample")),
        };
        writeln!(out, "{}  ... {what}", columns.row(own, None))?;
    }
    let idle = top.idle_count();
    if idle.samples > 0 {
        let what = counted(top.idle.len() as u64, "idle thread");
        writeln!(out, "{}  ... {what} (--idle counts them in)", columns.row(idle, None))?;
    }
    Ok(())
}

fn is_wide(look: &Look) -> bool {
    look.width.is_none_or(|width| width >= WIDE)
}

/// A row's name, with its module where there is room for it.
fn named(row: &TableRow, width: Option<usize>) -> String {
    match row.qualifier.is_empty() || width.is_some_and(|width| width < WIDE) {
        true => row.name.clone(),
        false => format!("{} ({})", row.name, row.qualifier),
    }
}

/// The numbers before a name.
struct Columns {
    scale: Scale,
    /// In themselves, and with all that they called.
    both: bool,
    wide: bool,
}

impl Columns {
    fn head(&self) -> String {
        let mut head = String::new();
        let mut add = |text: &str, width: usize| {
            if !head.is_empty() {
                head.push(' ');
            }
            head.push_str(&format!("{text:>width$}"));
        };
        let kinds: &[&str] = if self.both { &["self", "total"] } else { &["total"] };
        kinds.iter().for_each(|kind| add(&format!("{kind} %"), 8));
        if self.has_weights() {
            kinds.iter().for_each(|kind| add(kind, 9));
        }
        if self.has_times() {
            kinds.iter().for_each(|kind| add(&format!("{kind} (s)"), 10));
        }
        head
    }

    fn has_weights(&self) -> bool {
        match self.scale.unit {
            Unit::Periods(None) => true,
            Unit::Periods(_) => self.wide,
            Unit::Microseconds => false,
        }
    }

    fn has_times(&self) -> bool {
        self.scale.unit != Unit::Periods(None)
    }

    /// Without a total where none can be told.
    fn row(&self, own: Count, total: Option<Count>) -> String {
        let of = |count: Option<Count>, text: &dyn Fn(u64) -> String, width: usize| {
            let text = count.map_or_else(|| "-".to_owned(), |it| dash(it.weight, text(it.weight)));
            format!("{text:>width$}")
        };
        let counts: &[Option<Count>] = if self.both { &[Some(own), total] } else { &[Some(own)] };
        let mut cells = Vec::new();
        let share = |weight| format!("{:.1}", percent(weight, self.scale.all));
        cells.extend(counts.iter().map(|count| of(*count, &share, 8)));
        if self.has_weights() {
            cells.extend(counts.iter().map(|count| of(*count, &|weight| weight.to_string(), 9)));
        }
        if self.has_times() {
            let time = |weight| self.scale.unit.seconds(weight).unwrap_or_default();
            cells.extend(counts.iter().map(|count| of(*count, &time, 10)));
        }
        cells.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_just_at_the_limit_is_shown() {
        let row = |weight| {
            let own = Count { samples: weight, weight };
            TableRow {
                name: weight.to_string(),
                qualifier: String::new(),
                own,
                total: own,
                forks: false,
                number: 1,
                is_others: false,
            }
        };
        let rows = [36, 7, 6, 1].map(row).to_vec();
        let all = Count { samples: 50, weight: 50 };
        let top = Top {
            table: Table { rows, all },
            idle: Vec::new(),
            of: RowOf::Function,
            scale: Scale { all: 50, unit: Unit::Periods(None) },
        };
        // 14 / 100 of 50 is more than 7 in floating point.
        for (rows_min_percent, shown) in [(14.0, 2), (14.1, 1), (12.0, 3), (0.0, 4)] {
            let options = TreeOptions { rows_min_percent, ..TreeOptions::default() };
            let (rows, rest) = top.heaviest(9, &options);
            assert_eq!((rows.len(), rest.number), (shown, 4 - shown as u64), "{rows_min_percent}");
        }
    }
}
