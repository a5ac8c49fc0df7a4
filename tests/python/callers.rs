//! The callers in `callers.py`, in which every function has one caller, and the check of stacks of
//! Python frames against them.
//!
//! The functions of a kind are `kind_0`, `kind_1` and so on. Usually a function is called by the one
//! with the number before, and `kind_0` is called by `rounds`. [`CALLERS`] has the others. Functions
//! with other names belong to libraries.

use std::collections::BTreeMap;

use crate::common::{Folded, Minor};

/// The most wrong stacks that a message shows.
const SHOWN_MAX: usize = 8;

/// The frames below a function, from its caller on. `..` stands for frames of libraries, `|` and
/// ` or ` are between alternatives, and a frame with `?` may be missing: up to 3.11, comprehensions
/// have frames. The frame of a generator or a coroutine begins where it is made, and goes on
/// elsewhere.
const CALLERS: [(&str, &str); 47] = [
    ("deep_1", "deep_0|deep_1"),
    ("method_2", "method_1"),
    ("method_3", "method_1"),
    ("method_4", "method_1"),
    ("special_1", "__new__ .. special_0"),
    ("special_2", "__init__ .. special_0"),
    ("special_3", "__add__ .. special_0"),
    ("special_4", "__getattr__ .. special_0"),
    ("special_5", "__eq__ .. special_0"),
    ("special_6", "__call__ .. special_0"),
    ("special_7", "__del__ .. special_0"),
    ("expr_1", "<genexpr> .. expr_0"),
    ("comp_2", "<listcomp>? comp_1"),
    ("comp_3", "<dictcomp>? comp_1"),
    ("comp_4", "<setcomp>? comp_1"),
    ("deco_2", "deco_1"),
    ("deco_3", "deco_2"),
    ("cached_1", ".. cached_0"),
    ("cached_2", "cached_1"),
    ("cached_3", ".. cached_0"),
    ("lambda_1", "<lambda> lambda_0"),
    ("sorted_1", ".. sorted_0"),
    ("sorted_3", ".. sorted_0"),
    ("map_1", ".. map_0"),
    ("map_2", ".. map_0"),
    ("map_3", ".. map_0"),
    ("resub_1", ".. sub .. resub_0"),
    ("resub_2", ".. resub_0"),
    ("json_1", ".. iterencode .. encode .. dumps .. json_0"),
    ("json_2", ".. raw_decode .. decode .. loads .. json_0"),
    ("async_1", ".. _run .. _run_once .. run_forever .. run_until_complete .. async_0 or async_0"),
    ("async_4", "async_1"),
    ("coro_1", ".. coro_0"),
    ("context_1", ".. __enter__|__exit__|__init__ .. context_0"),
    ("context_3", "context_1"),
    ("exec_1", "<module> .. exec_0"),
    ("exec_2", "<module> .. exec_0"),
    ("exec_3", "exec_0"),
    ("exec_4", "exec_3"),
    ("lib_2", "lib_0"),
    ("ctypes_1", ".. ctypes_0"),
    ("gen_1", ".. gen_0"),
    ("context_2", "context_1"),
    // The libraries' functions that start a thread, and nothing of the program.
    ("thread_0", ".. run .. _bootstrap_inner .. _bootstrap .. ROOT"),
    ("signal_0", ".."),
    ("rounds", "<module> .. ROOT"),
    ("gen_3", "gen_2"),
];

/// The functions whose qualified name is another one, which Python has from 3.11 on.
const QUALIFIED: [(&str, &str); 8] = [
    ("method_1", "Method.method_1"),
    ("method_2", "Method.method_2"),
    ("method_3", "Method.method_3"),
    ("method_4", "Method.method_4"),
    ("deco_2", "decorate.<locals>.deco_2"),
    ("<lambda>", "lambda_0.<locals>.<lambda>"),
    ("<genexpr>", "expr_0.<locals>.<genexpr>"),
    ("<listcomp>", "comp_1.<locals>.<listcomp>"),
];

/// The counts of a profile of `callers.py`.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) total: u64,
    /// Stacks with functions of the program.
    pub(super) own: u64,
    /// Stacks that are not whole, or have frames without a name, as the profiler says.
    pub(super) cut: u64,
    /// Stacks by the kind of the innermost function of the program.
    pub(super) kinds: BTreeMap<String, u64>,
    /// Stacks with a wrong caller.
    pub(super) wrong: u64,
    examples: Vec<String>,
}

