//! Infers method calls from consecutive samples of one thread.
//!
//! # Invariants
//! - A call continues only if its method and its call site in the parent are unchanged and every
//!   outer call continues: if the parent's return address moved, the activation is a new one.
//! - Calls are matched by their depth in the stack, never by membership: recursion makes the same
//!   method appear many times.
//!
//! Knows nothing of time; [`super::gap`] finds gaps.

use super::{LocationId, MAX_DEPTH, MethodId};

/// The number of depths at which a truncated stack is tried, innermost first. Deep recursion offers
/// hundreds of equal ones.
const ANCHORS_TRIED: usize = 16;

/// The properties of a location that inference needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    /// The function.
    pub(super) method: MethodId,
    /// Whether the call is inlined into the location before it.
    pub(super) inlined: bool,
    /// Whether it is code of a runtime that only carries the frames of a language.
    pub(super) carries: bool,
    /// The string id of the source file.
    pub(super) file: u32,
    /// The line.
    pub(super) line: u32,
}

/// Returns how many calls of `open` (root first) continue in `stack`.
pub(super) fn continuing(open: &[LocationId], stack: &[LocationId], sites: &[Site]) -> usize {
    let is_shared = |(old, new): &(&LocationId, &LocationId)| is_same_site(**old, **new, sites);
    let shared = open.iter().zip(stack).take_while(is_shared).count();
    let mut depth = shared;
    while depth < open.len().min(stack.len()) {
        let site = |location: LocationId| sites[location.0 as usize];
        let (old, new) = (site(open[depth]), site(stack[depth]));
        if old.method != new.method {
            break;
        }
        // The calls outside the first difference are at the same sites. Inside it only inlined
        // calls can continue: their addresses move with the function that contains them, and the
        // line of the call site shows whether they are the same.
        if depth > shared {
            let (old_parent, new_parent) = (site(open[depth - 1]), site(stack[depth - 1]));
            let same_line =
                (old_parent.file, old_parent.line) == (new_parent.file, new_parent.line);
            if !(old.inlined && new.inlined && same_line) {
                break;
            }
        }
        depth += 1;
    }
    depth
}

/// Returns whether a call from `old` goes on if it is later from `new`. An interpreter moves with
/// each instruction of the program that it runs, which says nothing about the calls in it.
fn is_same_site(old: LocationId, new: LocationId, sites: &[Site]) -> bool {
    let site = |location: LocationId| sites[location.0 as usize];
    let carry = || site(old).carries && site(new).carries && site(old).method == site(new).method;
    old == new || carry()
}

/// Returns the depth in `open` at which a truncated `stack` fits. The location there must be that
/// of the outermost known frame. If that is the only frame, and so no return address, only the
/// method must match. Of the candidates, the one at which most calls continue wins.
pub(super) fn anchor(open: &[LocationId], stack: &[LocationId], sites: &[Site]) -> Option<usize> {
    let outermost = *stack.first()?;
    let method = |location: LocationId| sites[location.0 as usize].method;
    let fits = |location: &LocationId| match stack.len() {
        1 => method(*location) == method(outermost),
        _ => is_same_site(*location, outermost, sites),
    };
    let candidates = open.iter().enumerate().rev().filter(|(_, location)| fits(location));
    // Innermost first, replaced only by a strictly better one, so the innermost of equal ones wins.
    let mut best = None;
    for (depth, _) in candidates.take(ANCHORS_TRIED) {
        let continued = continuing(&open[depth..], stack, sites);
        if best.is_none_or(|(most, _)| continued > most) {
            best = Some((continued, depth));
        }
    }
    // A depth at which the stack would be too deep does not count.
    best.map(|(_, depth)| depth).filter(|depth| depth + stack.len() < MAX_DEPTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Location n is at address n % 10 of method n / 10. Locations from 500 on are inlined, at line
    /// n % 10 / 5. Locations from 900 on are of an interpreter.
    fn sites() -> Vec<Site> {
        let site = |n: u32| Site {
            method: MethodId(n / 10),
            inlined: (500..900).contains(&n),
            carries: n >= 900,
            file: 0,
            line: n % 10 / 5,
        };
        (0..1000).map(site).collect()
    }

    fn ids(numbers: &[u32]) -> Vec<LocationId> {
        numbers.iter().copied().map(LocationId).collect()
    }

    fn check(open: &[u32], stack: &[u32], expected: usize) {
        assert_eq!(continuing(&ids(open), &ids(stack), &sites()), expected, "{open:?} {stack:?}");
    }

    #[test]
    fn a_call_continues_while_method_and_call_site_stay() {
        check(&[10, 20, 30], &[10, 20, 30], 3);
        check(&[10, 20, 30], &[10, 20, 31], 3);
        check(&[10, 20, 30], &[10, 21, 30], 2);
        check(&[10, 20, 30], &[10, 30], 1);
        check(&[10, 20, 30], &[20, 30], 0);
        check(&[10, 20], &[10, 20, 30], 2);
        check(&[10, 20, 30], &[11], 1);
        check(&[], &[10], 0);
        check(&[10], &[], 0);
    }

    #[test]
    fn recursion_is_matched_by_depth() {
        check(&[10, 20, 20, 20], &[10, 20, 20], 3);
        check(&[10, 20, 20], &[10, 20, 21, 20], 3);
        check(&[10, 20, 21, 20], &[10, 21, 20], 2);
    }

    #[test]
    fn an_inlined_call_continues_while_its_line_stays() {
        check(&[10, 20, 500, 510], &[10, 21, 501, 511], 4);
        check(&[10, 20, 500, 510], &[10, 25, 501, 511], 2);
        check(&[10, 20, 500, 510], &[10, 21, 506, 511], 3);
        check(&[10, 20, 500, 30], &[10, 21, 501, 30], 3);
    }

    #[test]
    fn calls_in_an_interpreter_continue_wherever_it_is() {
        check(&[10, 900, 20, 30], &[10, 901, 20, 30], 4);
        check(&[10, 900, 20, 905, 30], &[10, 901, 20, 902, 31], 5);
        check(&[10, 900, 20, 30], &[10, 901, 21, 30], 3);
        check(&[10, 900, 20], &[11, 901, 20], 1);
        check(&[900, 20], &[910, 20], 0);
        check(&[900, 905, 20], &[901, 906, 20], 3);
    }

    #[test]
    fn a_truncated_stack_is_anchored_at_its_outermost_frame() {
        let fit = |open: &[u32], stack: &[u32]| anchor(&ids(open), &ids(stack), &sites());
        assert_eq!(fit(&[10, 20, 30, 40], &[20, 30, 41]), Some(1));
        assert_eq!(fit(&[10, 20, 30, 40], &[21, 30]), None);
        assert_eq!(fit(&[10, 20, 30, 40], &[41]), Some(3));
        assert_eq!(fit(&[10, 20, 20, 20, 20], &[20, 20]), Some(3));
        assert_eq!(fit(&[10, 20, 30, 20], &[20, 30]), Some(1));
        assert_eq!(fit(&[10], &[]), None);
        assert_eq!(fit(&[10, 900, 20], &[901, 20]), Some(1));
    }
}
