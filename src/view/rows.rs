//! A call tree as lines of text: columns of numbers, then the call.
//!
//! Only forks indent. A line below another one at the same column is called by it, so a chain of
//! sixty callers is sixty lines at one column; where a function calls several others, each of them
//! begins with a branch. What is left out is always a line of its own, with its numbers.

use std::io::{self, Write};

use super::calls::{CallTree, Count, Step};
use super::columns::Columns;
use super::forest::TreeOptions;
use super::groups::is_others;
use super::look::Ink;
use super::mode::Unit;
use super::names::{NameId, Names};

/// What of a tree is shown. The default is everything.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
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
    /// What is below a line.
    noun: &'static str,
    scale: Scale,
    totals: Vec<Count>,
    /// What samples of each call alone come to: those that are apart by what threads worked on are the
    /// call's all the same.
    own: Vec<Count>,
    callees: Vec<Vec<usize>>,
}

/// A line of a tree.
pub(super) struct Line<'t> {
    /// The number of its caller's line, counted from 0; none if that is the thread.
    pub(super) caller: Option<usize>,
    /// The branches before the call.
    pub(super) lead: &'t str,
    /// What the call is, as text.
    pub(super) text: &'t str,
    /// What it is; if that is several that are summed up, how many.
    pub(super) what: Result<Step<NameId>, u64>,
    /// With all that it called.
    pub(super) total: Count,
    /// In itself.
    pub(super) own: Count,
}

/// A line to write.
enum Row {
    Call { index: usize, depth: usize, lead: String, below: String, text: String },
    Folded { folded: Folded, lead: String },
}

/// Calls that are summed up.
struct Folded {
    number: u64,
    count: Count,
    text: String,
}

impl<'a> Rows<'a> {
    /// The lines of `tree`.
    pub(super) fn new(
        tree: &'a CallTree<NameId>,
        names: &'a Names,
        options: &TreeOptions,
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
        let (limits, noun) = (options.limits, if options.inverted { "caller" } else { "call" });
        Self { tree, names, limits, noun, scale, totals, own, callees }
    }

    /// Writes the head of the columns and all lines.
    pub(super) fn write(&self, options: &TreeOptions, out: &mut dyn Write) -> io::Result<()> {
        let look = options.look;
        let columns = Columns::new(look, self.scale, self.totals[0].weight, !options.inverted);
        let head = columns.head();
        let noun = if options.inverted { "call, then its callers" } else { "call" };
        writeln!(out, "{}", look.paint(Some(Ink::Heading), &format!("{head}{noun}")))?;
        self.for_each(&mut |line| {
            let numbers = columns.row(line.total, line.own);
            let (lead, mark) = (line.lead, if line.what.is_err() { "... " } else { "" });
            let used = head.len() + lead.chars().count() + mark.len();
            let text = look.fit(line.text, used);
            let stands_for = !matches!(line.what, Ok(Step::Frame(_) | Step::Group(_)));
            let text = look.paint(stands_for.then_some(Ink::Faint), &text);
            writeln!(out, "{numbers}{}{mark}{text}", look.paint(Some(Ink::Faint), lead))
        })
    }

    /// All lines, each after that of its caller.
    pub(super) fn for_each(
        &self,
        visit: &mut dyn FnMut(Line<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        // A stack of its own: the depth of the tree is the target's choice.
        let mut pending = Vec::new();
        self.push_callees(&mut pending, 0, 0, ("", None));
        let mut number = 0;
        while let Some((caller, row)) = pending.pop() {
            match row {
                Row::Call { index, depth, lead, below, text } => {
                    let (lead, text) = (&*lead, &*text);
                    let what = Ok(self.tree.calls()[index].step);
                    let (total, own) = (self.totals[index], self.own[index]);
                    visit(Line { caller, lead, text, what, total, own })?;
                    self.push_callees(&mut pending, index, depth, (&below, Some(number)));
                }
                Row::Folded { folded, lead } => {
                    let Folded { number, count: total, text } = folded;
                    let (lead, text, own) = (&*lead, &*text, Count::default());
                    visit(Line { caller, lead, text, what: Err(number), total, own })?;
                }
            }
            number += 1;
        }
        Ok(())
    }

    /// Pushes what `caller` called, the last line first.
    fn push_callees(
        &self,
        pending: &mut Vec<(Option<usize>, Row)>,
        caller: usize,
        depth: usize,
        (lead, line): (&str, Option<usize>),
    ) {
        let (shown, folded) = self.split(caller, depth);
        let first = pending.len();
        let linear = shown.len() == 1;
        if let Some(folded) = folded {
            let mark = if linear { "╰╴ " } else { "└─ " };
            pending.push((line, Row::Folded { folded, lead: format!("{lead}{mark}") }));
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
            pending.push((line, Row::Call { index, depth: depth + 1, lead, below, text }));
        }
        if linear && pending.len() - first == 2 {
            // The folded side branch comes first, so that the chain goes on below it.
            pending.swap(first, first + 1);
        }
    }

    /// The callees to show, and what the others come to.
    fn split(&self, caller: usize, depth: usize) -> (&[usize], Option<Folded>) {
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
            format!("deeper than {}", counted(depth as u64, "level"))
        } else {
            format!("below {} %", self.limits.min_percent)
        };
        let (number, what) = match groups {
            Some(groups) => {
                let number = hidden.iter().map(|index| groups.number(step(index))).sum();
                (number, groups.others(number))
            }
            None => (hidden.len() as u64, counted(hidden.len() as u64, self.noun)),
        };
        let text = format!("{what} {reason}, {}", counted(count.samples, "sample"));
        (shown, Some(Folded { number, count, text }))
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