impl Tally {
    /// Counts the stacks of a profile.
    pub(super) fn of(folded: &Folded, minor: Minor) -> Self {
        let mut tally = Self::default();
        for (stack, count) in folded.stacks() {
            tally.total += count;
            // While an interpreter makes or drops a frame, the frames below it may be out of reach.
            // A missing caller is no wrong one, and few may miss.
            let has_root = matches!(simple(&stack[0]), "<module>" | "_bootstrap" | "");
            if !has_root || stack.iter().any(|frame| frame.starts_with('[')) {
                tally.cut += count;
                continue;
            }
            let Some(inner) = stack.iter().rfind(|frame| is_own(simple(frame))) else { continue };
            tally.own += count;
            let kind = simple(inner).split('_').next().unwrap_or_default();
            *tally.kinds.entry(kind.to_owned()).or_default() += count;
            if let Some(fault) = fault(stack, minor) {
                tally.wrong += count;
                if tally.examples.len() < SHOWN_MAX {
                    tally.examples.push(format!("{count} of {fault}: {}", stack.join(";")));
                }
            }
        }
        tally
    }

    /// Checks that no caller is wrong, and that there are samples of each of these kinds.
    pub(super) fn assert_right<'a>(&self, what: &str, kinds: impl Iterator<Item = &'a str>) {
        let examples = self.examples.join("\n");
        assert_eq!(self.wrong, 0, "{what}: of {} stacks:\n{examples}", self.total);
        for kind in kinds {
            let count = self.kinds.get(kind).copied().unwrap_or(0);
            assert!(count * 1000 >= self.own, "{what}: {kind} is rare: {:?}", self.kinds);
        }
    }
}

/// Returns a function's name without what it is in.
fn simple(frame: &str) -> &str {
    frame.rsplit_once('.').map_or(frame, |(_, name)| name)
}

/// Whether this is a function of `callers.py`.
fn is_own(name: &str) -> bool {
    let numbered = name.rsplit_once('_').is_some_and(|(kind, number)| {
        let is_number = number.len() == 1 && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number && !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_lowercase())
    });
    numbered || name == "rounds"
}

/// Returns the frames that must be below a function.
fn expected(name: &str) -> String {
    if let Some((_, callers)) = CALLERS.iter().find(|(function, _)| *function == name) {
        return (*callers).to_owned();
    }
    let (kind, number) = name.rsplit_once('_').expect("an own name");
    match number.parse::<u32>().expect("an own name") {
        0 => "rounds".to_owned(),
        number => format!("{kind}_{}", number - 1),
    }
}

/// Returns what is wrong with a stack, root first.
fn fault(stack: &[String], minor: Minor) -> Option<String> {
    for (at, frame) in stack.iter().enumerate() {
        let name = simple(frame);
        if minor >= 11
            && let Some((_, qualified)) = QUALIFIED.iter().find(|(simple, _)| *simple == name)
            && is_near_own(stack, at)
            && frame != qualified
        {
            return Some(format!("{frame}, which is {qualified}"));
        }
        if !is_own(name) {
            continue;
        }
        let expected = expected(name);
        let below: Vec<&str> = stack[..at].iter().rev().map(|frame| simple(frame)).collect();
        let fits = |way: &str| follows(&below, &way.split(' ').collect::<Vec<_>>());
        if !expected.split(" or ").any(fits) {
            return Some(format!("{name}, which is called by {expected}"));
        }
    }
    None
}

/// Whether a frame without a name of its own is called by a function of the program that has one.
fn is_near_own(stack: &[String], at: usize) -> bool {
    let name = simple(&stack[at]);
    let caller = at.checked_sub(1).map_or("", |below| simple(&stack[below]));
    is_own(name) || matches!(caller, "lambda_0" | "comp_1" | "expr_0")
}

