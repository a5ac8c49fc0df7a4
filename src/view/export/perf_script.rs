//! Text in the format of `perf script`: every sample with its thread, its time and its stack, the
//! innermost function first.
//!
//! # Invariants
//! - Memory grows with the profile: samples are written while they are read.
//! - The period of an event is the weight of its sample: sampling periods, or microseconds of wall
//!   clock time. A placeholder counts as a frame, so every sample has one.
//! - No name can be misread as another part of its line.

use std::io::{self, Write};

use super::{ExportOptions, shown_path, thread_samples};
use crate::trace::{LazyTrace, Location, LocationId, Sample, Thread};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::step_names::StepNames;
use crate::view::profile::thread_profile::{Profile, mark_of};
use crate::view::recording::mode::Mode;
use crate::view::select::error::ViewError;
use crate::view::select::selection::Selected;
use crate::view::text::escape::escaped;

/// perf's text for frames outside all modules.
const NO_MODULE: &str = "[unknown]";

/// Writes all selected samples. `profile` was loaded from the same selection.
pub(super) fn write(
    trace: &LazyTrace,
    (selected, profile): (&Selected, &Profile),
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    let events = EventWriter { profile, names: StepNames::of_functions(profile) };
    for thread in thread_samples::threads(trace, (selected, profile), options) {
        let head = head(&thread.thread);
        let mut written = Ok(());
        thread_samples::of_thread(trace, selected, thread.id, &mut |sample, stack| {
            if written.is_ok() {
                written = events.write(&head, (sample, stack), out);
            }
        })?;
        written?;
    }
    Ok(())
}

/// Returns the start of the lines of a thread's events: `name pid/tid`.
///
/// Readers use the first number as the id, so the name is one word. They read a line that starts
/// with `#` as a comment.
fn head(thread: &Thread) -> String {
    let name = one_word(&escaped(thread.shown_name()));
    let name = match name.as_str() {
        "" => "[unnamed]".to_owned(),
        _ if name.starts_with('#') => format!("_{name}"),
        _ => name,
    };
    format!("{name:<16} {}/{}", thread.pid, thread.tid)
}

fn one_word(text: &str) -> String {
    text.trim().replace(char::is_whitespace, "_")
}

/// Writes events.
struct EventWriter<'a> {
    profile: &'a Profile,
    names: StepNames,
}

impl EventWriter<'_> {
    fn write(
        &self,
        head: &str,
        (sample, stack): (&Sample, &[LocationId]),
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let event = match self.profile.mode {
            Mode::Cpu => "cpu-periods",
            Mode::Wall => "wall-microseconds",
        };
        let (seconds, ns) = (sample.time_ns / 1_000_000_000, sample.time_ns % 1_000_000_000);
        writeln!(out, "{head} {seconds:>6}.{ns:09}: {:>10} {event}:", sample.weight)?;
        if let Some(wait) = self.profile.waits.find(sample) {
            self.mark(StackStep::Wait(wait), out)?;
        }
        for location in stack.iter().rev() {
            self.frame(*location, out)?;
        }
        if let Some(mark) = mark_of(sample, stack) {
            self.mark(mark, out)?;
        }
        writeln!(out)
    }

    /// Writes a line for a step that is not a function.
    fn mark(&self, step: StackStep<LocationId>, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\t{:16x} {} ({NO_MODULE})", 0, self.name(step))
    }

    /// Writes a line for a function: the address, the name, the offset from the function's start,
    /// and the module.
    fn frame(&self, id: LocationId, out: &mut dyn Write) -> io::Result<()> {
        let step = StackStep::Frame(id);
        let Some(location) = self.profile.locations.get(id.0 as usize) else {
            return self.mark(step, out);
        };
        let name = self.name(step);
        if location.inline_parent.is_some() {
            return writeln!(out, "\t{:16x} {name} (inlined)", self.address(location));
        }
        let method = self.profile.method(location.method);
        let start = method.map_or(0, |method| method.start_svma);
        let offset = location.svma.checked_sub(start).filter(|_| start > 0);
        let offset = offset.map_or_else(String::new, |offset| format!("+{offset:#x}"));
        let module = method.and_then(|it| self.profile.modules.get(it.module?.0 as usize));
        let module =
            module.map_or_else(|| NO_MODULE.into(), |it| one_word(&escaped(shown_path(&it.path))));
        writeln!(out, "\t{:16x} {name}{offset} ({module})", location.svma)
    }

    /// Returns the address of the instruction that an inlined call is part of.
    fn address<'a>(&'a self, mut location: &'a Location) -> u64 {
        // A parent has a smaller id, so this loop terminates.
        while let Some(parent) = location.inline_parent
            && let Some(outer) = self.profile.locations.get(parent.0 as usize)
        {
            location = outer;
        }
        location.svma
    }

    /// Returns the name of a step. Readers skip frames whose names start with a bracket.
    fn name(&self, step: StackStep<LocationId>) -> String {
        let name = self.names.text(step.map(|location| self.names.id(location))).trim();
        match name {
            "" => "[unnamed]".to_owned(),
            _ if name.starts_with('(') => format!("::{name}"),
            _ => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_threads_are_one_word_and_no_comment() {
        for (name, expected) in [
            ("worker", "worker           7/8"),
            ("pool 12 x", "pool_12_x        7/8"),
            ("# 1", "_#_1             7/8"),
            (" ", "[unnamed]        7/8"),
            ("a\nb", "a\\nb             7/8"),
        ] {
            let thread = Thread { pid: 7, tid: 8, name: name.to_owned(), ..Thread::default() };
            assert_eq!(head(&thread), expected);
        }
    }
}
