//! Deep recursions in Python.

use std::time::Duration;

use super::recorded::python_stacks;
use crate::common::{Python, Target, needs_recording, record_cpu_and_end, skip, together};

/// The depths of the recursions: below and above the number of frames for which a sample has room.
const DEPTHS: [u64; 3] = [500, 700, 1500];
/// Number of Python frames of a sample that are always kept.
const KEPT: u64 = 500;

#[test]
fn deep_recursions_keep_their_innermost_functions() {
    needs_recording!();
    let Some(python) = Python::of_system() else {
        skip!("python3: the distribution's interpreter is not installed");
    };
    let _machine = together();
    for depth in DEPTHS {
        let mut command = python.script("deep.py");
        command.arg(depth.to_string());
        let target = Target::spawn(command);
        let outcome = record_cpu_and_end(target, Duration::from_secs(1), &["--freq", "199"]);
        let stacks = python_stacks(&outcome.trace.path());
        let (mut whole, mut all) = (0, 0);
        for (stack, count) in stacks.stacks() {
            let down = stack.iter().filter(|name| *name == "down").count() as u64;
            let is_right = down >= KEPT.min(depth) && stack.iter().any(|name| name == "bottom");
            whole += if is_right { count } else { 0 };
            all += count;
        }
        // The first samples may be of the start of the program.
        assert!(all > 50 && whole * 10 > all * 9, "{depth}: {whole} of {all}\n{}", outcome.text());
        assert_eq!(outcome.trace.number("samples_without_stack"), 0, "{}", outcome.text());
        let text = outcome.text();
        assert!(!text.contains("kept without a stack"), "{depth}: {text}");
    }
}
