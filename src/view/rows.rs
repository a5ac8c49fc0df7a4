//! A call tree as lines of text: columns of numbers, then the call.
//!
//! Only forks indent. A line below another one at the same column is called by it, so a chain of
//! sixty callers is sixty lines at one column; where a function calls several others, each of them
//! begins with a branch. What is left out is always a line of its own, with its numbers.

use std::io::{self, Write};

use super::calls::{CallTree, Count, Step};
use super::groups::is_others;
use super::mode::{Unit, wall_seconds};
use super::names::{NameId, Names};

/// What of a tree is shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Calls below this share of the tree are summed up in one line per caller.
    pub min_percent: f64,
    /// Calls deeper than this are summed up in one line per caller.
    pub depth: Option<usize>,
}

/// What the numbers of a tree are measured against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    /// Weight of all samples of the trace.
    pub(super) all: u64,
    /// What a weight is.
    pub(super) unit: Unit,
}

/// The heaviest groups that have a line however light they are: of a thousand requests none may be
/// heavy, and which is the heaviest is still what one looks for.
const GROUPS_MIN: usize = 10;

/// Writes the lines of a tree.
pub(super) struct Rows<'a> {
    tree: &'a CallTree<NameId>,
    names: &'a Names,
    limits: Limits,
    scale: Scale,
    totals: Vec<Count>,
    /// What samples of each call alone come to: those that are apart by what threads worked on are the
    /// call's all the same.
    own: Vec<Count>,
    callees: Vec<Vec<usize>>,
}

/// A line to write.
enum Row {
    Call { index: usize, depth: usize, lead: String, below: String, text: String },
    Folded { count: Count, lead: String, text: String },
}

impl<'a> Rows<'a> {
    /// The lines of `tree`.
    pub(super) fn new(
        tree: &'a CallTree<NameId>,
        names: &'a Names,
        limits: Limits,
        scale: Scale,
    ) -> Self {
        let (totals, mut callees) = (tree.totals(), tree.callees());
        for siblings in &mut callees {
            let key = |index: &usize| {
                let step = tree.calls()[*index].step;
                (names.text(step), names.qualifier(step), step)
            };
            siblings.sort_by(|a, b| {
                totals[*b].weight.cmp(&totals[*a].weight).then_with(|| key(a).cmp(&key(b)))
            });
            // What has no line of its own comes last, however heavy all of it is.
            siblings.sort_by_key(|index| is_others(&tree.calls()[*index].step));
        }
        let own = own(tree);
        Self { tree, names, limits, scale, totals, own, callees }
    }

