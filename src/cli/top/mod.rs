//! `traceprof top`: a recording whose trace is read while it is written.
//!
//! The recorder has the first thread, the table one beside it. Disk and memory are bounded: when the
//! trace has grown large, another recording begins with a new one, and the table goes on.

mod display;
mod pulse;
mod reader;
mod scratch;
mod terminal;
mod watcher;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::{Context, anyhow};

use self::display::{Display, Place};
use self::reader::Reader;
use self::scratch::Scratch;
use self::watcher::Watcher;
use super::arguments::TopArguments;
use super::exit::{ExitCode, Failure};
use super::record::{default_hz, failure, measure};
use super::source::note;
use crate::proc;
use crate::record::{Files, Options, OutputPattern, Summary, Target, record};
use crate::trace::{Compression, Durability, WriterOptions};
use crate::view::Mode;
use crate::view::escape::shell_quoted;
use crate::view::live::{Head, Look};

/// Shows the table until it is not wanted any more, or the process ends.
pub(super) fn run(arguments: &TopArguments) -> Result<ExitCode, Failure> {
    let limit = arguments.output.is_none().then_some(arguments.max_size.0);
    let display = display(arguments);
    let watcher = Watcher::new(display, limit, arguments.quiet);
    let mut watcher = watcher.map_err(|error| Failure::new(ExitCode::Failure, error))?;
    loop {
        let (path, scratch) = output(arguments)?;
        let options = options(arguments, path);
        watcher.begin(|display| {
            display.follow(Reader::new(&options.output, scratch, display.board()));
        });
        let recorded = record(&options, &mut watcher);
        let is_renewed = watcher.is_renewed() && recorded.is_ok();
        let notices = watcher.take_notices();
        let Some(display) = watcher.finish() else {
            return Err(Failure::new(ExitCode::Failure, anyhow!("the table's thread has failed")));
        };
        notices.iter().for_each(|text| note(text));
        if let Some(failure) = display.take_failure() {
            return Err(failure);
        }
        let summary = recorded.map_err(failure)?;
        display.settle(is_renewed)?;
        if display.is_over() || !is_renewed {
            return conclude(arguments, &summary);
        }
        if !arguments.quiet && !display.is_on_terminal() {
            note("a new temporary trace begins: some tenths of a second are not sampled");
        }
    }
}

/// What is said at the end, and what it comes to.
fn conclude(arguments: &TopArguments, summary: &Summary) -> Result<ExitCode, Failure> {
    if !arguments.quiet {
        let ended = summary.text.iter().filter(|(label, _)| label == "ended");
        ended.for_each(|(_, why)| note(why));
        if let Some(path) = &arguments.output {
            let path = shell_quoted(&path.display().to_string());
            note(&format!("the trace is kept: traceprof print {path}"));
        }
    }
    if let Some(text) = &summary.cut_short {
        return Err(Failure::new(ExitCode::Output, anyhow!(text.clone())));
    }
    if !summary.left.is_empty() {
        let error = anyhow!(
            "left in the target, which goes on unharmed: {}; `traceprof detach --pid {}` takes it \
             away",
            summary.left.join("; "),
            summary.pid
        );
        return Err(Failure::new(ExitCode::LeftBehind, error));
    }
    Ok(ExitCode::Ok)
}

/// Where the trace goes, and what is to be removed of it.
fn output(arguments: &TopArguments) -> Result<(PathBuf, Option<Scratch>), Failure> {
    if let Some(path) = &arguments.output {
        return Ok((path.clone(), None));
    }
    let scratch = Scratch::new().with_context(|| {
        let directory = std::env::temp_dir();
        format!("making a directory in {} (TMPDIR names another one)", directory.display())
    });
    let scratch = scratch.map_err(|error| Failure::new(ExitCode::Output, error))?;
    Ok((scratch.trace().to_owned(), Some(scratch)))
}

fn display(arguments: &TopArguments) -> Display {
    let is_terminal = arguments.iterations.is_none()
        && io::stdin().is_terminal()
        && io::stdout().is_terminal()
        && std::env::var_os("TERM").is_some_and(|name| name != "dumb");
    let place = match is_terminal {
        true => {
            let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            Place::Terminal { taken: None, has_colors }
        }
        false => Place::Plain { left: arguments.iterations },
    };
    let look = Look {
        kind: arguments.by,
        order: arguments.sort,
        since_start: arguments.cumulative,
        mode: if arguments.mode.cpu { Mode::Cpu } else { Mode::Wall },
        has_both_modes: arguments.mode.cpu && arguments.mode.wall,
        ..Look::default()
    };
    let pid = arguments.pid();
    let words = proc::command_line(pid).unwrap_or_default();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let rate = rate(arguments);
    let engine = format!("engine at {rate} Hz");
    let head = Head { pid, command: words.join(" "), engine, ..Head::default() };
    Display::new(look, head, place, (arguments.interval.0, arguments.top))
}

fn rate(arguments: &TopArguments) -> u32 {
    let measure = measure(arguments.mode, arguments.wall_interval.0);
    arguments.rate.map_or(default_hz(measure), |rate| rate.0)
}

fn options(arguments: &TopArguments, output: PathBuf) -> Options {
    let is_kept = arguments.output.is_some();
    let writer = match is_kept {
        true => WriterOptions { force: arguments.force, ..WriterOptions::default() },
        // Nobody keeps it: as little work as possible.
        false => WriterOptions {
            compress: Compression::Zstd(1),
            durability: Durability::None,
            trace_ids: false,
            ..WriterOptions::default()
        },
    };
    Options {
        target: Target::Pid(arguments.pid()),
        subprocesses: false,
        pattern: OutputPattern::literal(&output),
        output,
        files: Files::One,
        triggers: Vec::new(),
        writer,
        duration: None,
        freq_hz: rate(arguments),
        max_overhead_percent: None,
        measure: measure(arguments.mode, arguments.wall_interval.0),
        engine: arguments.engine.0,
        allow_seccomp: arguments.allow_seccomp,
        kernel: !arguments.no_kernel,
        debuginfod: false,
        jvm_names: arguments.jvm_names,
        follow_exec: false,
        preserve: 0,
        verify_detach: false,
        stats: false,
    }
}
