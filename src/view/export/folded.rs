//! Folded stacks: `root;caller;leaf COUNT`, sorted. Counts are sampling periods, or microseconds of
//! wall clock time.
//!
//! # Invariants
//! - The counts add up to the weight of all samples, except those of omitted threads.
//! - A line has one count and one stack, whatever the names contain.
//! - Stacks of several processes are not merged: the first frame is the process.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::trace::{FrameKind, Location, Thread};
use crate::view::export::ExportOptions;
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::idle::idle_threads;
use crate::view::profile::processes::Processes;
use crate::view::profile::step_names::{NameId, StepNames};
use crate::view::profile::thread_profile::{Profile, ThreadProfile};
use crate::view::text::escape::escaped;

/// Writes all stacks.
pub(super) fn write(
    profile: &Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (stack, weight) in lines(profile, options) {
        writeln!(out, "{stack} {weight}")?;
    }
    Ok(())
}

/// Returns all stacks with their weights.
pub(super) fn lines(profile: &Profile, options: &ExportOptions) -> BTreeMap<String, u64> {
    let names = StepNames::of_functions(profile);
    let mut lines = BTreeMap::new();
    let idle = if options.no_idle { idle_threads(profile) } else { Vec::new() };
    let processes = Processes::of(profile);
    for (thread_index, thread) in profile.threads.iter().enumerate() {
        if idle.get(thread_index).copied().unwrap_or(false) {
            continue;
        }
        let first = first_frames(&processes, &thread.thread, options.threads);
        let kinds = profile.locations.as_slice();
        let kinds = if options.annotate { kinds } else { &[] };
        add(&mut lines, (&names, kinds), thread, first.as_deref());
    }
    lines
}

/// Returns the frames before a stack: the process if there are several, and the thread if threads
/// are separate.
fn first_frames(processes: &Processes, thread: &Thread, with_thread: bool) -> Option<String> {
    let is_shown = with_thread || processes.are_several_shown();
    let process = processes.label(thread.pid).filter(|_| is_shown).map(|label| frame(&label));
    let name = with_thread.then(|| frame(&escaped(thread.shown_name())));
    let frames: Vec<String> = process.into_iter().chain(name).collect();
    (!frames.is_empty()).then(|| frames.join(";"))
}

fn add(
    lines: &mut BTreeMap<String, u64>,
    (names, annotated): (&StepNames, &[Location]),
    thread: &ThreadProfile,
    first: Option<&str>,
) {
    let calls = thread.tree.calls();
    let mut path = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        if call.own.weight == 0 {
            continue;
        }
        path.clear();
        let mut at = index;
        while at != 0 {
            let step = calls[at].step;
            let location = match step {
                StackStep::Frame(id) => annotated.get(id.0 as usize),
                _ => None,
            };
            path.push((step.map(|location| names.id(location)), location.map_or("", mark_of)));
            at = calls[at].caller();
        }
        let line = lines.entry(stack(names, first, &path)).or_default();
        *line = line.saturating_add(call.own.weight);
    }
}

/// Returns the text of a stack that is given leaf first.
///
/// The group comes before the process and the thread, because a group may span several.
fn stack(
    names: &StepNames,
    first: Option<&str>,
    path: &[(StackStep<NameId>, &'static str)],
) -> String {
    let (group, path) = match path.split_last() {
        Some(((group @ StackStep::Group(_), _), path)) => (Some(frame(names.text(*group))), path),
        _ => (None, path),
    };
    let frames = path.iter().rev().map(|(step, mark)| frame(names.text(*step)) + mark);
    let outermost = group.into_iter().chain(first.map(str::to_owned));
    outermost.chain(frames).collect::<Vec<_>>().join(";")
}

/// Returns the mark behind a function for the kind of its code, as flame graph tools know it.
fn mark_of(location: &Location) -> &'static str {
    match location.kind {
        FrameKind::Kernel => "_[k]",
        _ if location.inline_parent.is_some() => "_[i]",
        FrameKind::Native | FrameKind::Interpreter | FrameKind::JavaScript => "",
        FrameKind::Other | FrameKind::Php | FrameKind::Ruby => "",
        FrameKind::Perl | FrameKind::Lua => "",
        FrameKind::Python => "_[p]",
        FrameKind::JavaInterpreted | FrameKind::JavaScriptInterpreted => "_[0]",
        FrameKind::JavaC1 | FrameKind::JavaScriptBaseline => "_[1]",
        FrameKind::JavaC2 | FrameKind::JavaCompiled => "_[j]",
        FrameKind::JavaScriptMiddle | FrameKind::JavaScriptOptimized => "_[j]",
    }
}

/// Returns a name that flame graph tools read as one frame.
///
/// The tools read the last number of a line as the count, and a number before it as the count of
/// another profile, so a name must not end in a number. They read a line that starts with `# ` as a
/// comment.
pub(in crate::view) fn frame(name: &str) -> String {
    let name = name.trim().replace(';', ":");
    if name.is_empty() {
        return "[unnamed]".to_owned();
    }
    let number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let name = match name.rsplit_once(char::is_whitespace) {
        Some((before, last)) if number(last) => format!("{}_{last}", before.trim_end()),
        _ => name,
    };
    match name.strip_prefix("# ") {
        Some(rest) => format!("#_{rest}"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, expected: &str) {
        assert_eq!(frame(name), expected);
    }

    #[test]
    fn ordinary_names_stay() {
        check("std::vec<int, a>::at(unsigned long)", "std::vec<int, a>::at(unsigned long)");
        check("operator new", "operator new");
    }

    #[test]
    fn names_never_look_like_separators_counts_or_comments() {
        check("<[u8; 4] as Clone>::clone", "<[u8: 4] as Clone>::clone");
        check("worker 12", "worker_12");
        check("a 1 2", "a 1_2");
        check("version 1.5", "version_1.5");
        check("# main", "#_main");
        check("  ", "[unnamed]");
        check("", "[unnamed]");
    }
}
