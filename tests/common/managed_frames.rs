//! The frames of one language in the stacks of a recording.

use std::process::Command;
use std::time::Duration;

use traceprof::trace::{FrameKind, LazyTrace, LocationId, Objects, Sample, Window};

use super::{Outcome, Target, record_cpu, scratch_dir};

/// Options of a recording whose samples all have the functions.
pub(crate) const ALL_SAMPLES: [&str; 3] = ["--freq", "1999", "--no-kernel"];

/// Standard deviations of chance that a test permits: one test in a million fails by chance.
const CHANCE: f64 = 5.0;

/// A frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: u32,
    kind: FrameKind,
}

impl Frame {
    /// Returns whether its function could not be read.
    pub(crate) fn is_gone(&self) -> bool {
        self.name.ends_with("gone]")
    }
}

/// What the objects of a trace say of a location.
fn frame(objects: &Objects, id: LocationId) -> Frame {
    let location = &objects.locations[id.0 as usize];
    let method = &objects.methods[location.method.0 as usize];
    let file = location.file.clone().unwrap_or_default();
    Frame { name: method.name.clone(), file, line: location.line, kind: location.kind }
}

/// Calls a function with each sample, and the frames of this kind in its stack, root first.
pub(crate) fn for_each_sample(
    outcome: &Outcome,
    kind: FrameKind,
    mut check: impl FnMut(&Sample, &[Frame]),
) {
    let trace = LazyTrace::open(&outcome.trace.path()).expect("a trace");
    let objects = trace.load_objects().expect("objects");
    let mut pass = |_, sample: &Sample, stack: &[LocationId]| {
        let frames = stack.iter().map(|id| frame(&objects, *id));
        check(sample, &frames.filter(|it| it.kind == kind).collect::<Vec<_>>());
    };
    trace.for_each_sample(&Window::default(), &mut pass).expect("samples");
}

/// Calls a function with the frames of this kind of each stack, root first.
pub(crate) fn for_each_stack(outcome: &Outcome, kind: FrameKind, mut check: impl FnMut(&[Frame])) {
    for_each_sample(outcome, kind, |_, stack| check(stack));
}

/// Records a program that measures the CPU time of its functions `s_half`, `s_third` and `s_text`
/// until the file of its last argument is there, and compares their shares.
pub(crate) fn check_shares(label: &str, mut command: Command) {
    let folder = scratch_dir();
    let end = folder.path().join("end");
    command.arg(&end);
    let mut target = Target::spawn(command);
    let outcome = record_cpu(target.pid(), Duration::from_secs(4), &ALL_SAMPLES);
    std::fs::write(&end, "").expect("a file");
    while target.read_line().is_some() {}
    let folded = outcome.trace.folded();
    let names = ["s_half", "s_third", "s_text"];
    let spent = names.map(|name| target.fact(name) as f64);
    let counts = names.map(|name| folded.count_containing(name) as f64);
    let (all_spent, all) = (spent.iter().sum::<f64>(), counts.iter().sum::<f64>());
    for (name, (spent, count)) in names.iter().zip(spent.iter().zip(counts)) {
        let share = spent / all_spent;
        let (expected, found) = (100.0 * share, 100.0 * count / all);
        // The program's clock is not exact either: a point more.
        let chance = 100.0 * CHANCE * (share * (1.0 - share) / all).sqrt() + 1.0;
        let text = format!("{label}: {name}: {found:.1} %, {expected:.1} % by its clock");
        eprintln!("{text}");
        assert!((found - expected).abs() <= chance, "{text}, {chance:.1}\n{}", outcome.text());
    }
}