    /// Writes the head of the columns and all lines.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let weights = match self.scale.unit {
            Unit::Periods(Some(_)) => "    total      self  time (s)",
            Unit::Periods(None) => "    total      self",
            Unit::Microseconds => " total (s)   self (s)",
        };
        writeln!(out, " total %  self %   all % {weights}  call")?;
        // A stack of its own: the depth of the tree is the target's choice.
        let mut pending = Vec::new();
        self.push_callees(&mut pending, 0, 0, "");
        while let Some(row) = pending.pop() {
            match row {
                Row::Call { index, depth, lead, below, text } => {
                    self.columns(out, self.totals[index], self.own[index])?;
                    writeln!(out, "{lead}{text}")?;
                    self.push_callees(&mut pending, index, depth, &below);
                }
                Row::Folded { count, lead, text } => {
                    self.columns(out, count, Count::default())?;
                    writeln!(out, "{lead}... {text}")?;
                }
            }
        }
        Ok(())
    }

    /// Pushes what `caller` called, the last line first.
    fn push_callees(&self, pending: &mut Vec<Row>, caller: usize, depth: usize, lead: &str) {
        let (shown, folded) = self.split(caller, depth);
        let first = pending.len();
        let linear = shown.len() == 1;
        if let Some((count, text)) = folded {
            let mark = if linear { "╰╴ " } else { "└─ " };
            pending.push(Row::Folded { count, lead: format!("{lead}{mark}"), text });
        }
        let mut last = pending.is_empty() || pending.len() == first;
        for (index, text) in self.texts(shown).into_iter().rev() {
            let (mark, bar) = match (linear, last) {
                (true, _) => ("", ""),
                (false, true) => ("└─ ", "   "),
                (false, false) => ("├─ ", "│  "),
            };
            last = false;
            let (lead, below) = (format!("{lead}{mark}"), format!("{lead}{bar}"));
            pending.push(Row::Call { index, depth: depth + 1, lead, below, text });
        }
        if linear && pending.len() - first == 2 {
            // The folded side branch comes first, so that the chain goes on below it.
            pending.swap(first, first + 1);
        }
    }

    /// The callees to show, and what the others come to.
    fn split(&self, caller: usize, depth: usize) -> (&[usize], Option<(Count, String)>) {
        let callees = &self.callees[caller];
        let too_deep = self.limits.depth.is_some_and(|limit| depth >= limit);
        let least = self.limits.min_percent / 100.0 * self.totals[0].weight as f64;
        let step = |index: &usize| &self.tree.calls()[*index].step;
        let enough =
            |index: &usize| self.totals[*index].weight as f64 >= least && !is_others(step(index));
        // Heaviest first, so those that are enough come first.
        let groups = self.names.groups().filter(|_| caller == 0);
        let told_apart = || callees.partition_point(|index| !is_others(step(index)));
        let always = groups.map_or(0, |_| GROUPS_MIN.min(told_apart()));
        let shown = if too_deep { 0 } else { callees.partition_point(enough).max(always) };
        let (shown, hidden) = callees.split_at(shown);
        if hidden.is_empty() {
            return (shown, None);
        }
        let mut count = Count::default();
        for index in hidden {
            count += self.totals[*index];
        }
        let reason = if too_deep {
            format!("deeper than {depth} levels")
        } else {
            format!("below {} %", self.limits.min_percent)
        };
        let what = match groups {
            Some(groups) => {
                groups.others(hidden.iter().map(|index| groups.number(step(index))).sum())
            }
            None => counted(hidden.len() as u64, "call"),
        };
        let text = format!("{what} {reason}, {}", counted(count.samples, "sample"));
        (shown, Some((count, text)))
    }

    /// The names of siblings, told apart where two are called the same.
    fn texts(&self, siblings: &[usize]) -> Vec<(usize, String)> {
        let step = |index: usize| self.tree.calls()[index].step;
        let mut seen = std::collections::HashMap::new();
        for index in siblings {
            *seen.entry(self.names.text(step(*index))).or_insert(0u32) += 1;
        }
        let text = |index: usize| -> String {
            let (text, qualifier) =
                (self.names.text(step(index)), self.names.qualifier(step(index)));
            if seen[text] > 1 && !qualifier.is_empty() {
                format!("{text} ({qualifier})")
            } else {
                text.to_owned()
            }
        };
        siblings.iter().map(|index| (*index, text(*index))).collect()
    }

    fn columns(&self, out: &mut dyn Write, total: Count, own: Count) -> io::Result<()> {
        let whole = self.totals[0].weight;
        let share = percent(total.weight, whole);
        let own_share = dash(own.weight, format!("{:.1}", percent(own.weight, whole)));
        let all = percent(total.weight, self.scale.all);
        write!(out, "{share:8.1} {own_share:>7} {all:7.1} ")?;
        if let Unit::Microseconds = self.scale.unit {
            let own_time = dash(own.weight, wall_seconds(own.weight));
            return write!(out, "{:>10} {own_time:>10}  ", wall_seconds(total.weight));
        }
        let own_weight = dash(own.weight, own.weight.to_string());
        write!(out, "{:9} {own_weight:>9}", total.weight)?;
        if let Some(time) = self.scale.unit.seconds(total.weight) {
            write!(out, " {time:>9}")?;
        }
        write!(out, "  ")
    }
}

fn own(tree: &CallTree<NameId>) -> Vec<Count> {
    let mut own: Vec<Count> = tree.calls().iter().map(|call| call.own).collect();
    for (index, call) in tree.calls().iter().enumerate() {
        if matches!(call.step, Step::Context(_)) {
            let moved = std::mem::take(&mut own[index]);
            own[call.caller()] += moved;
        }
    }
    own
}

/// `part` of `whole` in percent; 0 of nothing.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// `1 call`, `2 calls`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The time of some periods, with the digits that a period of this length means.
pub(super) fn seconds(periods: u64, period_ns: f64) -> String {
    let digits = match period_ns {
        ..1e5 => 5,
        1e5..1e6 => 4,
        _ => 3,
    };
    format!("{:.digits$}", periods as f64 * period_ns / 1e9)
}

fn dash(number: u64, text: String) -> String {
    if number == 0 { "-".to_owned() } else { text }
}
