//! What samples come to by function, thread, module or line.

use std::collections::HashMap;
use std::hash::Hash;
use std::str::FromStr;

use crate::trace::LocationId;
use crate::view::calls::{CallTree, Step};
use crate::view::escape::escaped;
use crate::view::names::{NameId, Names};
use crate::view::profile::{Profile, ThreadProfile};

/// Rows that are kept. Generated code may have ever new names; what comes after these is one row.
pub const ROWS_MAX: usize = 50_000;
/// The row of what came after them.
const OTHERS: &str = "(others)";

/// What has a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// Each function.
    #[default]
    Function,
    /// Each thread.
    Thread,
    /// Each program file and library.
    Module,
    /// Each line of a function, or each address where no lines are known.
    Line,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Function, Self::Thread, Self::Module, Self::Line];

    /// Its name on the command line and over its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Thread => "thread",
            Self::Module => "module",
            Self::Line => "line",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == text);
        known.ok_or_else(|| "expected function, thread, module or line".to_owned())
    }
}

/// What a row is called, safe to show.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Label {
    /// The name.
    pub(super) text: String,
    /// The module of a function, the id of a thread; may be empty.
    pub(super) place: String,
}

impl Label {
    fn new(text: &str, place: &str) -> Self {
        let text = if text.is_empty() { "[unnamed]" } else { text };
        Self { text: escaped(text).into_owned(), place: escaped(place).into_owned() }
    }
}

/// The weight of a row: sampling periods, or of wall clock time microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Weight {
    /// In itself alone.
    pub(super) own: u64,
    /// In it and in all that it called; a recursive call counts once.
    pub(super) total: u64,
}

/// Weights by row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// The rows.
    pub(super) rows: HashMap<Label, Weight>,
    /// The weight of all samples.
    pub(super) all: u64,
}

impl Tally {
    /// Counts all threads of a profile.
    pub(super) fn of(profile: &Profile, kind: Kind) -> Self {
        let mut tally = Self::default();
        match kind {
            Kind::Thread => {
                for thread in &profile.threads {
                    tally.put(label_of_thread(thread), both(thread.count.weight));
                }
            }
            Kind::Function => tally.count_names(profile, &Names::of_functions(profile)),
            Kind::Line => tally.count_names(profile, &Names::of_places(profile)),
            Kind::Module => {
                let names = Names::of_functions(profile);
                let id = |step: Step<LocationId>| step.map(|it| module_of(profile, it));
                let label = |step: Step<&str>| match step {
                    Step::Frame(module) => Label::new(module, ""),
                    // The other steps have names of their own.
                    other => Label::new(names.text(other.map(|_| names.id(LocationId(0)))), ""),
                };
                tally.count(profile, id, label);
            }
        }
        tally.all = profile.count().weight;
        tally
    }

    /// Adds the rows of another time.
    pub(super) fn add(&mut self, other: &Self) {
        for (label, weight) in &other.rows {
            self.put(label.clone(), *weight);
        }
        self.all = self.all.saturating_add(other.all);
    }

    fn put(&mut self, label: Label, weight: Weight) {
        if weight == Weight::default() {
            return;
        }
        let is_full = self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&label);
        let label = if is_full { Label::new(OTHERS, "") } else { label };
        let row = self.rows.entry(label).or_default();
        row.own = row.own.saturating_add(weight.own);
        row.total = row.total.saturating_add(weight.total);
    }

    fn count_names(&mut self, profile: &Profile, names: &Names) {
        let id = |step: Step<LocationId>| step.map(|location| names.id(location));
        let label = |step: Step<NameId>| Label::new(names.text(step), names.qualifier(step));
        self.count(profile, id, label);
    }

    fn count<Id: Copy + Eq + Hash>(
        &mut self,
        profile: &Profile,
        id: impl Fn(Step<LocationId>) -> Step<Id>,
        label: impl Fn(Step<Id>) -> Label,
    ) {
        let mut counter = Counter::default();
        for thread in &profile.threads {
            counter.count(&thread.tree, &id);
        }
        for (step, row) in &counter.numbers {
            // The thread itself has samples of its own only where their stacks are empty.
            if *step != Step::Thread || counter.weights[*row].own > 0 {
                self.put(label(*step), counter.weights[*row]);
            }
        }
    }
}

fn both(weight: u64) -> Weight {
    Weight { own: weight, total: weight }
}

fn label_of_thread(thread: &ThreadProfile) -> Label {
    Label::new(&thread.thread.name, &format!("tid {}", thread.thread.tid))
}

fn module_of(profile: &Profile, location: LocationId) -> &str {
    let method = profile.method_of(location).and_then(|method| profile.method(method));
    method.and_then(|method| profile.module_name(method)).unwrap_or("[unknown module]")
}

/// Counts the calls of trees.
#[derive(Debug)]
struct Counter<Id> {
    numbers: HashMap<Step<Id>, usize>,
    weights: Vec<Weight>,
    /// How many calls of a row are open, by its number.
    open: Vec<u32>,
}

impl<Id> Default for Counter<Id> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), weights: Vec::new(), open: Vec::new() }
    }
}

impl<Id: Copy + Eq + Hash> Counter<Id> {
    /// Goes down each branch and up again, with a stack of its own: the depth is the target's choice.
    fn count(&mut self, tree: &CallTree<LocationId>, id: impl Fn(Step<LocationId>) -> Step<Id>) {
        let (calls, totals, callees) = (tree.calls(), tree.totals(), tree.callees());
        let mut pending = vec![(0, false)];
        while let Some((index, is_done)) = pending.pop() {
            let row = self.number(id(calls[index].step));
            if is_done {
                self.open[row] -= 1;
                continue;
            }
            let weight = &mut self.weights[row];
            weight.own = weight.own.saturating_add(calls[index].own.weight);
            if self.open[row] == 0 {
                weight.total = weight.total.saturating_add(totals[index].weight);
            }
            self.open[row] += 1;
            pending.push((index, true));
            pending.extend(callees[index].iter().map(|callee| (*callee, false)));
        }
    }

    fn number(&mut self, step: Step<Id>) -> usize {
        let next = self.weights.len();
        let number = *self.numbers.entry(step).or_insert(next);
        if number == next {
            self.weights.push(Weight::default());
            self.open.push(0);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_one_row_and_nothing_is_lost() {
        let mut tally = Tally::default();
        for number in 0..ROWS_MAX + 10 {
            tally.put(Label::new(&format!("f{number}"), ""), both(2));
        }
        tally.put(Label::new("f1", ""), both(1));
        assert_eq!(tally.rows.len(), ROWS_MAX + 1);
        assert_eq!(tally.rows[&Label::new(OTHERS, "")], both(20));
        assert_eq!(tally.rows[&Label::new("f1", "")], both(3));
        let sum: u64 = tally.rows.values().map(|row| row.own).sum();
        assert_eq!(sum, (ROWS_MAX as u64 + 10) * 2 + 1);
    }
}
