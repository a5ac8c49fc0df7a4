//! `traceprof stacks` as text: a paragraph for each thread, innermost function first.

use std::io::{self, Write};

use traceprof_abi::unwind::EndReason;

use crate::inspect::stacks::{NamedFrame, ProcessStacks, SleepingCall, ThreadStack, ThreadWork};
use crate::view::text::escape::{escaped, shell_quoted};
use crate::view::timeline::duration;
use crate::view::{RootId, SpanId, context_text};

/// Writes all threads. `verbose` adds where in the code each function is, and how long each thread
/// was stopped.
pub(super) fn write(found: &ProcessStacks, verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    let words = found.command_line.iter().map(|word| shell_quoted(&word.to_string_lossy()));
    let command = words.collect::<Vec<_>>().join(" ");
    let threads = match found.threads.len() {
        1 => "1 thread".to_owned(),
        count => format!("{count} threads"),
    };
    writeln!(out, "process {}: {}\n{threads}", found.pid, escaped(&command))?;
    for thread in &found.threads {
        writeln!(out)?;
        write_thread(thread, verbose, out)?;
    }
    if let (true, Some(ns)) = (verbose, found.longest_stop_ns()) {
        writeln!(out, "\nlongest stop of a thread: {}", duration(ns))?;
    }
    match found.withheld {
        0 => Ok(()),
        count => {
            let samples =
                if count == 1 { "1 sample".to_owned() } else { format!("{count} samples") };
            writeln!(
                out,
                "\nthe running recording has lost {samples}: their signals would have ended the \
                 system calls that threads were stopped in"
            )
        }
    }
}

fn write_thread(thread: &ThreadStack, verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    let seen = &thread.seen;
    let name = thread.runtime_name.as_ref().unwrap_or(&seen.name);
    let mut head = format!("thread {} \"{name}\": {}", thread.tid, state(seen.state));
    if let Some(call) = &thread.call {
        head.push_str(&format!(" in {}", call_text(call)));
    }
    if let Some(function) = &thread.wait_channel {
        head.push_str(&format!(", in the kernel's {function}"));
    }
    if let Some(lock) = thread.lock {
        head.push_str(&format!(", holds {lock}"));
    }
    if let Some(method) = &thread.compiles {
        head.push_str(&format!(", compiles {method}"));
    }
    if let (true, Some(ns)) = (verbose, thread.stopped_ns) {
        head.push_str(&format!(", stopped for {}", duration(ns)));
    }
    writeln!(out, "{}", escaped(&head))?;
    if let Some(work) = &thread.work {
        writeln!(out, "       in {}", escaped(&work_text(work)))?;
    }
    match &seen.kernel {
        Some(Ok(functions)) => {
            for function in functions {
                writeln!(out, "       [kernel] {}", escaped(function))?;
            }
        }
        Some(Err(why)) => writeln!(out, "       {}", escaped(why))?,
        None => {}
    }
    if let Some(why) = &thread.missed {
        writeln!(out, "       no stack: {}", escaped(why))?;
    }
    for (number, frame) in thread.frames.iter().enumerate() {
        let text = if verbose { frame_verbose(frame) } else { frame_text(frame) };
        let late = if frame.late { " [read later]" } else { "" };
        writeln!(out, "{:>5}  {}{late}", format!("#{number}"), escaped(&text))?;
    }
    match thread.end {
        Some(EndReason::Root) | None => Ok(()),
        Some(end) => {
            writeln!(out, "       the rest of the stack cannot be unwound: {}", end.name())
        }
    }
}

fn work_text(work: &ThreadWork) -> String {
    let span = (work.span != 0).then_some(SpanId(work.span));
    let root = (work.root_span != 0).then_some(RootId(work.root_span));
    context_text(span, root, work.tags.iter().map(|(name, value)| (name, value)))
}

fn state(letter: char) -> String {
    let word = match letter {
        'R' => "running",
        'S' => "asleep",
        'D' => "waiting without end",
        'T' => "stopped",
        't' => "traced",
        'Z' | 'X' => "ended",
        'I' => "idle",
        _ => "unknown",
    };
    format!("{letter} ({word})")
}

fn call_text(call: &SleepingCall) -> String {
    let name = call.name.map_or_else(|| format!("system call {}", call.number), str::to_owned);
    format!("{name}({})", call.described.join(", "))
}

fn frame_text(frame: &NamedFrame) -> String {
    let place = match (&frame.module, &frame.source) {
        (Some((path, _)), _) => format!(" ({})", file_name(path)),
        // A managed frame: its file takes the place of a module.
        (None, Some((file, 0))) => format!(" ({})", file_name(file)),
        (None, Some((file, line))) => format!(" ({}:{line})", file_name(file)),
        (None, None) => String::new(),
    };
    format!("{}{place}{}", frame.function, inlined(frame))
}

fn frame_verbose(frame: &NamedFrame) -> String {
    let place = match &frame.module {
        Some((path, svma)) => format!(" ({}+{svma:#x})", file_name(path)),
        None => String::new(),
    };
    let source = match &frame.source {
        Some((file, 0)) => format!(" at {file}"),
        Some((file, line)) => format!(" at {file}:{line}"),
        None => String::new(),
    };
    let address = match frame.avma {
        Some(avma) => format!("{avma:#018x}"),
        None => format!("{:18}", format!("[{}]", frame.kind.language().name())),
    };
    format!("{address} {}{place}{source}{}", frame.function, inlined(frame))
}

fn inlined(frame: &NamedFrame) -> &'static str {
    if frame.inlined { " (inlined)" } else { "" }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_a_recording_has_lost_are_reported() {
        let said = |withheld| {
            let (command_line, threads, notices) = Default::default();
            let found = ProcessStacks { pid: 1, command_line, threads, withheld, notices };
            let mut out = Vec::new();
            write(&found, false, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(!said(0).contains("lost"), "{}", said(0));
        assert!(said(1).contains("has lost 1 sample:"), "{}", said(1));
        assert!(said(2).contains("has lost 2 samples:"), "{}", said(2));
    }
}
