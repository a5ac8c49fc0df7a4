//! The table of a profile's functions, or of its modules, lines, threads, processes or groups: what each
//! used in itself, and with all that it called.
//!
//! # Invariants
//! - What all rows used in themselves adds up to the samples that were looked at.
//! - In a total a recursive function counts once per stack, so no total is more than all there is.
//! - No recursion: stacks may be thousands of calls deep.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

use super::calls::{CallTree, Count, Step};
use super::groups;
use super::names::{NameId, Names};
use super::parts::{PartOf, Parts};
use super::profile::{Profile, ThreadProfile};
use crate::trace::LocationId;

/// What a row of a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowOf {
    /// A function; what threads wait for is one too.
    #[default]
    Function,
    /// A module.
    Module,
    /// A line of a function's source; the function where its lines are not known.
    Line,
    /// A thread.
    Thread,
    /// A process.
    Process,
    /// What the samples are grouped by; of a profile without groups all is one row.
    Group,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRow {
    /// What it is called, safe to show.
    pub name: String,
    /// The module of a function, or what else tells it from a row of the same name; may be empty.
    pub qualifier: String,
    /// In itself.
    pub own: Count,
    /// With all that it called.
    pub total: Count,
    /// Its stacks part here or end here. Not so of one that does next to nothing but call one other, as
    /// `_start` does, nor of what is waited for.
    pub forks: bool,
    /// How many it stands for: more than one only if it is of others.
    pub number: u64,
    /// It is of groups that are not told apart.
    pub is_others: bool,
}

/// All rows.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// The heaviest in itself first.
    pub rows: Vec<TableRow>,
    /// What the rows used in themselves, together.
    pub all: Count,
}

impl Table {
    /// The table of all threads.
    pub fn new(profile: &Profile, of: RowOf) -> Self {
        Self::of_threads(profile, profile.threads.iter(), of)
    }

    /// The table of some threads.
    pub fn of_threads<'a>(
        profile: &'a Profile,
        threads: impl Iterator<Item = &'a ThreadProfile>,
        of: RowOf,
    ) -> Self {
        let names = match of {
            RowOf::Module => Names::of_modules(profile),
            RowOf::Line => Names::of_lines(profile),
            RowOf::Function | RowOf::Thread | RowOf::Process | RowOf::Group => {
                Names::of_functions(profile)
            }
        };
        let part = if of == RowOf::Process { PartOf::Processes } else { PartOf::Threads };
        let mut parts = Parts::new(profile, part);
        let mut all = Count::default();
        let mut sums = Sums::default();
        for thread in threads.filter(|thread| thread.count.samples > 0) {
            let place = parts.add(thread);
            all += thread.count;
            sums.add(&thread.tree, |step| Key::new(of, place, step, &names));
        }
        let parts = parts.labels();
        let named = |sum: Sum<Key>| {
            let forks = sum.forks();
            let Sum { key, own, total, .. } = sum;
            let is_others = matches!(&key, Key::Step(step) if groups::is_others(step));
            let (name, qualifier, number) = match key {
                Key::Part(place) => (parts[place].clone(), String::new(), 1),
                Key::Step(step) => {
                    let number = names.groups().map_or(1, |groups| groups.number(&step));
                    (names.text(step).to_owned(), names.qualifier(step).to_owned(), number)
                }
            };
            TableRow { name, qualifier, own, total, forks, number, is_others }
        };
        let mut rows: Vec<TableRow> = sums.heard().map(named).collect();
        rows.sort_by(|a, b| {
            let weights = |row: &TableRow| Reverse((row.own.weight, row.total.weight));
            let names = |row: &TableRow| (row.name.clone(), row.qualifier.clone());
            weights(a).cmp(&weights(b)).then_with(|| names(a).cmp(&names(b)))
        });
        Self { rows, all }
    }

    /// The heaviest rows in themselves, no more than so many and only of a weight that is enough, and what
    /// all others come to.
    pub(super) fn heaviest(
        &self,
        most: usize,
        is_enough: impl Fn(u64) -> bool,
    ) -> (Vec<&TableRow>, Rest) {
        let mut shown = Vec::new();
        let mut rest = Rest::default();
        for row in &self.rows {
            if !row.is_others && shown.len() < most && is_enough(row.own.weight) {
                shown.push(row);
            } else {
                rest.add(row);
            }
        }
        (shown, rest)
    }

    /// The rows, the heaviest with all that it called first.
    pub fn by_total(&self) -> Vec<&TableRow> {
        let mut rows: Vec<&TableRow> = self.rows.iter().collect();
        // Of equal ones the heavier in itself stays first.
        rows.sort_by_key(|row| Reverse(row.total.weight));
        rows
    }
}

/// Rows that are not shown. What each had with all that it called cannot be added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rest {
    /// How many there are.
    pub(super) number: u64,
    /// In themselves.
    pub(super) own: Count,
}

impl Rest {
    /// Adds a row.
    pub(super) fn add(&mut self, row: &TableRow) {
        self.number += row.number;
        self.own += row.own;
    }
}

/// What samples are added up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// By the place of the thread, or of its process, among those that have a sample.
    Part(usize),
    Step(Step<NameId>),
}

