//! The inverted call tree: the functions in which samples were taken, and below each function its
//! callers.
//!
//! # Invariants
//! - The weights of the first level are self weights, and add up to the tree's.
//! - Calls without a line need no memory: callers of a light or deep call are not searched. All
//!   stack ends together may have far more callers than the tree has calls.

use std::collections::BTreeMap;

use crate::view::print::options::PrintLimits;
use crate::view::profile::call_tree::{CallTree, Count, StackStep};
use crate::view::profile::step_names::NameId;

/// An end of a stack: the call up to which its callers have been followed, and its count.
type StackEnd = (usize, Count);

/// Returns the tree of callers.
pub(in crate::view) fn inverted(tree: &CallTree<NameId>, limits: &PrintLimits) -> CallTree<NameId> {
    let calls = tree.calls();
    let mut own: Vec<Count> = calls.iter().map(|call| call.own).collect();
    for (index, call) in calls.iter().enumerate() {
        // A context is not a position in the code.
        if matches!(call.step, StackStep::ContextText(_)) {
            let moved = std::mem::take(&mut own[index]);
            own[call.caller()] += moved;
        }
    }
    let all: u64 = own.iter().map(|own| own.weight).sum();
    let least = limits.min_percent / 100.0 * all as f64;
    let ends = own.iter().copied().enumerate().filter(|(_, own)| own.samples > 0).collect();
    let mut turned = CallTree::default();
    let mut pending: Vec<(usize, usize, Vec<StackEnd>)> = vec![(0, 0, ends)];
    while let Some((under, depth, ends)) = pending.pop() {
        let mut callers: BTreeMap<StackStep<NameId>, Vec<StackEnd>> = BTreeMap::new();
        for (at, count) in ends {
            callers.entry(calls[at].step).or_default().push((at, count));
        }
        // If some stacks have no further caller, the thread becomes their caller, so that callers
        // add up.
        for (step, ends) in callers {
            let mut count = Count::default();
            ends.iter().for_each(|(_, more)| count += *more);
            let is_shown = count.weight as f64 >= least && limits.depth.is_none_or(|it| depth < it);
            let goes_on = ends.iter().any(|(at, _)| calls[*at].caller() != 0);
            if is_shown && goes_on {
                let at = turned.push(under, step, Count::default());
                let further = ends.into_iter().map(|(at, count)| (calls[at].caller(), count));
                pending.push((at, depth + 1, further.collect()));
            } else {
                turned.push(under, step, count);
            }
        }
    }
    turned
}
