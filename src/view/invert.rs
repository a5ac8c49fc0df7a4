//! A call tree seen from its ends: the functions in which samples were taken, and below each its callers.
//!
//! # Invariants
//! - The weights of the first level are what the functions used in themselves, and add up to the tree's.
//! - What has no line needs no memory: callers of what is too light or too deep are not looked for. The
//!   callers of all ends together may be far more than the calls of the tree.

use std::collections::BTreeMap;

use super::calls::{CallTree, Count, Step};
use super::names::NameId;
use super::rows::Limits;

/// An end of a stack, and how far up its callers have been followed.
type End = (usize, Count);

/// The tree of callers.
pub(super) fn inverted(tree: &CallTree<NameId>, limits: &Limits) -> CallTree<NameId> {
    let calls = tree.calls();
    let mut own: Vec<Count> = calls.iter().map(|call| call.own).collect();
    for (index, call) in calls.iter().enumerate() {
        // What a thread worked on is not where it was.
        if matches!(call.step, Step::Context(_)) {
            let moved = std::mem::take(&mut own[index]);
            own[call.caller()] += moved;
        }
    }
    let all: u64 = own.iter().map(|own| own.weight).sum();
    let least = limits.min_percent / 100.0 * all as f64;
    let ends = own.iter().copied().enumerate().filter(|(_, own)| own.samples > 0).collect();
    let mut turned = CallTree::default();
    let mut pending: Vec<(usize, usize, Vec<End>)> = vec![(0, 0, ends)];
    while let Some((under, depth, ends)) = pending.pop() {
        let mut callers: BTreeMap<Step<NameId>, Vec<End>> = BTreeMap::new();
        for (at, count) in ends {
            callers.entry(calls[at].step).or_default().push((at, count));
        }
        // Where some stacks have no further caller, the thread is one, so that callers add up.
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
