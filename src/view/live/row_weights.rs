//! The weights of samples by function, thread, module, line or process.

use std::collections::HashMap;
use std::str::FromStr;

use crate::view::profile::flat_profile::{FlatProfile, RowType, TableRow};
use crate::view::profile::thread_profile::{Profile, ThreadProfile};

/// Maximum number of rows. Generated code may keep producing new names; all later names share a
/// row.
pub const ROWS_MAX: usize = 50_000;
/// The name of the row of all later names.
const OTHERS: &str = "(others)";

/// The kind of the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RowKind {
    /// Each function.
    #[default]
    Function,
    /// Each thread.
    Thread,
    /// Each program file and library.
    Module,
    /// Each line of a function, or the function where no lines are known.
    Line,
    /// Each process.
    Process,
}

impl RowKind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Function, Self::Thread, Self::Module, Self::Line, Self::Process];

    /// Returns the name on the command line and above the column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Thread => "thread",
            Self::Module => "module",
            Self::Line => "line",
            Self::Process => "process",
        }
    }

    fn row(self) -> RowType {
        match self {
            Self::Function => RowType::Function,
            Self::Thread => RowType::Thread,
            Self::Module => RowType::Module,
            Self::Line => RowType::Line,
            Self::Process => RowType::Process,
        }
    }
}

impl FromStr for RowKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == text);
        known.ok_or_else(|| "expected function, thread, module, line or process".to_owned())
    }
}

/// The name of a row, escaped for display.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RowLabel {
    /// The name.
    pub(super) text: String,
    /// The module of a function, possibly empty.
    pub(super) qualifier: String,
}

/// The weight of a row: sampling periods, or microseconds of wall clock time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RowWeight {
    /// The weight in the row itself.
    pub(super) own: u64,
    /// The weight in the row and its callees. A recursive call counts once.
    pub(super) total: u64,
}

/// Weights by row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RowWeights {
    /// The rows.
    pub(super) rows: HashMap<RowLabel, RowWeight>,
    /// The weight of all samples.
    pub(super) all: u64,
}

impl RowWeights {
    /// Counts these threads of a profile.
    pub(super) fn of<'a>(
        profile: &'a Profile,
        threads: impl Iterator<Item = &'a ThreadProfile>,
        kind: RowKind,
    ) -> Self {
        let table = FlatProfile::of_threads(profile, threads, kind.row());
        let mut tally = Self { all: table.all.weight, ..Self::default() };
        for TableRow { name, qualifier, own, total, .. } in table.rows {
            let weight = RowWeight { own: own.weight, total: total.weight };
            tally.put(RowLabel { text: name, qualifier }, weight);
        }
        tally
    }

    /// Adds the weights of another interval.
    pub(super) fn add(&mut self, other: &Self) {
        for (label, weight) in &other.rows {
            self.put(label.clone(), *weight);
        }
        self.all = self.all.saturating_add(other.all);
    }

    fn put(&mut self, label: RowLabel, weight: RowWeight) {
        if weight == RowWeight::default() {
            return;
        }
        let is_full = self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&label);
        let label = if is_full { others() } else { label };
        let row = self.rows.entry(label).or_default();
        row.own = row.own.saturating_add(weight.own);
        row.total = row.total.saturating_add(weight.total);
    }
}

fn others() -> RowLabel {
    RowLabel { text: OTHERS.to_owned(), qualifier: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> RowLabel {
        RowLabel { text: text.to_owned(), qualifier: String::new() }
    }

    fn both(weight: u64) -> RowWeight {
        RowWeight { own: weight, total: weight }
    }

    #[test]
    fn excess_rows_share_one_row_and_nothing_is_lost() {
        let mut tally = RowWeights::default();
        for number in 0..ROWS_MAX + 10 {
            tally.put(label(&format!("f{number}")), both(2));
        }
        tally.put(label("f1"), both(1));
        assert_eq!(tally.rows.len(), ROWS_MAX + 1);
        assert_eq!(tally.rows[&others()], both(20));
        assert_eq!(tally.rows[&label("f1")], both(3));
        let sum: u64 = tally.rows.values().map(|row| row.own).sum();
        assert_eq!(sum, (ROWS_MAX as u64 + 10) * 2 + 1);
    }
}