impl Key {
    /// The row of a step; `None` for one that is told with its caller.
    fn new(of: RowOf, place: usize, step: Step<LocationId>, names: &Names) -> Option<Self> {
        match (of, step) {
            (RowOf::Thread | RowOf::Process, Step::Thread) => Some(Self::Part(place)),
            (RowOf::Group, Step::Thread | Step::Group(_)) => {
                Some(Self::Step(step.map(|location| names.id(location))))
            }
            (RowOf::Thread | RowOf::Process | RowOf::Group, _)
            | (_, Step::Group(_) | Step::Context(_)) => None,
            _ => Some(Self::Step(step.map(|location| names.id(location)))),
        }
    }
}

/// What has a key.
#[derive(Debug, Clone)]
struct Sum<K> {
    key: K,
    own: Count,
    total: Count,
    /// What of it was not in the heaviest of its calls, wherever it was called.
    aside: u64,
}

/// One that has less than this share of its total aside, in percent, only leads to another.
const ASIDE_MIN: f64 = 5.0;

impl Sum<Key> {
    fn forks(&self) -> bool {
        let is_wait = matches!(self.key, Key::Step(Step::Wait(_)));
        !is_wait && self.aside as f64 >= ASIDE_MIN / 100.0 * self.total.weight as f64
    }
}

/// Sums by key.
#[derive(Debug)]
struct Sums<K> {
    places: HashMap<K, usize>,
    sums: Vec<Sum<K>>,
}

impl<K> Default for Sums<K> {
    fn default() -> Self {
        Self { places: HashMap::new(), sums: Vec::new() }
    }
}

impl<K: Copy + Eq + Hash> Sums<K> {
    /// Adds all samples of a tree. A step without a key is told with its caller.
    fn add<Id: Copy + Eq + Hash>(
        &mut self,
        tree: &CallTree<Id>,
        key: impl Fn(Step<Id>) -> Option<K>,
    ) {
        let calls = tree.calls();
        let totals = tree.totals();
        let keyed: Vec<Option<usize>> =
            calls.iter().map(|call| key(call.step).map(|key| self.place(key))).collect();
        let mut homes = keyed.clone();
        let mut heaviest = vec![0u64; calls.len()];
        for (index, call) in calls.iter().enumerate().skip(1) {
            let known = &mut heaviest[call.caller()];
            *known = totals[index].weight.max(*known);
        }
        for (index, call) in calls.iter().enumerate() {
            // Callers come first, so the caller's is known.
            homes[index] = homes[index].or(homes[call.caller()]);
            if let Some(sum) = homes[index].and_then(|home| self.sums.get_mut(home)) {
                sum.own += call.own;
                let aside = totals[index].weight.saturating_sub(heaviest[index]);
                sum.aside = sum.aside.saturating_add(aside);
            }
        }
        let mut open = vec![0u32; self.sums.len()];
        walk(tree, |index, enters| {
            let Some(place) = keyed[index] else { return };
            if !enters {
                open[place] -= 1;
                return;
            }
            if open[place] == 0 {
                self.sums[place].total += totals[index];
            }
            open[place] += 1;
        });
    }

    fn place(&mut self, key: K) -> usize {
        let sums = &mut self.sums;
        *self.places.entry(key).or_insert_with(|| {
            let (own, total) = Default::default();
            sums.push(Sum { key, own, total, aside: 0 });
            sums.len() - 1
        })
    }
}

impl Sums<Key> {
    /// The sums that are rows: a thread itself is one only of samples that no step is known of.
    fn heard(self) -> impl Iterator<Item = Sum<Key>> {
        let is_row = |sum: &Sum<Key>| sum.key != Key::Step(Step::Thread) || sum.own.samples > 0;
        self.sums.into_iter().filter(is_row)
    }
}

/// Enters and leaves every call once, each inside its caller.
fn walk<Id: Copy + Eq + Hash>(tree: &CallTree<Id>, mut visit: impl FnMut(usize, bool)) {
    const NONE: usize = usize::MAX;
    let calls = tree.calls();
    // Two lists for all calls instead of one for each.
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
    use crate::view::calls::Grower;

    fn grow(stacks: &[(&str, u64)]) -> CallTree<char> {
        let mut grower = Grower::default();
        for (stack, weight) in stacks {
            let count = Count { samples: 1, weight: *weight };
            grower.add(stack.chars().map(Step::Frame), count);
        }
        grower.finish()
    }

    fn sums(tree: &CallTree<char>, key: impl Fn(char) -> Option<char>) -> Vec<(char, u64, u64)> {
        let mut sums = Sums::default();
        sums.add(tree, |step| match step {
            Step::Frame(name) => key(name),
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
    fn a_step_that_is_no_row_is_told_with_its_caller() {
        let tree = grow(&[("mf.", 3), ("mf", 4), ("m.f", 1), ("m..", 2)]);
        let told = sums(&tree, |name| (name != '.').then_some(name));
        assert_eq!(told, [('f', 8, 8), ('m', 2, 10)]);
    }

    #[test]
    fn what_rows_used_in_themselves_adds_up() {
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
