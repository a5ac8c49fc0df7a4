//! The flat profile: functions, modules, lines, threads, processes or groups with their self and
//! total weight.
//!
//! # Invariants
//! - The self weights of all rows add up to the selected samples.
//! - A recursive function counts once per stack in a total, so no total exceeds the weight of all
//!   samples.
//! - No recursion: stacks may be thousands of calls deep.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

use crate::trace::LocationId;
use crate::view::profile::call_tree::{CallTree, Count, StackStep};
use crate::view::profile::step_names::{NameId, StepNames};
use crate::view::profile::thread_labels::{LabelBy, ThreadLabels};
use crate::view::profile::thread_profile::{Profile, ThreadProfile};

/// The kind of the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowType {
    /// A function, or a wait.
    #[default]
    Function,
    /// A module.
    Module,
    /// A language.
    Language,
    /// A line of a function's source, or the function if its lines are unknown.
    Line,
    /// A thread.
    Thread,
    /// A process.
    Process,
    /// All processes of a program.
    Program,
    /// A group of samples. Without groups all samples are one row.
    Group,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRow {
    /// The name, escaped for display.
    pub name: String,
    /// The module of a function, or another distinction between rows with the same name. May be
    /// empty.
    pub qualifier: String,
    /// The self weight.
    pub own: Count,
    /// The total weight, callees included.
    pub total: Count,
    /// Whether stacks fork or end in this function.
    ///
    /// False for waits, and for a function that does little but call one other, such as `_start`.
    pub forks: bool,
    /// The number of groups that the row stands for, 1 for all other rows.
    pub number: u64,
    /// Whether the row sums up the groups without a row of their own.
    pub is_others: bool,
}

/// All rows of a flat profile.
#[derive(Debug, Clone, Default)]
pub struct FlatProfile {
    /// The rows, the heaviest self weight first.
    pub rows: Vec<TableRow>,
    /// The sum of the self weights of all rows.
    pub all: Count,
}

impl FlatProfile {
    /// Creates the table of all threads.
    pub fn new(profile: &Profile, of: RowType) -> Self {
        Self::of_threads(profile, profile.threads.iter(), of)
    }

    /// Creates the table of some threads.
    pub fn of_threads<'a>(
        profile: &'a Profile,
        threads: impl Iterator<Item = &'a ThreadProfile>,
        of: RowType,
    ) -> Self {
        let names = match of {
            RowType::Module => StepNames::of_modules(profile),
            RowType::Line => StepNames::of_lines(profile),
            RowType::Language => StepNames::of_languages(profile),
            RowType::Function
            | RowType::Thread
            | RowType::Process
            | RowType::Program
            | RowType::Group => StepNames::of_functions(profile),
        };
        let part = match of {
            RowType::Process => LabelBy::Processes,
            RowType::Program => LabelBy::Programs,
            _ => LabelBy::Threads,
        };
        let mut parts = ThreadLabels::new(profile, part);
        let mut all = Count::default();
        let mut sums = RowSums::default();
        for thread in threads.filter(|thread| thread.count.samples > 0) {
            let part = parts.add(thread);
            all += thread.count;
            sums.add(&thread.tree, |step| RowKey::new(of, part, step, &names));
        }
        let parts = parts.labels();
        let named = |sum: RowSum<RowKey>| {
            let forks = sum.forks();
            let RowSum { key, own, total, .. } = sum;
            let is_others = matches!(&key, RowKey::StackStep(step) if step.is_others());
            let (name, qualifier, number) = match key {
                RowKey::Part(part) => (parts[part].clone(), String::new(), 1),
                RowKey::StackStep(step) => {
                    let number = names.groups().map_or(1, |groups| groups.number(step.group()));
                    (names.text(step).to_owned(), names.qualifier(step).to_owned(), number)
                }
            };
            TableRow { name, qualifier, own, total, forks, number, is_others }
        };
        let mut rows: Vec<TableRow> = sums.rows().map(named).collect();
        rows.sort_by(|a, b| {
            let weights = |row: &TableRow| Reverse((row.own.weight, row.total.weight));
            let names = |row: &TableRow| (row.name.clone(), row.qualifier.clone());
            weights(a).cmp(&weights(b)).then_with(|| names(a).cmp(&names(b)))
        });
        Self { rows, all }
    }

    /// Returns the heaviest rows by self weight, at most `most`, that pass `is_enough`, and the sum
    /// of the others.
    pub(in crate::view) fn heaviest(
        &self,
        most: usize,
        is_enough: impl Fn(u64) -> bool,
    ) -> (Vec<&TableRow>, OtherRows) {
        let mut shown = Vec::new();
        let mut rest = OtherRows::default();
        for row in &self.rows {
            if !row.is_others && shown.len() < most && is_enough(row.own.weight) {
                shown.push(row);
            } else {
                rest.add(row);
            }
        }
        (shown, rest)
    }

    /// Returns the rows by total weight, the heaviest first.
    pub fn by_total(&self) -> Vec<&TableRow> {
        let mut rows: Vec<&TableRow> = self.rows.iter().collect();
        // Rows with equal totals stay in the order of their self weights.
        rows.sort_by_key(|row| Reverse(row.total.weight));
        rows
    }
}

