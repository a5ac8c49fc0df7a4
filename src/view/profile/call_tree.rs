//! The call tree of a thread: every distinct stack once, as a path from the root.
//!
//! # Invariants
//! - Call 0 is the thread itself. Every other call comes after its caller, so one pass forwards or
//!   backwards replaces recursion. Stacks may be thousands of frames deep.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::AddAssign;

use crate::view::recording::waits::WaitId;
use crate::view::select::groups::{GroupId, OTHERS};

/// A count of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// The number of samples.
    pub samples: u64,
    /// The weight of the samples: sampling periods, or microseconds of wall clock time.
    pub weight: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.weight = self.weight.saturating_add(other.weight);
    }
}

/// One step of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StackStep<Id> {
    /// The thread itself, the root of every stack.
    Thread,
    /// A group of samples, next to the root of all its stacks.
    Group(GroupId),
    /// A placeholder for the callers that the unwinding did not reach.
    Truncated,
    /// A placeholder for a stack that was dropped because the storage was full.
    Dropped,
    /// A placeholder for a stack without any frame.
    Empty,
    /// A function or a position in one.
    Frame(Id),
    /// The context of a thread. Only a wait follows it.
    ContextText(GroupId),
    /// Time in which the thread did not run. It is the innermost step.
    Wait(WaitId),
}

impl<Id> StackStep<Id> {
    /// Returns the group, if the step is a group.
    pub(in crate::view) fn group(&self) -> Option<GroupId> {
        match self {
            Self::Group(group) => Some(*group),
            _ => None,
        }
    }

    /// Returns whether the step stands for all groups without a line of their own.
    pub(in crate::view) fn is_others(&self) -> bool {
        self.group() == Some(OTHERS)
    }

    /// Converts the id of a frame.
    pub fn map<Other>(self, f: impl FnOnce(Id) -> Other) -> StackStep<Other> {
        match self {
            Self::Thread => StackStep::Thread,
            Self::Group(group) => StackStep::Group(group),
            Self::Truncated => StackStep::Truncated,
            Self::Dropped => StackStep::Dropped,
            Self::Empty => StackStep::Empty,
            Self::Frame(id) => StackStep::Frame(f(id)),
            Self::ContextText(context) => StackStep::ContextText(context),
            Self::Wait(wait) => StackStep::Wait(wait),
        }
    }
}

/// A call: a step of at least one stack.
#[derive(Debug, Clone)]
pub struct CallNode<Id> {
    caller: u32,
    /// The called step.
    pub step: StackStep<Id>,
    /// The samples in which this step is the innermost.
    pub own: Count,
}

impl<Id> CallNode<Id> {
    /// Returns the index of the caller.
    pub fn caller(&self) -> usize {
        self.caller as usize
    }
}

/// The calls of a thread.
#[derive(Debug, Clone)]
pub struct CallTree<Id> {
    calls: Vec<CallNode<Id>>,
}

impl<Id> Default for CallTree<Id> {
    /// Returns a tree with only the thread.
    fn default() -> Self {
        let thread = CallNode { caller: 0, step: StackStep::Thread, own: Count::default() };
        Self { calls: vec![thread] }
    }
}

impl<Id: Copy + Eq + Hash> CallTree<Id> {
    /// Adds a call below an existing one and returns its index.
    pub(in crate::view) fn push(
        &mut self,
        caller: usize,
        step: StackStep<Id>,
        own: Count,
    ) -> usize {
        // Four billion calls do not fit in memory. If they did, the remaining ones would go to the
        // thread.
        let caller = u32::try_from(caller).unwrap_or(0);
        self.calls.push(CallNode { caller, step, own });
        self.calls.len() - 1
    }

    /// Returns all calls, callers first. Call 0 is the thread.
    pub fn calls(&self) -> &[CallNode<Id>] {
        &self.calls
    }

    /// Returns the samples in each call and its callees.
    pub fn totals(&self) -> Vec<Count> {
        let mut totals: Vec<Count> = self.calls.iter().map(|call| call.own).collect();
        for index in (1..self.calls.len()).rev() {
            let total = totals[index];
            totals[self.calls[index].caller()] += total;
        }
        totals
    }

    /// Returns for each call the indices of its callees.
    pub fn callees(&self) -> Vec<Vec<usize>> {
        let mut callees = vec![Vec::new(); self.calls.len()];
        for (index, call) in self.calls.iter().enumerate().skip(1) {
            callees[call.caller()].push(index);
        }
        callees
    }
}

/// Builds a tree from stacks.
#[derive(Debug)]
pub struct CallTreeBuilder<Id> {
    tree: CallTree<Id>,
    known: HashMap<(u32, StackStep<Id>), u32>,
    /// The last stack and its calls: the next stack mostly begins the same way.
    last: Vec<(StackStep<Id>, u32)>,
}

impl<Id: Copy + Eq + Hash> Default for CallTreeBuilder<Id> {
    fn default() -> Self {
        Self { tree: CallTree::default(), known: HashMap::new(), last: Vec::new() }
    }
}

