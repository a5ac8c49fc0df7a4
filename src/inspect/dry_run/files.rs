//! The files that a recording would write, with the names that they would have now.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::inspect::dry_run::{PlannedStep, step};
use crate::record::contract::options::{Files, Options, Target};
use crate::record::contract::pattern::Occasion;
use crate::record::contract::trigger::Trigger;
use crate::record::write::output;
use crate::trace::{RotateAfter, WriteMode, index_path};

/// Returns the steps for the files: what is written, where and when, and what is kept.
///
/// The options have their final names; `found` is the first process with a given name.
pub(super) fn steps(options: &Options, found: Option<i32>) -> Vec<PlannedStep> {
    let mut steps = match options.files {
        Files::One => vec![step("files", pair(options))],
        Files::Limited(bytes) => {
            let limit = size(bytes);
            vec![
                step("files", pair(options)),
                step("limit", format!("the recording ends when both together reach {limit}")),
            ]
        }
        Files::Parts { turn, keep } => parts(options, turn, keep),
        Files::Ring { time, at_end } => ring(options, found, (time, at_end)),
    };
    if output::is_named_late(options) && matches!(options.target, Target::Command(_)) {
        steps.push(step("name", "%p is the program's process id"));
    }
    steps.extend(output::notice(options).map(|text| step("notice", text)));
    steps
}

fn pair(options: &Options) -> String {
    let data = absolute(&options.output);
    let when = match options.writer.mode {
        WriteMode::Streaming => "while it is recorded",
        WriteMode::Collect => "at the end",
    };
    let replaced = if options.output.exists() { ", in place of what is there" } else { "" };
    format!("{} and {}, written {when}{replaced}", data.display(), index_path(&data).display())
}

fn parts(options: &Options, turn: RotateAfter, keep: Option<u32>) -> Vec<PlannedStep> {
    let [first, second] = [1, 2].map(|number| absolute(&options.part(number)));
    let (first, second) = (first.display(), second.display());
    let turn = match turn {
        RotateAfter::Bytes(bytes) => format!("the next one starts at {}", size(bytes)),
        RotateAfter::Age(age) => format!("the next one starts after {}", seconds(age)),
    };
    let kept = match keep {
        Some(1) => "the last one is kept".to_owned(),
        Some(count) => format!("the last {count} are kept"),
        None => "all are kept".to_owned(),
    };
    vec![
        step("files", format!("{first}, {second} and so on, each with its index, .idx")),
        step("parts", format!("{turn}; {kept}")),
    ]
}

fn ring(
    options: &Options,
    found: Option<i32>,
    (time, at_end): (Duration, bool),
) -> Vec<PlannedStep> {
    let pid = match &options.target {
        Target::Pid(pid) => Some(*pid),
        Target::Pids(pids) => pids.first().copied(),
        Target::Name(_) | Target::Command(_) => found,
    };
    let save = absolute(&options.pattern.clone().with_number().path(Occasion::now(pid)));
    let save = save.display();
    let directory = absolute(&options.ring_directory());
    let directory = directory.display();
    let mut asked = vec!["SIGUSR2".to_owned()];
    asked.extend(options.triggers.iter().map(Trigger::to_string));
    let asked = asked.join(", ");
    let last = match at_end {
        true => format!("at the end to {}", absolute(&options.output).display()),
        false => "not at the end".to_owned(),
    };
    vec![
        step("ring", format!("the last {}, in parts in {directory}", seconds(time))),
        step("files", format!("saved by {asked} to {save} and the next free ones, {last}")),
    ]
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn size(bytes: u64) -> String {
    match bytes {
        0x10_0000.. => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} KiB", bytes as f64 / 1024.0),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}