/// The sum of hidden rows. It has no total, because totals of several rows do not add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::view) struct OtherRows {
    /// The number of rows.
    pub(in crate::view) number: u64,
    /// The sum of their self weights.
    pub(in crate::view) own: Count,
}

impl OtherRows {
    /// Adds a row.
    pub(in crate::view) fn add(&mut self, row: &TableRow) {
        self.number += row.number;
        self.own += row.own;
    }
}

/// The row that a step counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RowKey {
    /// A thread or a process, by its label.
    Part(usize),
    StackStep(StackStep<NameId>),
}

impl RowKey {
    /// Returns the row of a step, or `None` if the step counts for its caller.
    fn new(
        of: RowType,
        part: usize,
        step: StackStep<LocationId>,
        names: &StepNames,
    ) -> Option<Self> {
        match (of, step) {
            (RowType::Thread | RowType::Process | RowType::Program, StackStep::Thread) => {
                Some(Self::Part(part))
            }
            (RowType::Group, StackStep::Thread | StackStep::Group(_)) => {
                Some(Self::StackStep(step.map(|location| names.id(location))))
            }
            (RowType::Thread | RowType::Process | RowType::Program | RowType::Group, _)
            | (_, StackStep::Group(_) | StackStep::ContextText(_)) => None,
            _ => Some(Self::StackStep(step.map(|location| names.id(location)))),
        }
    }
}

/// The weights of one row.
#[derive(Debug, Clone)]
struct RowSum<K> {
    key: K,
    own: Count,
    total: Count,
    /// The weight outside the heaviest callee, over all calls.
    aside: u64,
}

/// A function with less than this percentage of its total outside its heaviest callee does little
/// but call that.
const ASIDE_MIN: f64 = 5.0;

impl RowSum<RowKey> {
    fn forks(&self) -> bool {
        let is_wait = matches!(self.key, RowKey::StackStep(StackStep::Wait(_)));
        !is_wait && self.aside as f64 >= ASIDE_MIN / 100.0 * self.total.weight as f64
    }
}

/// Sums by key.
#[derive(Debug)]
struct RowSums<K> {
    indices: HashMap<K, usize>,
    sums: Vec<RowSum<K>>,
}

impl<K> Default for RowSums<K> {
    fn default() -> Self {
        Self { indices: HashMap::new(), sums: Vec::new() }
    }
}

impl<K: Copy + Eq + Hash> RowSums<K> {
    /// Adds all samples of a tree. A step without a key counts for its caller.
    fn add<Id: Copy + Eq + Hash>(
        &mut self,
        tree: &CallTree<Id>,
        key: impl Fn(StackStep<Id>) -> Option<K>,
    ) {
        let calls = tree.calls();
        let totals = tree.totals();
        let keyed: Vec<Option<usize>> =
            calls.iter().map(|call| key(call.step).map(|key| self.index_of(key))).collect();
        let mut homes = keyed.clone();
        let mut heaviest = vec![0u64; calls.len()];
        for (index, call) in calls.iter().enumerate().skip(1) {
            let known = &mut heaviest[call.caller()];
            *known = totals[index].weight.max(*known);
        }
        for (index, call) in calls.iter().enumerate() {
            // Callers come first, so the caller's row is known.
            homes[index] = homes[index].or(homes[call.caller()]);
            if let Some(sum) = homes[index].and_then(|home| self.sums.get_mut(home)) {
                sum.own += call.own;
                let aside = totals[index].weight.saturating_sub(heaviest[index]);
                sum.aside = sum.aside.saturating_add(aside);
            }
        }
        let mut open = vec![0u32; self.sums.len()];
        walk(tree, |index, enters| {
            let Some(sum) = keyed[index] else { return };
            if !enters {
                open[sum] -= 1;
                return;
            }
            if open[sum] == 0 {
                self.sums[sum].total += totals[index];
            }
            open[sum] += 1;
        });
    }

