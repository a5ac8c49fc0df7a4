//! `traceprof top`: a recording whose trace is read while it is written.
//!
//! The recorder runs in the first thread, the table in a second one. Disk and memory are bounded:
//! when the trace is large, a new recording starts with a new trace, and the table goes on.

mod cpu_usage;
mod display;
mod interval_reader;
mod observer;
mod saved_minute;
mod suspend;
mod table_control;
mod temporary_trace;
mod terminal;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::{Context, anyhow};

use self::display::{Display, TableOutput};
use self::interval_reader::IntervalReader;
use self::observer::TableObserver;
use self::temporary_trace::TemporaryTrace;
use self::terminal::await_foreground;
use super::arguments::TopArguments;
use super::exit::{CommandFailure, ExitCode};
use super::notes::note;
use super::option_values::default_hz;
use super::output::unwritable;
use crate::proc;
use crate::record::{
    Children, Files, Options, OutputPattern, RecordError, Summary, Target, is_end_requested,
    record, take_signals,
};
use crate::trace::{Compression, Durability, WriterOptions};
use crate::view::Mode;
use crate::view::live::{DisplayState, LiveStatus, RowKind};
use crate::view::text::escape::shell_quoted;

/// The note for a process that ended between two recordings.
const GONE: &str = "the target exited";

/// Shows the table until the user quits or the processes end.
pub(super) fn run(arguments: &TopArguments) -> Result<ExitCode, CommandFailure> {
    if arguments.idle && !arguments.mode.wall {
        let error = anyhow!("--idle needs wall-clock time: give --mode wall, or leave it out");
        return Err(CommandFailure::new(ExitCode::Usage, error));
    }
    let system = |error: io::Error| CommandFailure::new(ExitCode::Failure, error);
    // First, so that no signal leaves anything behind.
    take_signals().map_err(system)?;
    let pids = arguments.processes.find()?;
    let limit = arguments.output.is_none().then_some(arguments.max_size.0);
    let display = display(arguments, &pids);
    let is_on_terminal = display.is_on_terminal();
    let mut watcher = TableObserver::new(display, limit, arguments.quiet).map_err(system)?;
    let begun: Vec<Option<u64>> = pids.iter().map(|pid| proc::start_time(*pid).ok()).collect();
    let mut last: Option<Summary> = None;
    loop {
        watcher.make_way().map_err(system)?;
        if is_on_terminal {
            await_foreground().map_err(unwritable)?;
        }
        let (path, temporary) = output(arguments)?;
        // An id may belong to another process by now.
        let is_same = |(pid, begun): &(&i32, &Option<u64>)| {
            last.is_none() || begun.is_some() && proc::start_time(**pid).ok() == **begun
        };
        let there: Vec<i32> =
            pids.iter().zip(&begun).filter(is_same).map(|(pid, _)| *pid).collect();
        let options = options(arguments, &there, path);
        watcher.begin(|display| {
            let shown = (display.board(), arguments.native_frames);
            display.follow(IntervalReader::new(&options.output, temporary, shown));
        });
        let recorded = (!there.is_empty()).then(|| record(&options, &mut watcher));
        let has_ended = is_end_requested() || !matches!(recorded, Some(Ok(_)));
        let is_renewed = watcher.is_renewed() && !has_ended;
        let notices = if is_renewed { Vec::new() } else { watcher.take_notices() };
        let Some(display) = watcher.finish() else {
            return Err(CommandFailure::new(
                ExitCode::Failure,
                anyhow!("the thread of the table panicked: please report it"),
            ));
        };
        if !is_renewed {
            display.leave();
        }
        notices.iter().for_each(|text| note(text));
        if let Some(failure) = display.take_failure() {
            return Err(failure);
        }
        let summary = match (recorded, last.take()) {
            (Some(Ok(recorded)), _) => recorded.summary,
            // The process ended between two recordings.
            (None | Some(Err(RecordError::TargetGone(_))), Some(before)) => {
                display.forget();
                Summary { text: vec![("ended".to_owned(), GONE.to_owned())], ..before }
            }
            (Some(Err(error)), _) => return Err(CommandFailure::of_recording(error)),
            (None, None) => return Err(CommandFailure::new(ExitCode::TargetGone, anyhow!(GONE))),
        };
        display.settle(is_renewed)?;
        if display.is_over() || !is_renewed {
            return conclude(arguments, &summary);
        }
        last = Some(summary);
        if !arguments.quiet && !is_on_terminal {
            note("a new temporary trace starts: some tenths of a second are not sampled");
        }
    }
}

