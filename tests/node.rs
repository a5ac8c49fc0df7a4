//! Node.js of all supported versions: names, callers and lines of functions without a flag, against
//! what the programs say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::{
    Folded, Node, Outcome, Target, needs_recording, record_cpu_and_end, skip, together,
};

/// Options of a recording whose samples all have the functions.
pub(crate) const OPTIONS: [&str; 3] = ["--freq", "1999", "--no-kernel"];

/// A program in which each function whose name begins with `c_` has one caller.
const SINGLE: &str = include_str!("targets/single.js");

/// Returns the callers of each of these functions, without `c_`: `-` stands for none.
fn callers() -> BTreeMap<&'static str, Vec<&'static str>> {
    let lines = SINGLE.lines().filter_map(|line| line.strip_prefix("//   c_"));
    let of = |(name, callers): (&'static str, &'static str)| {
        let callers = callers.split(' ').map(|it| it.strip_prefix("c_").unwrap_or(it));
        (name, callers.collect())
    };
    lines.filter_map(|line| line.split_once(" < ")).map(of).collect()
}

/// Checks that each function of `single.js` has its caller in all samples. Returns the number of
/// calls, and the functions that have samples.
fn check_callers(node: &Node, folded: &Folded) -> (u64, BTreeSet<String>) {
    let expected = callers();
    let (mut calls, mut wrong, mut seen) = (0, Vec::new(), BTreeSet::new());
    for (stack, count) in folded.stacks() {
        let is_cut = stack[0] == "[truncated]";
        let mut caller = "-";
        for frame in stack {
            if frame.ends_with("gone]") {
                caller = "?";
            }
            let Some(name) = frame.strip_prefix("c_") else { continue };
            let known = expected.get(name).unwrap_or_else(|| panic!("no function c_{name}"));
            let is_unknown = caller == "?" || is_cut && caller == "-";
            if !known.contains(&caller) && !is_unknown {
                wrong.push(stack.join(";"));
            }
            (calls, caller) = (calls + count, name);
            seen.insert(name.to_owned());
        }
    }
    assert!(wrong.is_empty(), "Node.js {}: {wrong:#?}", node.version);
    (calls, seen)
}

/// Returns the first and the last line of each function of `single.js`, without `c_`.
fn lines() -> BTreeMap<&'static str, (u64, u64)> {
    let mut lines = BTreeMap::new();
    let mut open: Vec<(&str, usize, u64)> = Vec::new();
    for (number, line) in (1..).zip(SINGLE.lines()) {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if text.starts_with('}')
            && let Some((name, _, first)) = open.pop_if(|(_, depth, _)| *depth == indent)
        {
            lines.insert(name, (first, number));
        }
        let begins = |word: &str| text.starts_with(word) || text.contains("function c_");
        let is_definition = ["function", "async function", "static c_", "c_", "const c_"];
        if text.ends_with('{') && is_definition.into_iter().any(begins) {
            let words = text.split(|it: char| !(it.is_alphanumeric() || it == '_'));
            let name = words.filter_map(|word| word.strip_prefix("c_")).next();
            open.extend(name.map(|name| (name, indent, number)));
        }
    }
    lines
}

/// What the locations of functions of `single.js` say.
struct Locations {
    /// Number of locations with a line.
    with_line: usize,
    /// Number of locations of each kind.
    kinds: BTreeMap<String, usize>,
}

/// Checks the lines of all locations of functions of `single.js`.
fn check_lines(node: &Node, outcome: &Outcome) -> Locations {
    let number = |object: &serde_json::Value, key: &str| object[key].as_u64();
    let strings: BTreeMap<u64, String> = (outcome.trace.objects("STRING").iter())
        .filter_map(|it| Some((number(it, "id")?, it["text"].as_str()?.to_owned())))
        .collect();
    let methods: BTreeMap<u64, &str> = (outcome.trace.objects("METHOD").iter())
        .filter_map(|it| {
            let name = strings.get(&number(it, "name")?)?;
            Some((number(it, "id")?, name.strip_prefix("c_")?))
        })
        .collect();
    let expected = lines();
    let (mut with_line, mut kinds) = (0, BTreeMap::<String, usize>::new());
    for location in outcome.trace.objects("CODE_LOCATION") {
        let method = number(&location, "method");
        let Some(name) = method.and_then(|id| methods.get(&id)) else { continue };
        let kind = location["frame_kind"].as_str().unwrap_or_default();
        *kinds.entry(kind.to_owned()).or_default() += 1;
        let line = number(&location, "line").unwrap_or(0);
        // Those that `new Function` makes are in a source of their own.
        let is_here = line > 0 && !name.starts_with("dropped");
        let Some((first, last)) = expected.get(name).filter(|_| is_here) else { continue };
        let is_in = (*first..=*last).contains(&line);
        let version = node.version;
        assert!(is_in, "Node.js {version}: {kind} c_{name}:{line}, not in {first} to {last}");
        with_line += 1;
    }
    Locations { with_line, kinds }
}

