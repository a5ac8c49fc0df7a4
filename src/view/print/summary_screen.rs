//! A summary that fits on one screen: the header, and the heaviest functions by self and by total
//! weight.
//!
//! Functions that do little but call one other function get no line for their total. They would be
//! the first ten of every program.
//!
//! # Invariants
//! - A terminal of 80 columns and 24 lines shows the complete summary, with the prompt below. Lines
//!   that few recordings have replace lines of functions.

use std::io::{self, Write};

use crate::view::print::options::TreeOptions;
use crate::view::print::summary;
use crate::view::profile::flat_profile::{FlatProfile, RowType, TableRow};
use crate::view::profile::idle;
use crate::view::profile::sample_totals::SampleTotals;
use crate::view::profile::thread_profile::Profile;
use crate::view::text::number::percent;
use crate::view::text::text_style::{Ink, TextStyle, padded};

/// Maximum number of lines of the summary.
const LINES_MAX: usize = 22;
/// Maximum number of functions per list if there is enough space.
const NAMED_MAX: usize = 8;
/// Maximum number of functions per list if there is little space.
const NAMED_MIN: usize = 5;
/// Width of a share and the spaces around it.
const SHARE: usize = 10;

/// Writes the summary. It omits the functions if the caller prints the heaviest rows anyway.
pub fn write(
    profile: &Profile,
    with_functions: bool,
    options: &TreeOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let style = &options.style;
    let totals = SampleTotals::in_profile(profile);
    let used = summary::write_with_activity(&profile.recording, &totals, (style, out))?;
    let table = with_functions.then(|| TopFunctions::new(profile, options));
    match table.filter(|it| !it.is_empty()) {
        Some(functions) => {
            let room = LINES_MAX.saturating_sub(used + TopFunctions::lines(0, style));
            let lists = if style.width.is_some() { 1 } else { 2 };
            functions.write((room / lists).clamp(NAMED_MIN, NAMED_MAX), style, out)
        }
        None => Ok(()),
    }
}

/// The functions of the threads that are not idle.
pub(super) struct TopFunctions {
    table: FlatProfile,
    idle: u64,
    /// Functions below this share are left out.
    min_percent: f64,
}

impl TopFunctions {
    pub(super) fn new(profile: &Profile, options: &TreeOptions) -> Self {
        let idle = if options.idle { Vec::new() } else { idle::idle_threads(profile) };
        let is_idle = |index: &usize| idle.get(*index).copied().unwrap_or(false);
        let threads = profile.threads.iter().enumerate();
        let busy = threads.filter(|(index, _)| !is_idle(index)).map(|(_, thread)| thread);
        let table = FlatProfile::of_threads(profile, busy, RowType::Function);
        let idle = idle.iter().filter(|idle| **idle).count() as u64;
        Self { table, idle, min_percent: options.rows_min_percent }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.rows.is_empty()
    }

    /// Returns the number of functions.
    pub(super) fn len(&self) -> usize {
        self.table.rows.len()
    }

    /// Returns the number of lines of two lists with `named` functions each: an empty line and the
    /// headings, one above both columns or one for each list, and the functions.
    pub(super) fn lines(named: usize, style: &TextStyle) -> usize {
        if style.width.is_some() { 2 + named } else { 3 + 2 * named }
    }

    /// Writes two lists with at most `most` functions each.
    pub(super) fn write(
        &self,
        most: usize,
        style: &TextStyle,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let enough = |weight: u64| weight > 0 && self.share(weight) >= self.min_percent;
        let own: Vec<&TableRow> =
            self.table.rows.iter().filter(|row| enough(row.own.weight)).take(most).collect();
        let forks = self.table.by_total().into_iter().filter(|row| row.forks);
        let total: Vec<&TableRow> =
            forks.filter(|row| enough(row.total.weight)).take(most).collect();
        let aside = match self.aside() {
            [None, None] => String::new(),
            aside => {
                let some: Vec<String> = aside.into_iter().flatten().collect();
                format!(" ({} left out)", some.join(" and "))
            }
        };
        writeln!(out)?;
        match style.width {
            Some(width) => self.beside(width, [&own, &total], (style, out)),
            None => {
                writeln!(out, " self %  function{aside}")?;
                for row in own {
                    writeln!(out, "{:7.1}  {}", self.share(row.own.weight), named(row))?;
                }
                writeln!(out, "total %  function{aside}")?;
                for row in total {
                    writeln!(out, "{:7.1}  {}", self.share(row.total.weight), named(row))?;
                }
                Ok(())
            }
        }
    }

    /// Returns texts about the hidden threads and functions, in as few columns as possible.
    fn aside(&self) -> [Option<String>; 2] {
        let rows = self.table.rows.iter();
        let light = rows.filter(|row| self.share(row.total.weight) < self.min_percent).count();
        let idle = (self.idle > 0).then(|| format!("{} idle", self.idle));
        [idle, (light > 0).then(|| format!("{light} < {} %", self.min_percent))]
    }

    /// Writes both lists in the columns of a terminal.
    fn beside(
        &self,
        width: usize,
        [own, total]: [&[&TableRow]; 2],
        (style, out): (&TextStyle, &mut dyn Write),
    ) -> io::Result<()> {
        let half = width / 2;
        let room = half.saturating_sub(SHARE);
        let [idle, light] = self.aside().map(|aside| match aside {
            Some(aside) => format!(" ({aside} left out)"),
            None => String::new(),
        });
        // The texts go above the column with space. There is seldom more than one.
        let [left, right] = if light.is_empty() { [light, idle] } else { [idle, light] };
        let left = padded(&style.cut(&format!(" self %  function{left}"), half), half);
        let right = format!("total %  function{right}");
        let right = style.cut(&right, width.saturating_sub(half));
        writeln!(out, "{}", style.paint(Some(Ink::Heading), &format!("{left}{right}")))?;
        let cell = |row: Option<&&TableRow>, of: fn(&TableRow) -> u64| {
            let Some(row) = row else { return (padded("", SHARE - 1), String::new()) };
            let share = self.share(of(row));
            let number = format!("{share:7.1}");
            let number = style.paint(Ink::of_share(share), &number).into_owned();
            (format!("{number}  "), style.cut(&row.name, room).into_owned())
        };
        for index in 0..own.len().max(total.len()) {
            let (share, name) = cell(own.get(index), |row| row.own.weight);
            let name = padded(&name, half.saturating_sub(SHARE - 1));
            let (other_share, other) = cell(total.get(index), |row| row.total.weight);
            writeln!(out, "{}", format!("{share}{name}{other_share}{other}").trim_end())?;
        }
        Ok(())
    }

    fn share(&self, weight: u64) -> f64 {
        percent(weight, self.table.all.weight)
    }
}

/// Returns the text of a function and its module.
fn named(row: &TableRow) -> String {
    match row.qualifier.is_empty() {
        true => row.name.clone(),
        false => format!("{} ({})", row.name, row.qualifier),
    }
}