/// Prints the last notes and returns the outcome.
fn conclude(arguments: &TopArguments, summary: &Summary) -> Result<ExitCode, CommandFailure> {
    if !arguments.quiet {
        let ended = summary.text.iter().filter(|(label, _)| label == "ended");
        ended.for_each(|(_, why)| note(why));
        if let Some(path) = &arguments.output {
            let path = shell_quoted(&path.display().to_string());
            note(&format!("the trace is kept: traceprof print {path}"));
        }
    }
    if let Some(text) = &summary.cut_short {
        return Err(CommandFailure::new(ExitCode::Output, anyhow!(text.clone())));
    }
    if !summary.left.is_empty() {
        let error = anyhow!(
            "left in the target, which runs on unharmed: {}; `traceprof detach --pid {}` removes \
             it as soon as it can",
            summary.left.join("; "),
            summary.pid
        );
        return Err(CommandFailure::new(ExitCode::LeftBehind, error));
    }
    Ok(ExitCode::Ok)
}

/// The path of the trace, and the temporary directory to remove.
fn output(arguments: &TopArguments) -> Result<(PathBuf, Option<TemporaryTrace>), CommandFailure> {
    if let Some(path) = &arguments.output {
        return Ok((path.clone(), None));
    }
    let temporary = TemporaryTrace::new().with_context(|| {
        let directory = std::env::temp_dir();
        format!("making a directory in {}: set TMPDIR to another one", directory.display())
    });
    let temporary = temporary.map_err(|error| CommandFailure::new(ExitCode::Output, error))?;
    Ok((temporary.trace().to_owned(), Some(temporary)))
}

fn display(arguments: &TopArguments, pids: &[i32]) -> Display {
    let is_terminal = arguments.iterations.is_none()
        && io::stdin().is_terminal()
        && io::stdout().is_terminal()
        && std::env::var_os("TERM").is_some_and(|name| name != "dumb");
    let place = match is_terminal {
        true => {
            let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            TableOutput::Terminal { taken: None, has_colors }
        }
        false => TableOutput::Plain { left: arguments.iterations },
    };
    let has_several = pids.len() > 1;
    let usual = if has_several { RowKind::Process } else { RowKind::Function };
    let state = DisplayState {
        kind: arguments.by.unwrap_or(usual),
        has_several,
        order: arguments.sort,
        since_start: arguments.cumulative,
        mode: if arguments.mode.cpu { Mode::Cpu } else { Mode::Wall },
        idle: arguments.idle,
        has_both_modes: arguments.mode.cpu && arguments.mode.wall,
        ..DisplayState::default()
    };
    let pid = pids.first().copied().unwrap_or_default();
    let words = proc::command_line(pid).unwrap_or_default();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let rate = rate(arguments);
    let engine = format!("engine at {rate} Hz");
    let (command, others) = (words.join(" "), pids.len().saturating_sub(1));
    let head = LiveStatus { pid, others, command, engine, ..LiveStatus::default() };
    Display::new(pids.to_vec(), (state, head), place, (arguments.interval.0, arguments.top))
}

fn rate(arguments: &TopArguments) -> u32 {
    let measure = arguments.mode.measure(arguments.wall_interval);
    arguments.rate.map_or(default_hz(measure), |rate| rate.0)
}

fn options(arguments: &TopArguments, pids: &[i32], output: PathBuf) -> Options {
    let is_kept = arguments.output.is_some();
    let writer = match is_kept {
        true => WriterOptions { force: arguments.force, ..WriterOptions::default() },
        // The trace is not kept: as little work as possible.
        false => WriterOptions {
            compress: Compression::Zstd(1),
            durability: Durability::None,
            trace_ids: false,
            ..WriterOptions::default()
        },
    };
    Options {
        target: match pids {
            &[pid] => Target::Pid(pid),
            _ => Target::Pids(pids.to_vec()),
        },
        children: Children::None,
        pattern: OutputPattern::literal(&output),
        output,
        files: Files::One,
        triggers: Vec::new(),
        writer,
        duration: None,
        freq_hz: rate(arguments),
        max_overhead_percent: None,
        measure: arguments.mode.measure(arguments.wall_interval),
        engine: arguments.engine.0,
        allow_seccomp: arguments.allow_seccomp,
        kernel: !arguments.no_kernel,
        kernel_stacks: arguments.kernel_stacks.0,
        debuginfod: false,
        follow_exec: false,
        preserve: 0,
        verify_detach: false,
    }
}