/// Of a thousand samples with functions of JavaScript, the number that may lack a name.
pub(crate) const UNNAMED: f64 = 10.0;

/// Checks the share of samples with all names: a permitted rate, in one of a thousand, and three
/// standard deviations of it.
pub(crate) fn assert_named(node: &Node, outcome: &Outcome, unnamed: f64) {
    let [samples, named] =
        ["samples.javascript", "samples_named.javascript"].map(|key| outcome.trace.number(key));
    let mean = samples as f64 * unnamed / 1000.0;
    let most = (mean + 3.0 * mean.sqrt()) as u64;
    let (version, text) = (node.version, outcome.text());
    assert!(samples - named <= most, "Node.js {version}: {named} of {samples}\n{text}");
}

/// Records a program in which each function has one caller: compiled, and interpreted.
fn callers_are_right(version: u32) {
    needs_recording!();
    let Some(node) = Node::of(version) else {
        skip!("node {version}: not installed");
    };
    let _machine = together();
    let mut all = BTreeSet::new();
    for options in [&[][..], &["--jitless"]] {
        let target = Target::spawn(node.runs("single.js", options));
        let outcome = record_cpu_and_end(target, Duration::from_secs(4), &OPTIONS);
        let (calls, seen) = check_callers(&node, &outcome.trace.folded());
        let Locations { with_line, kinds } = check_lines(&node, &outcome);
        eprintln!("Node.js {version}: {calls} calls, {with_line} lines, {kinds:?}, {seen:?}");
        eprintln!("{}", outcome.text());
        assert!(calls > 5000, "Node.js {version}: {calls}");
        assert!(with_line > 50, "Node.js {version}: {with_line}");
        assert_named(&node, &outcome, UNNAMED);
        let has = |kind: &str| kinds.contains_key(&format!("javascript-{kind}"));
        if options.is_empty() {
            assert!(has("optimized"), "Node.js {version}: {kinds:?}");
            // Node.js 22 leaves this compiler out.
            assert_eq!(has("middle"), version >= 24, "Node.js {version}: {kinds:?}");
        } else {
            let is_compiled = ["baseline", "middle", "optimized"].into_iter().any(has);
            assert!(has("interpreted") && !is_compiled, "Node.js {version}: {kinds:?}");
        }
        all.extend(seen);
    }
    let callers = callers();
    let missing: Vec<_> = callers.keys().filter(|name| !all.contains(**name)).collect();
    assert!(missing.len() <= 3, "Node.js {version}: no samples in {missing:?}");
}

#[test]
fn callers_in_18_are_right() {
    callers_are_right(18);
}

#[test]
fn callers_in_20_are_right() {
    callers_are_right(20);
}

#[test]
fn callers_in_22_are_right() {
    callers_are_right(22);
}

#[test]
fn callers_in_24_are_right() {
    callers_are_right(24);
}

/// Records functions that come and go, whose code takes the places of others.
fn no_function_has_the_name_of_another(version: u32) {
    needs_recording!();
    let Some(node) = Node::of(version) else {
        skip!("node {version}: not installed");
    };
    let _machine = together();
    let target = Target::spawn(node.runs("churn.js", &[]));
    let outcome = record_cpu_and_end(target, Duration::from_secs(5), &OPTIONS);
    let (mut right, mut gone, mut wrong) = (0, 0, Vec::new());
    for (stack, count) in outcome.trace.folded().stacks() {
        let mut expected = None;
        for frame in stack {
            gone += if frame.ends_with("gone]") { count } else { 0 };
            if let Some(digit) = frame.strip_prefix("stub_") {
                expected = digit.chars().last();
            }
            let number = frame.strip_prefix("made_").or_else(|| frame.strip_prefix("leaf_"));
            let Some(number) = number.filter(|_| expected.is_some()) else { continue };
            match number.chars().last() == expected {
                true => right += count,
                false => wrong.push(stack.join(";")),
            }
        }
    }
    let text = outcome.text();
    eprintln!("Node.js {version}: {right} right, {gone} gone\n{text}");
    assert!(wrong.is_empty(), "Node.js {version}: {wrong:#?}");
    assert!(right > 1000, "Node.js {version}: {right}\n{text}");
    assert_eq!(gone > 0, text.contains("without a name"), "each has its reason\n{text}");
}

#[test]
fn no_function_of_18_has_the_name_of_another() {
    no_function_has_the_name_of_another(18);
}

#[test]
fn no_function_of_20_has_the_name_of_another() {
    no_function_has_the_name_of_another(20);
}

#[test]
fn no_function_of_22_has_the_name_of_another() {
    no_function_has_the_name_of_another(22);
}

#[test]
fn no_function_of_24_has_the_name_of_another() {
    no_function_has_the_name_of_another(24);
}
