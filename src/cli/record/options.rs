//! Turns the arguments of `record` into options of the recorder.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use crate::cli::arguments::RecordArguments;
use crate::cli::exit::{CommandFailure, ExitCode};
use crate::cli::option_values::default_hz;
use crate::record::{Children, Files, Options, OutputPattern, Target};
use crate::trace::{WriteMode, WriterOptions};

/// The recorder's options, or why the arguments contradict each other. It inspects no process.
pub(in crate::cli) fn options(mut arguments: RecordArguments) -> Result<Options, CommandFailure> {
    let files = arguments.long_runs.files(arguments.collect)?;
    let slept = arguments.target.take_sleep();
    if slept.is_some() && arguments.duration.is_some() {
        let text = "--duration and `-- sleep` are the same: leave one of them out";
        return Err(CommandFailure::new(ExitCode::Usage, anyhow!(text)));
    }
    let target = std::mem::take(&mut arguments.target).target();
    let target = target.map_err(|text| CommandFailure::new(ExitCode::Usage, anyhow!(text)))?;
    let pattern = arguments.output.unwrap_or_else(|| default_pattern(&target, files));
    // Other ids are not known yet.
    let pid = match &target {
        Target::Pid(pid) => Some(*pid),
        Target::Pids(pids) => pids.first().copied(),
        Target::Name(_) | Target::Command(_) => None,
    };
    let children = match &target {
        _ if arguments.subprocesses => Children::All,
        Target::Command(_) if !arguments.no_children => Children::OfCommand,
        _ => Children::None,
    };
    let aliased = arguments.aliases.mode();
    let (mode, interval) = aliased.unwrap_or((arguments.mode, None));
    let measure = mode.measure(interval.unwrap_or(arguments.wall_interval));
    let hz = arguments.rate.map(|rate| rate.0).or(arguments.aliases.interval.map(|it| it.0));
    let writer = WriterOptions {
        force: arguments.force,
        compress: arguments.compress.0,
        mode: if arguments.collect { WriteMode::Collect } else { WriteMode::Streaming },
        durability: arguments.durability.0,
        ..WriterOptions::default()
    };
    let options = Options {
        target,
        output: PathBuf::new(),
        pattern,
        files,
        triggers: arguments.long_runs.trigger,
        writer,
        duration: arguments.duration.or(slept).map(|time| time.0),
        freq_hz: hz.unwrap_or_else(|| default_hz(measure)),
        max_overhead_percent: arguments.max_overhead.map(|it| it.0),
        measure,
        engine: arguments.engine.0,
        allow_seccomp: arguments.allow_seccomp,
        children,
        follow_exec: arguments.follow_exec,
        kernel: !arguments.no_kernel,
        kernel_stacks: arguments.kernel_stacks.0,
        debuginfod: arguments.debuginfod,
        preserve: arguments.preserve.map_or(0, usize::from),
        verify_detach: arguments.verify_detach,
    };
    // The id of a started program is not known yet.
    Ok(options.named(pid))
}

/// The default name of the trace.
fn default_pattern(target: &Target, files: Files) -> OutputPattern {
    let name = match target {
        Target::Pid(pid) => pid.to_string(),
        Target::Pids(pids) => pids.first().map_or_else(String::new, i32::to_string),
        Target::Name(named) => named.pattern.clone(),
        Target::Command(words) => {
            let program = words.first().map(Path::new).and_then(Path::file_name);
            program.unwrap_or(OsStr::new("command")).to_string_lossy().into_owned()
        }
    };
    let safe = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '+' | '-' => character,
        _ => '_',
    };
    let name: String = name.chars().map(safe).take(100).collect();
    match files {
        Files::One | Files::Limited(_) | Files::Ring { .. } => {
            OutputPattern::literal(Path::new(&format!("traceprof-{name}.trace"))).with_number()
        }
        // The number counts parts.
        Files::Parts { .. } => {
            OutputPattern::literal(Path::new(&format!("traceprof-{name}-"))).with_time(".trace")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{NamedProcesses, Occasion};

    #[test]
    fn default_names_are_numbered_and_fit_for_a_file() {
        let name = |target| default_pattern(&target, Files::One).numbered(Occasion::now(None), "3");
        let command = |word: &str| Target::Command(vec![word.into(), "x".into()]);
        assert_eq!(name(Target::Pid(7)), Path::new("traceprof-7-3.trace"));
        assert_eq!(name(Target::Pids(vec![7, 8])), Path::new("traceprof-7-3.trace"));
        let named = Target::Name(NamedProcesses { pattern: "^redis".to_owned(), wait: None });
        assert_eq!(name(named), Path::new("traceprof-_redis-3.trace"));
        assert_eq!(name(command("/usr/bin/python3")), Path::new("traceprof-python3-3.trace"));
        assert_eq!(name(command("./a b%p\n")), Path::new("traceprof-a_b_p_-3.trace"));
        assert_eq!(name(command("..")), Path::new("traceprof-command-3.trace"));
    }
}