/// Whether frames, from a caller to the root, begin as expected.
fn follows(below: &[&str], expected: &[&str]) -> bool {
    let Some((wanted, rest)) = expected.split_first() else { return true };
    match *wanted {
        ".." => {
            let gap = below.iter().take_while(|name| !is_own(name)).count();
            (0..=gap).any(|skipped| follows(&below[skipped..], rest))
        }
        "ROOT" => below.is_empty(),
        _ => {
            let (names, may_miss) = match wanted.strip_suffix('?') {
                Some(names) => (names, true),
                None => (*wanted, false),
            };
            let is_next = below.first().is_some_and(|it| names.split('|').any(|name| name == *it));
            (is_next && follows(&below[1..], rest)) || (may_miss && follows(below, rest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(minor: Minor, stack: &str, is_right: bool) {
        let stack: Vec<String> = stack.split(' ').map(str::to_owned).collect();
        let fault = fault(&stack, minor);
        assert_eq!(fault.is_none(), is_right, "{stack:?}: {fault:?}");
    }

    #[test]
    fn right_stacks_have_no_fault() {
        for stack in [
            "<module> rounds plain_0 plain_1 plain_2 plain_3",
            "<module> rounds deep_0 deep_1 deep_1 deep_1",
            "<module> rounds comp_0 comp_1 comp_2",
            "<module> rounds special_0 Special.__new__ special_1",
            "<module> rounds resub_0 sub resub_1",
            "<module> rounds async_0 async_1",
            "<module> rounds async_0 run_until_complete run_forever _run_once _run async_1 async_2",
            "<module> rounds exec_0 <module> exec_1",
            "<module> rounds context_0 _GeneratorContextManager.__exit__ context_1 context_3",
            "<module> rounds json_0 dumps JSONEncoder.encode JSONEncoder.iterencode json_1",
            "Thread._bootstrap Thread._bootstrap_inner Thread.run thread_0",
            "<module> rounds sorted_0 sorted_1 sorted_2 signal_0 signal_1",
            "<module> rounds lambda_0 lambda_0.<locals>.<lambda> lambda_1",
            "<module> rounds deco_0 deco_1 decorate.<locals>.deco_2 deco_3",
            "<module> rounds method_0 Method.method_1 Method.method_4",
            "<module> dumps JSONEncoder.encode",
        ] {
            check(11, stack, true);
            check(14, stack, true);
        }
        check(8, "<module> rounds comp_0 comp_1 <listcomp> comp_2", true);
        check(8, "<module> rounds method_0 method_1 method_4", true);
    }

    #[test]
    fn wrong_stacks_have_a_fault() {
        for stack in [
            // A frame is missing, at each place.
            "<module> rounds plain_0 plain_2 plain_3",
            "<module> rounds plain_0 plain_1 plain_3",
            "<module> rounds plain_1",
            "<module> plain_0",
            "rounds plain_0 plain_1",
            "plain_3",
            // Frames of another stack, or a frame too much.
            "<module> rounds sorted_0 plain_1",
            "<module> rounds plain_0 foreign plain_1",
            "<module> rounds plain_0 plain_0 plain_1",
            "<module> rounds gen_0 comp_0",
            "<module> rounds rounds plain_0",
            "<module> rounds plain_0 plain_1 plain_2 rounds",
            // The parts of a mixed stack are in the wrong order.
            "<module> rounds resub_0 resub_1",
            "<module> rounds resub_0 resub_1 sub",
            "<module> rounds sub resub_0 resub_1",
            "<module> rounds exec_0 exec_1",
            "<module> rounds special_0 special_1",
            "<module> rounds special_0 __init__ special_1",
            "<module> rounds context_0 context_1 context_3",
            "<module> rounds async_0 _run_once run_forever async_1",
            "<module> rounds json_0 encode dumps iterencode json_1",
            // A thread has the frames of another one.
            "<module> rounds thread_0 thread_1",
            "<module> _bootstrap _bootstrap_inner run rounds plain_0",
            "_bootstrap _bootstrap_inner thread_0 thread_1",
            "run plain_0 _bootstrap _bootstrap_inner run thread_0",
            "<module> rounds signal_1",
            // Names that are not the qualified ones.
            "<module> rounds lambda_0 <lambda> lambda_1",
            "<module> rounds method_0 method_1 Method.method_4",
        ] {
            check(11, stack, false);
        }
        check(8, "<module> rounds comp_0 <listcomp> comp_2", false);
        check(8, "<module> rounds comp_0 comp_1 <setcomp> comp_2", false);
    }

    #[test]
    fn stacks_are_counted() {
        let text = "<module>;rounds;plain_0 5\n<module>;rounds;plain_1 2\n<module>;main 3\n\
                    <module>;[gone];plain_1 4\n<module>;rounds;deep_0;deep_1 6\ngen_1 1\n";
        let tally = Tally::of(&Folded::parse(text), 11);
        assert_eq!((tally.total, tally.own, tally.cut, tally.wrong), (21, 13, 5, 2));
        assert_eq!(tally.kinds.get("plain"), Some(&7));
        assert_eq!(tally.kinds.get("deep"), Some(&6));
    }

    #[test]
    fn every_rule_is_of_a_function() {
        let source = std::fs::read_to_string(crate::common::script("python/callers.py")).unwrap();
        for (function, _) in CALLERS {
            assert!(source.contains(&format!("def {function}(")), "{function}");
        }
    }
}
