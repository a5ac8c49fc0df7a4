//! The heaviest functions, modules, lines, threads, processes or groups, as a table.
//!
//! Invariant: the self weights of the rows, of the line for all others and of the idle threads add
//! up to the selected samples.

use std::io::{self, Write};

use crate::view::print::options::TreeOptions;
use crate::view::print::tree_columns::dash;
use crate::view::profile::call_tree::Count;
use crate::view::profile::flat_profile::{FlatProfile, OtherRows, RowType, TableRow};
use crate::view::profile::idle;
use crate::view::profile::thread_labels::LabelBy;
use crate::view::profile::thread_profile::{Profile, ThreadProfile};
use crate::view::recording::unit::Scale;
use crate::view::recording::unit::WeightUnit;
use crate::view::text::number::{counted, percent};
use crate::view::text::text_style::{Ink, TextStyle};

/// Minimum width of a terminal that has space for weights next to the times.
const WIDE: usize = 110;

/// The rows, and the threads that are not in them.
pub(in crate::view) struct TopTable<'a> {
    pub(in crate::view) table: FlatProfile,
    pub(in crate::view) idle: Vec<&'a ThreadProfile>,
    pub(in crate::view) of: RowType,
    scale: Scale,
}

impl<'a> TopTable<'a> {
    /// Creates the table of the shown threads.
    pub(in crate::view) fn new(profile: &'a Profile, options: &TreeOptions) -> Self {
        let loops = if options.idle { Vec::new() } else { idle::idle_threads(profile) };
        let is_idle = |index: usize| loops.get(index).copied().unwrap_or(false);
        let all = profile.threads.iter().enumerate();
        let (idle, busy): (Vec<_>, Vec<_>) = all.partition(|(index, _)| is_idle(*index));
        let of = match &profile.groups {
            Some(_) => RowType::Group,
            None => options.steps,
        };
        let busy = busy.into_iter().map(|(_, thread)| thread);
        let scale = Scale {
            all: profile.count().weight,
            unit: WeightUnit::new(profile.mode, &profile.recording),
        };
        let idle = idle.into_iter().map(|(_, thread)| thread).collect();
        Self { table: FlatProfile::of_threads(profile, busy, of), idle, of, scale }
    }

    /// Returns the heaviest rows, at most `most`, and the sum of all others.
    pub(in crate::view) fn heaviest(
        &self,
        most: usize,
        options: &TreeOptions,
    ) -> (Vec<&TableRow>, OtherRows) {
        // Compares printed shares: a weight computed from the limit is slightly more than a weight
        // exactly at the limit.
        let share = |weight| percent(weight, self.scale.all);
        self.table.heaviest(most, |weight| share(weight) >= options.rows_min_percent)
    }

    /// Returns the sum of the idle threads.
    pub(in crate::view) fn idle_count(&self) -> Count {
        let mut count = Count::default();
        self.idle.iter().for_each(|thread| count += thread.count);
        count
    }
}

/// Returns the noun for one row, and for several.
pub(in crate::view) fn nouns(profile: &Profile, of: RowType) -> [String; 2] {
    let named = |one: &str| [one.to_owned(), format!("{one}s")];
    match (of, &profile.groups) {
        (RowType::Group, Some(groups)) => groups.nouns().clone(),
        (RowType::Group, None) => named("group"),
        (RowType::Function, _) => named("function"),
        (RowType::Module, _) => named("module"),
        (RowType::Line, _) => named("line"),
        (RowType::Language, _) => named("language"),
        (RowType::Thread, _) => LabelBy::Threads.nouns().map(str::to_owned),
        (RowType::Process, _) => LabelBy::Processes.nouns().map(str::to_owned),
        (RowType::Program, _) => LabelBy::Programs.nouns().map(str::to_owned),
    }
}

/// Writes the heaviest rows, at most `most`.
pub fn write(
    profile: &Profile,
    most: usize,
    options: &TreeOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let top = TopTable::new(profile, options);
    let [noun, nouns] = nouns(profile, top.of);
    let (rows, rest) = top.heaviest(most, options);
    if rows.is_empty() && rest.number == 0 && top.idle.is_empty() {
        return Ok(());
    }
    let style = options.style;
    // Self and total are equal for threads and groups.
    let parts = [RowType::Thread, RowType::Process, RowType::Program, RowType::Group];
    let both = !parts.contains(&top.of);
    let columns = TopColumns { scale: top.scale, both, wide: is_wide(&style) };
    let head = columns.head();
    writeln!(out)?;
    writeln!(out, "{}", style.paint(Some(Ink::Heading), &format!("{head}  {noun}")))?;
    for row in rows {
        let numbers = columns.row(row.own, Some(row.total));
        let ink = Ink::of_share(percent(row.own.weight, top.scale.all));
        let text = style.fit(&named(row, style.width), head.len() + 2).into_owned();
        writeln!(out, "{}  {text}", style.paint(ink, &numbers))?;
    }
    let OtherRows { number, own } = rest;
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
        writeln!(out, "{}  ... {what} (--idle includes them)", columns.row(idle, None))?;
    }
    Ok(())
}

fn is_wide(style: &TextStyle) -> bool {
    style.width.is_none_or(|width| width >= WIDE)
}

/// Returns a row's name, with its module if there is space for it.
fn named(row: &TableRow, width: Option<usize>) -> String {
    match row.qualifier.is_empty() || width.is_some_and(|width| width < WIDE) {
        true => row.name.clone(),
        false => format!("{} ({})", row.name, row.qualifier),
    }
}

/// The numbers before a name.
struct TopColumns {
    scale: Scale,
    /// Whether there are both self and total columns.
    both: bool,
    wide: bool,
}

impl TopColumns {
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
            WeightUnit::Periods(None) => true,
            WeightUnit::Periods(_) => self.wide,
            WeightUnit::Microseconds => false,
        }
    }

    fn has_times(&self) -> bool {
        self.scale.unit != WeightUnit::Periods(None)
    }

    /// Returns the numbers of a row. `None` is an unknown total.
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
        let top = TopTable {
            table: FlatProfile { rows, all },
            idle: Vec::new(),
            of: RowType::Function,
            scale: Scale { all: 50, unit: WeightUnit::Periods(None) },
        };
        // 14 / 100 of 50 is more than 7 in floating point.
        for (rows_min_percent, shown) in [(14.0, 2), (14.1, 1), (12.0, 3), (0.0, 4)] {
            let options = TreeOptions { rows_min_percent, ..TreeOptions::default() };
            let (rows, rest) = top.heaviest(9, &options);
            assert_eq!((rows.len(), rest.number), (shown, 4 - shown as u64), "{rows_min_percent}");
        }
    }
}
