//! Functions of every shape, and of every tier, compared with the stack as the engine tells it.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

use super::frames::{LiveFrame, NamedPosition};
use super::nodes::{LiveEngine, NodeProgram, node, nodes};
use crate::runtime::v8::JsTier;

/// A frame as the engine tells it.
#[derive(Debug, Clone, Deserialize)]
struct ToldFrame {
    name: String,
    file: String,
    line: u32,
}

/// What the program prints in front of each stop.
#[derive(Debug, Deserialize)]
struct Told {
    expected: String,
    stack: Vec<ToldFrame>,
}

/// Returns the stack pointer of a thread that sleeps in a call.
fn sleeping_sp(pid: i32) -> u64 {
    loop {
        let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
        let fields: Vec<&str> = text.split_whitespace().collect();
        // read(0, ..)
        if fields.len() == 9 && fields[0] == "0" && fields[1] == "0x0" {
            return u64::from_str_radix(&fields[7][2..], 16).unwrap();
        }
        std::thread::yield_now();
    }
}

/// Returns the functions of the main thread from `rest` on, innermost first, with those of the
/// engine itself left out.
fn stack(program: &NodeProgram, engine: &LiveEngine) -> Vec<NamedPosition> {
    let memory = program.memory();
    let sp = sleeping_sp(program.pid());
    let reader = engine.machine.reader(&memory);
    let mut found = Vec::new();
    let is_rest = |frame: &LiveFrame| match engine.names(&reader, frame) {
        Some(Ok(names)) => names.iter().any(|it| it.name == "rest"),
        _ => false,
    };
    let is_right = |chain: &[LiveFrame]| chain.iter().any(is_rest);
    for frame in engine.sleeping_frames(&memory, sp, is_right) {
        if let Some(names) = engine.names(&reader, &frame) {
            found.extend(names.unwrap_or_else(|gone| panic!("{frame:x?}: {gone:?}")));
        }
    }
    found.retain(|it| !it.file.is_empty());
    let first = found.iter().position(|it| it.name == "rest");
    found.split_off(first.unwrap_or_else(|| panic!("{found:?}")))
}

/// Returns whether a name is the one that the engine tells. It tells what the program reads, and
/// has another one itself for a property whose name is computed.
fn is_name(ours: &str, told: &str) -> bool {
    match ours {
        "(anonymous)" | "(top level)" => told.is_empty() || told == "eval",
        "(eval)" => told == "eval",
        "holder" => matches!(told, "computed1" | "[mark]"),
        name => name == told,
    }
}

/// Returns whether a file is the one that the engine tells.
fn is_file(ours: &str, told: &str) -> bool {
    let is_evaluated = ours.starts_with("eval at ") && told.starts_with("eval at ");
    // Ours has no column.
    let told = told
        .trim_end_matches(')')
        .rsplit_once(':')
        .map_or(told, |(place, _)| if is_evaluated { place } else { told });
    ours.trim_end_matches(')') == told.replace("file://", "")
}

#[derive(Debug, Default)]
struct Compared {
    tiers: BTreeSet<String>,
    inlined: usize,
    frames: usize,
    stops: usize,
    differences: Vec<String>,
}

impl Compared {
    fn compare(&mut self, told: &Told, found: &[NamedPosition]) {
        self.stops += 1;
        let theirs: Vec<ToldFrame> =
            told.stack.iter().filter(|it| !it.file.is_empty()).cloned().collect();
        // What is further out may be a part of the stack that was used before.
        if found.len() < theirs.len() {
            self.differences.push(format!("{}: {found:#?} {theirs:#?}", told.expected));
            return;
        }
        for (ours, theirs) in found.iter().zip(&theirs) {
            self.frames += 1;
            self.tiers.insert(format!("{:?}", ours.tier));
            self.inlined += usize::from(ours.is_inlined);
            let is_same = is_name(&ours.name, &theirs.name) && is_file(&ours.file, &theirs.file);
            // The compiler between does not know all lines.
            let is_unknown = ours.tier == JsTier::Mid && ours.line == 0;
            if !is_same || ours.line != theirs.line && !is_unknown {
                self.differences.push(format!("{}: {ours:?} {theirs:?}", told.expected));
            }
        }
    }
}

/// Runs a program with these options of Node.js, and compares each of its stops.
fn check(version: u8, node: &Path, options: &[&str], script: &[&str]) -> Compared {
    let mut program = NodeProgram::run(node, options, script);
    let mut compared = Compared::default();
    let mut engine = None;
    loop {
        let line = program.line();
        if line == "done" {
            break;
        }
        let told: Told = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        let engine = engine.get_or_insert_with(|| program.engine());
        engine.refresh(program.pid());
        let found = stack(&program, engine);
        compared.compare(&told, &found);
        program.go_on();
    }
    eprintln!(
        "{version} {options:?}: {} stops, {} frames, {} inlined, {:?}",
        compared.stops, compared.frames, compared.inlined, compared.tiers
    );
    compared
}

fn check_shapes(options: &[&str], tier: &str) {
    for (version, node) in nodes() {
        let compared = check(version, &node, options, &["v8_shapes.mjs"]);
        assert!(compared.differences.is_empty(), "{version}: {:#?}", compared.differences);
        assert!(compared.stops > 50 && compared.tiers.contains(tier), "{version}");
    }
}

#[test]
fn interpreted_functions_of_every_shape_are_named() {
    check_shapes(&[], "Interpreted");
}

#[test]
fn baseline_functions_of_every_shape_are_named() {
    check_shapes(&["--always-sparkplug"], "Baseline");
}

/// Compares functions that a compiler has inlined into each other.
fn check_inlined(
    version: u8,
    node: &Path,
    (option, arguments): (Option<&str>, &[&str]),
) -> Compared {
    let options: Vec<&str> = ["--allow-natives-syntax"].into_iter().chain(option).collect();
    let script = [&["v8_inlined.js"], arguments].concat();
    let compared = check(version, node, &options, &script);
    assert!(compared.differences.is_empty(), "{version}: {:#?}", compared.differences);
    assert!(compared.inlined >= 12, "{version}: {compared:?}");
    compared
}

#[test]
fn functions_that_are_inlined_into_each_other_are_named() {
    for (version, node) in nodes() {
        // The compiler before the last one would be in the way.
        let option = (version >= 22).then_some("--no-maglev");
        let compared = check_inlined(version, &node, (option, &[]));
        assert!(compared.tiers.contains("Optimized"), "{version}: {compared:?}");
    }
}

/// Only the newest version has that compiler.
#[test]
fn functions_that_maglev_has_inlined_are_named() {
    let Some(node) = node(24) else { return };
    let compared = check_inlined(24, &node, (None, &["maglev"]));
    assert!(compared.tiers.contains("Mid"), "{compared:?}");
}