    fn index_of(&mut self, key: K) -> usize {
        let sums = &mut self.sums;
        *self.indices.entry(key).or_insert_with(|| {
            let (own, total) = Default::default();
            sums.push(RowSum { key, own, total, aside: 0 });
            sums.len() - 1
        })
    }
}

impl RowSums<RowKey> {
    /// Returns the sums that are rows. The thread itself is a row only if it has samples without
    /// any known step.
    fn rows(self) -> impl Iterator<Item = RowSum<RowKey>> {
        let is_row = |sum: &RowSum<RowKey>| {
            sum.key != RowKey::StackStep(StackStep::Thread) || sum.own.samples > 0
        };
        self.sums.into_iter().filter(is_row)
    }
}

/// Enters and leaves every call once, each inside its caller.
fn walk<Id: Copy + Eq + Hash>(tree: &CallTree<Id>, mut visit: impl FnMut(usize, bool)) {
    const NONE: usize = usize::MAX;
    let calls = tree.calls();
    // Two lists for all calls replace one list per call.
    let (mut first, mut next) = (vec![NONE; calls.len()], vec![NONE; calls.len()]);
    for (index, call) in calls.iter().enumerate().skip(1).rev() {
        next[index] = first[call.caller()];
        first[call.caller()] = index;
    }
    let mut at = 0;
    loop {
        visit(at, true);
        if first[at] != NONE {
            at = first[at];
            continue;
        }
        loop {
            visit(at, false);
            if at == 0 {
                return;
            }
            if next[at] != NONE {
                at = next[at];
                break;
            }
            at = calls[at].caller();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::profile::call_tree::CallTreeBuilder;

    fn grow(stacks: &[(&str, u64)]) -> CallTree<char> {
        let mut grower = CallTreeBuilder::default();
        for (stack, weight) in stacks {
            let count = Count { samples: 1, weight: *weight };
            grower.add(stack.chars().map(StackStep::Frame), count);
        }
        grower.finish()
    }

    fn sums(tree: &CallTree<char>, key: impl Fn(char) -> Option<char>) -> Vec<(char, u64, u64)> {
        let mut sums = RowSums::default();
        sums.add(tree, |step| match step {
            StackStep::Frame(name) => key(name),
            _ => None,
        });
        let all = sums.sums.iter();
        let mut all: Vec<_> = all.map(|sum| (sum.key, sum.own.weight, sum.total.weight)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_recursive_function_counts_once_per_stack() {
        let tree = grow(&[("mfgf", 3), ("mff", 2), ("mg", 5), ("m", 1)]);
        assert_eq!(sums(&tree, Some), [('f', 5, 5), ('g', 5, 8), ('m', 1, 11)]);
    }

    #[test]
    fn a_step_without_a_row_counts_for_its_caller() {
        let tree = grow(&[("mf.", 3), ("mf", 4), ("m.f", 1), ("m..", 2)]);
        let sums_of_rows = sums(&tree, |name| (name != '.').then_some(name));
        assert_eq!(sums_of_rows, [('f', 8, 8), ('m', 2, 10)]);
    }

    #[test]
    fn self_weights_of_rows_add_up() {
        let tree = grow(&[("abab", 7), ("b", 11), ("abc", 13), ("cab", 17)]);
        let own: u64 = sums(&tree, Some).iter().map(|(_, own, _)| own).sum();
        assert_eq!(own, tree.totals()[0].weight);
        assert!(sums(&tree, Some).iter().all(|(_, own, total)| own <= total && *total <= 48));
    }

    #[test]
    fn depth_is_bounded_by_memory_only() {
        let tree = grow(&[(&"ab".repeat(100_000), 1)]);
        assert_eq!(sums(&tree, Some), [('a', 0, 1), ('b', 1, 1)]);
    }
}
