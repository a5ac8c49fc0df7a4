//! A call tree as lines of text: columns of numbers, then the call.
//!
//! Only branches are indented. A line calls the next line at the same column, so a chain of sixty
//! callers is sixty lines at one column. The callees of a fork each start with a branch. Hidden
//! calls always have a line with their numbers.

use std::io::{self, Write};

use crate::view::print::options::{PrintLimits, TreeOptions};
use crate::view::print::tree_columns::TreeColumns;
use crate::view::profile::call_tree::{CallTree, Count, StackStep};
use crate::view::profile::step_names::{NameId, StepNames};
use crate::view::recording::unit::Scale;
use crate::view::text::number::counted;
use crate::view::text::text_style::Ink;

/// Number of the heaviest groups that always get a line: of a thousand requests none may be heavy,
/// but users want the heaviest.
const GROUPS_MIN: usize = 10;

/// Writes the lines of a tree.
pub(in crate::view) struct TreeRows<'a> {
    tree: &'a CallTree<NameId>,
    names: &'a StepNames,
    limits: PrintLimits,
    /// The noun for the calls below a line.
    noun: &'static str,
    scale: Scale,
    totals: Vec<Count>,
    /// The self count of each call, with the samples of its contexts.
    own: Vec<Count>,
    callees: Vec<Vec<usize>>,
}

/// A line of a tree.
pub(in crate::view) struct TreeLine<'t> {
    /// The number of the caller's line, counted from 0, or `None` if the caller is the thread.
    pub(in crate::view) caller: Option<usize>,
    /// The branches before the call.
    pub(in crate::view) lead: &'t str,
    /// The text of the call.
    pub(in crate::view) text: &'t str,
    /// The step, or the number of calls in a line that sums up several.
    pub(in crate::view) what: Result<StackStep<NameId>, u64>,
    /// The total weight, callees included.
    pub(in crate::view) total: Count,
    /// The self weight.
    pub(in crate::view) own: Count,
}

/// A line to write.
enum TreeRow {
    Call { index: usize, depth: usize, lead: String, below: String, text: String },
    FoldedCalls { folded: FoldedCalls, lead: String },
}

/// Calls that are summed up.
struct FoldedCalls {
    number: u64,
    count: Count,
    text: String,
}

impl<'a> TreeRows<'a> {
    /// Creates the lines of `tree`.
    pub(in crate::view) fn new(
        tree: &'a CallTree<NameId>,
        names: &'a StepNames,
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
            // The sum of other groups comes last, however heavy it is.
            siblings.sort_by_key(|index| tree.calls()[*index].step.is_others());
        }
        let own = own(tree);
        let (limits, noun) = (options.limits, if options.inverted { "caller" } else { "call" });
        Self { tree, names, limits, noun, scale, totals, own, callees }
    }

    /// Writes the headings and all lines.
    pub(in crate::view) fn write(
        &self,
        options: &TreeOptions,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let style = options.style;
        let columns = TreeColumns::new(style, self.scale, self.totals[0].weight, !options.inverted);
        let head = columns.head();
        let noun = if options.inverted { "call, then its callers" } else { "call" };
        writeln!(out, "{}", style.paint(Some(Ink::Heading), &format!("{head}{noun}")))?;
        self.for_each(&mut |line| {
            let numbers = columns.row(line.total, line.own);
            let (lead, mark) = (line.lead, if line.what.is_err() { "... " } else { "" });
            let used = head.len() + lead.chars().count() + mark.len();
            let text = style.fit(line.text, used);
            let stands_for = !matches!(line.what, Ok(StackStep::Frame(_) | StackStep::Group(_)));
            let text = style.paint(stands_for.then_some(Ink::Faint), &text);
            writeln!(out, "{numbers}{}{mark}{text}", style.paint(Some(Ink::Faint), lead))
        })
    }

    /// Visits all lines, each after the line of its caller.
    pub(in crate::view) fn for_each(
        &self,
        visit: &mut dyn FnMut(TreeLine<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        // An explicit stack replaces recursion: the target decides the depth of the tree.
        let mut pending = Vec::new();
        self.push_callees(&mut pending, 0, 0, ("", None));
        let mut number = 0;
        while let Some((caller, row)) = pending.pop() {
            match row {
                TreeRow::Call { index, depth, lead, below, text } => {
                    let (lead, text) = (&*lead, &*text);
                    let what = Ok(self.tree.calls()[index].step);
                    let (total, own) = (self.totals[index], self.own[index]);
                    visit(TreeLine { caller, lead, text, what, total, own })?;
                    self.push_callees(&mut pending, index, depth, (&below, Some(number)));
                }
                TreeRow::FoldedCalls { folded, lead } => {
                    let FoldedCalls { number, count: total, text } = folded;
                    let (lead, text, own) = (&*lead, &*text, Count::default());
                    visit(TreeLine { caller, lead, text, what: Err(number), total, own })?;
                }
            }
            number += 1;
        }
        Ok(())
    }

    /// Pushes the callees of `caller`, the last line first.
    fn push_callees(
        &self,
        pending: &mut Vec<(Option<usize>, TreeRow)>,
        caller: usize,
        depth: usize,
        (lead, line): (&str, Option<usize>),
    ) {
        let (shown, folded) = self.split(caller, depth);
        let first = pending.len();
        let linear = shown.len() == 1;
        if let Some(folded) = folded {
            let mark = if linear { "╰╴ " } else { "└─ " };
            pending.push((line, TreeRow::FoldedCalls { folded, lead: format!("{lead}{mark}") }));
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
            pending.push((line, TreeRow::Call { index, depth: depth + 1, lead, below, text }));
        }
        if linear && pending.len() - first == 2 {
            // The folded side branch comes first, so that the chain continues below it.
            pending.swap(first, first + 1);
        }
    }

    /// Returns the callees to show, and the sum of the others.
    fn split(&self, caller: usize, depth: usize) -> (&[usize], Option<FoldedCalls>) {
        let callees = &self.callees[caller];
        let too_deep = self.limits.depth.is_some_and(|limit| depth >= limit);
        let least = self.limits.min_percent / 100.0 * self.totals[0].weight as f64;
        let step = |index: &usize| &self.tree.calls()[*index].step;
        let enough =
            |index: &usize| self.totals[*index].weight as f64 >= least && !step(index).is_others();
        // Callees are sorted by weight, so those above the limit come first.
        let groups = self.names.groups().filter(|_| caller == 0);
        let kept_groups = || callees.partition_point(|index| !step(index).is_others());
        let always = groups.map_or(0, |_| GROUPS_MIN.min(kept_groups()));
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
                let number = hidden.iter().map(|index| groups.number(step(index).group())).sum();
                (number, groups.others(number))
            }
            None => (hidden.len() as u64, counted(hidden.len() as u64, self.noun)),
        };
        let text = format!("{what} {reason}, {}", counted(count.samples, "sample"));
        (shown, Some(FoldedCalls { number, count, text }))
    }

    /// Returns the texts of siblings, with a qualifier if two are equal.
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
        if matches!(call.step, StackStep::ContextText(_)) {
            let moved = std::mem::take(&mut own[index]);
            own[call.caller()] += moved;
        }
    }
    own
}