impl<Id: Copy + Eq + Hash> CallTreeBuilder<Id> {
    /// Adds the samples of one stack, given root first. Returns the index of its innermost call.
    pub fn add(&mut self, stack: impl Iterator<Item = StackStep<Id>>, count: Count) -> usize {
        let mut depth = 0;
        let mut caller = 0;
        for step in stack {
            match self.last.get(depth) {
                Some(&(same, call)) if same == step => caller = call,
                _ => {
                    self.last.truncate(depth);
                    caller = self.callee(caller, step);
                    self.last.push((step, caller));
                }
            }
            depth += 1;
        }
        self.last.truncate(depth);
        self.tree.calls[caller as usize].own += count;
        caller as usize
    }

    /// Adds all stacks of another tree, and maps their frames.
    pub fn graft<Other>(&mut self, tree: &CallTree<Other>, map: impl Fn(Other) -> Id)
    where
        Other: Copy + Eq + Hash,
    {
        self.graft_below(None, tree, (false, map));
    }

    /// Adds all stacks of another tree below a step.
    ///
    /// With `merges`, a frame that calls itself is merged with its caller.
    pub(in crate::view) fn graft_below<Other>(
        &mut self,
        below: Option<StackStep<Id>>,
        tree: &CallTree<Other>,
        (merges, map): (bool, impl Fn(Other) -> Id),
    ) where
        Other: Copy + Eq + Hash,
    {
        let mut here = vec![0u32; tree.calls.len()];
        if let Some(step) = below {
            here[0] = self.callee(0, step);
        }
        self.tree.calls[here[0] as usize].own += tree.calls[0].own;
        for (index, call) in tree.calls.iter().enumerate().skip(1) {
            let (caller, step) = (here[call.caller()], call.step.map(&map));
            let is_same = merges && matches!(step, StackStep::Frame(_));
            here[index] = match is_same && self.tree.calls[caller as usize].step == step {
                true => caller,
                false => self.callee(caller, step),
            };
            self.tree.calls[here[index] as usize].own += call.own;
        }
    }

    /// Returns the tree.
    pub fn finish(self) -> CallTree<Id> {
        self.tree
    }

    fn callee(&mut self, caller: u32, step: StackStep<Id>) -> u32 {
        let calls = &mut self.tree.calls;
        *self.known.entry((caller, step)).or_insert_with(|| {
            // Four billion calls do not fit in memory. If they did, the remaining ones would go to
            // the caller.
            let Ok(call) = u32::try_from(calls.len()) else { return caller };
            calls.push(CallNode { caller, step, own: Count::default() });
            call
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Count {
        Count { samples: 1, weight: 2 }
    }

    fn grow(stacks: &[&[char]]) -> CallTree<char> {
        let mut grower = CallTreeBuilder::default();
        for stack in stacks {
            grower.add(stack.iter().map(|name| StackStep::Frame(*name)), one());
        }
        grower.finish()
    }

    fn total_of(tree: &CallTree<char>, name: char) -> Vec<u64> {
        let totals = tree.totals();
        (0..tree.calls().len())
            .filter(|index| tree.calls()[*index].step == StackStep::Frame(name))
            .map(|index| totals[index].weight)
            .collect()
    }

    #[test]
    fn stacks_share_their_common_beginning_whatever_the_order() {
        let tree = grow(&[&['a', 'b', 'c'], &['a', 'd'], &['a', 'b'], &['a', 'b', 'c']]);
        assert_eq!(tree.calls().len(), 5);
        assert_eq!(total_of(&tree, 'a'), [8]);
        assert_eq!(total_of(&tree, 'b'), [6]);
        assert_eq!(total_of(&tree, 'c'), [4]);
        assert_eq!(total_of(&tree, 'd'), [2]);
    }

    #[test]
    fn a_recursive_function_is_a_call_of_its_own_at_each_level() {
        let tree = grow(&[&['a', 'a', 'a'], &['a', 'a']]);
        assert_eq!(total_of(&tree, 'a'), [4, 4, 2]);
    }

    #[test]
    fn an_empty_stack_belongs_to_the_thread() {
        let tree = grow(&[&['a'], &[]]);
        assert_eq!(tree.calls()[0].own, one());
        assert_eq!(tree.totals()[0].samples, 2);
    }

    #[test]
    fn grafting_merges_what_maps_to_the_same() {
        let tree = grow(&[&['a', 'b'], &['A', 'b'], &['A', 'B', 'c']]);
        let mut grower = CallTreeBuilder::default();
        grower.graft(&tree, |name: char| name.to_ascii_lowercase());
        let merged = grower.finish();
        assert_eq!(merged.calls().len(), 4);
        assert_eq!(total_of(&merged, 'b'), [6]);
    }

    #[test]
    fn depth_is_bounded_by_memory_only() {
        let deep: Vec<char> = vec!['a'; 200_000];
        let tree = grow(&[&deep]);
        assert_eq!(tree.totals()[1].samples, 1);
    }
}
