//! `traceprof record`: arguments to options, the recording, the closing report, the outcome.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::anyhow;

use super::arguments::RecordArguments;
use super::exit::{ExitCode, Failure};
use super::output::{Destination, unwritable};
use super::pidfile::{PidFile, check_name};
use super::ready::{Ready, Telling};
use super::values::{Mode, Percent};
use super::{closing, progress};
use crate::record::{
    Files, Measure, Options, OutputPattern, RecordError, Summary, Target, dry_run, record,
};
use crate::trace::{WriteMode, WriterOptions};
use crate::view::escape::{escaped, shell_quoted};

/// Records and reports.
pub(super) fn run(arguments: RecordArguments) -> Result<(), Failure> {
    let is_json = arguments.json;
    let mut summary = None;
    let ended = run_into(arguments, &mut summary);
    if is_json {
        let told = closing::write(summary.as_ref(), ended.as_ref().err());
        return ended.and(told);
    }
    ended
}

fn run_into(arguments: RecordArguments, recorded: &mut Option<Summary>) -> Result<(), Failure> {
    // First: nothing else is open yet.
    let ready = arguments.ready_fd.map(Ready::take).transpose()?;
    let (quiet, fail_under) = (arguments.quiet, arguments.fail_under);
    let (is_dry, pidfile) = (arguments.dry_run, arguments.pidfile.clone());
    let options = options(arguments)?;
    pidfile.as_deref().map(|path| check_name(path, &options.output)).transpose()?;
    if is_dry {
        pidfile.as_deref().map(PidFile::check).transpose()?;
        let steps = dry_run(&options).map_err(failure)?;
        let write = |out: &mut dyn Write| list(&steps, 0, out).map_err(unwritable);
        return Destination::Standard.write(write);
    }
    let pidfile = pidfile.as_deref().map(PidFile::write).transpose()?;
    let mut observer = Telling { inner: progress::observer(quiet), ready };
    let told = record(&options, &mut observer);
    // Takes the live line away before anything else is printed.
    drop((observer, pidfile));
    let summary = told.map_err(failure)?;
    if !quiet {
        // Nobody to tell when the standard error is closed; the trace is written all the same.
        let _ = trailer(&summary, &mut io::stderr().lock());
    }
    outcome(recorded.insert(summary), fail_under)
}

/// What they come to, or why they contradict each other; no process is looked at.
pub(super) fn options(mut arguments: RecordArguments) -> Result<Options, Failure> {
    let files = arguments.keeping.files(arguments.collect)?;
    let subprocesses = arguments.target.subprocesses;
    let slept = arguments.target.take_sleep();
    if slept.is_some() && arguments.duration.is_some() {
        let text = "--duration and `-- sleep` say the same thing: leave one of them out";
        return Err(Failure::new(ExitCode::Usage, anyhow!(text)));
    }
    let target = std::mem::take(&mut arguments.target).target();
    let target = target.map_err(|text| Failure::new(ExitCode::Usage, anyhow!(text)))?;
    let pattern = arguments.output.unwrap_or_else(|| default_pattern(&target, files));
    // Others are put in when they are known.
    let pid = match &target {
        Target::Pid(pid) => Some(*pid),
        Target::Pids(pids) => pids.first().copied(),
        Target::Name(_) | Target::Command(_) => None,
    };
    let said = arguments.aliases.mode();
    let (mode, interval) = said.unwrap_or((arguments.mode, None));
    let measure = measure(mode, interval.unwrap_or(arguments.wall_interval).0);
    let hz = arguments.rate.map(|rate| rate.0).or(arguments.interval.map(|it| it.0));
    let defaults = WriterOptions::default();
    let block_bytes = arguments.block_size.0;
    let writer = WriterOptions {
        force: arguments.force,
        compress: arguments.compress.0,
        mode: if arguments.collect { WriteMode::Collect } else { WriteMode::Streaming },
        durability: arguments.durability.0,
        // A frame holds a block at least.
        frame_bytes: defaults.frame_bytes.max(block_bytes),
        block_bytes,
        trace_ids: !arguments.no_trace_ids,
        call_traces: arguments.call_traces,
        ..defaults
    };
    let options = Options {
        target,
        output: PathBuf::new(),
        pattern,
        files,
        triggers: arguments.keeping.trigger,
        writer,
        duration: arguments.duration.or(slept).map(|time| time.0),
        freq_hz: hz.unwrap_or_else(|| default_hz(measure)),
        max_overhead_percent: arguments.max_overhead.map(|it| it.0),
        measure,
        engine: arguments.engine.0,
        allow_seccomp: arguments.allow_seccomp,
        subprocesses,
        follow_exec: arguments.follow_exec,
        kernel: !arguments.no_kernel,
        jvm_names: arguments.jvm_names,
        debuginfod: arguments.debuginfod,
        preserve: arguments.preserve.map_or(0, usize::from),
        verify_detach: arguments.verify_detach,
        stats: arguments.stats,
    };
    // That of a program that is started is put in when it is known.
    Ok(options.named(pid))
}

pub(super) fn measure(mode: Mode, interval: Duration) -> Measure {
    match (mode.cpu, mode.wall) {
        (_, false) => Measure::Cpu,
        (false, true) => Measure::Wall(interval),
        (true, true) => Measure::Both(interval),
    }
}

/// The rate of CPU samples that nobody gave.
pub(super) fn default_hz(measure: Measure) -> u32 {
    const HZ: u32 = 199;
    match measure {
        Measure::Wall(interval) => (1.0 / interval.as_secs_f64()).round().max(1.0) as u32,
        Measure::Cpu | Measure::Both(_) => HZ,
    }
}

/// The name that nobody gave.
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
        // The number is that of a part.
        Files::Parts { .. } => {
            OutputPattern::literal(Path::new(&format!("traceprof-{name}-"))).with_time(".trace")
        }
    }
}

/// The closing report, and what was counted if that was asked for.
fn trailer(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    let labels = summary.text.iter().chain(&summary.stats).map(|(label, _)| label.chars().count());
    let width = labels.max().unwrap_or(0).max("command".len());
    list(&summary.text, width, out)?;
    if let Some(status) = summary.command_status {
        writeln!(out, "{:width$}  {}", "command", ended(status))?;
    }
    if let Some(output) = &summary.output {
        let output = shell_quoted(&output.display().to_string());
        writeln!(out, "{:width$}  traceprof print {}", "view", escaped(&output))?;
    }
    list(&summary.stats, width, out)
}

/// Labels with their values; the column of the values is this far to the right at least.
fn list(lines: &[(String, String)], least: usize, out: &mut dyn Write) -> io::Result<()> {
    let width = lines.iter().map(|(label, _)| label.chars().count()).fold(least, usize::max);
    let mut lines = lines.iter();
    lines.try_for_each(|(label, value)| {
        writeln!(out, "{:width$}  {}", escaped(label), escaped(value))
    })
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// What a finished recording comes to.
fn outcome(summary: &Summary, fail_under: Option<Percent>) -> Result<(), Failure> {
    let quality = summary.quality_percent;
    let output = summary.output.as_ref().map(|output| format!("{} is written", output.display()));
    let output = output.unwrap_or_else(|| "nothing was asked to be saved".to_owned());
    if let Some(text) = &summary.cut_short {
        return Err(Failure::new(ExitCode::Output, anyhow!(text.clone())));
    }
    if !summary.left.is_empty() {
        let error = anyhow!(
            "left in the target, which goes on unharmed: {}; `traceprof detach --pid {}` takes it \
             away, and so does the next recording of it",
            summary.left.join("; "),
            summary.pid
        );
        return Err(Failure::new(ExitCode::LeftBehind, error));
    }
    if let Some(why) = &summary.nothing {
        let error = anyhow!("no samples: {why}; {output}");
        return Err(Failure::new(ExitCode::NoSamples, error));
    }
    match fail_under {
        // A quality that is no number is not good enough either.
        Some(Percent(least)) if quality < least || quality.is_nan() => {
            let error =
                anyhow!("quality {quality:.2} % is below the {least} % of --fail-under; {output}");
            Err(Failure::new(ExitCode::LowQuality, error))
        }
        _ => Ok(()),
    }
}

/// The failure of a recording, or of another look at a process.
pub(super) fn failure(error: RecordError) -> Failure {
    match error {
        RecordError::NotPermitted(error) => Failure::new(ExitCode::NotPermitted, error),
        RecordError::TargetGone(error) => Failure::new(ExitCode::TargetGone, error),
        RecordError::Output(error) => Failure::new(ExitCode::Output, error),
        RecordError::Usage(text) => Failure::new(ExitCode::Usage, anyhow!(text)),
        RecordError::Other(error) => Failure::new(ExitCode::Failure, error),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::record::{Named, Occasion};
    use crate::trace::{Metadata, Written};

    pub(in crate::cli) fn summary() -> Summary {
        Summary {
            text: vec![
                ("engine".to_owned(), "perf".to_owned()),
                ("samples".to_owned(), "10 in 1 thread".to_owned()),
            ],
            stats: Vec::new(),
            samples: 10,
            rooted: 9,
            command_status: Some(ExitStatus::from_raw(3 << 8)),
            output: Some(PathBuf::from("out.trace")),
            written: Written::default(),
            parts: (Vec::new(), 0),
            saves: Vec::new(),
            figures: Metadata::new(),
            ended: None,
            cut_short: None,
            pid: 7,
            left: Vec::new(),
            nothing: None,
            quality_percent: 90.0,
        }
    }

    fn code(result: Result<(), Failure>) -> ExitCode {
        result.map_or_else(|failure| failure.code, |()| ExitCode::Ok)
    }

    #[test]
    fn the_outcome_follows_the_output_then_samples_then_quality() {
        assert_eq!(code(outcome(&summary(), None)), ExitCode::Ok);
        assert_eq!(code(outcome(&summary(), Some(Percent(90.0)))), ExitCode::Ok);
        assert_eq!(code(outcome(&summary(), Some(Percent(90.1)))), ExitCode::LowQuality);
        let nothing = || Some("no CPU time".to_owned());
        let empty = Summary { samples: 0, nothing: nothing(), ..summary() };
        assert_eq!(code(outcome(&empty, Some(Percent(99.0)))), ExitCode::NoSamples);
        let cut_short = Summary {
            cut_short: Some("no space".to_owned()),
            samples: 0,
            nothing: nothing(),
            ..summary()
        };
        assert_eq!(code(outcome(&cut_short, Some(Percent(99.0)))), ExitCode::Output);
        let left = Summary { left: vec!["a segment".to_owned()], samples: 0, ..summary() };
        assert_eq!(code(outcome(&left, None)), ExitCode::LeftBehind);
        let unknown = Summary { quality_percent: f64::NAN, ..summary() };
        assert_eq!(code(outcome(&unknown, Some(Percent(1.0)))), ExitCode::LowQuality);
    }

    #[test]
    fn every_reason_has_its_code() {
        let error = || anyhow!("why");
        let check = |error, expected| assert_eq!(failure(error).code, expected);
        check(RecordError::NotPermitted(error()), ExitCode::NotPermitted);
        check(RecordError::TargetGone(error()), ExitCode::TargetGone);
        check(RecordError::Output(error()), ExitCode::Output);
        check(RecordError::Usage("why".to_owned()), ExitCode::Usage);
        check(RecordError::Other(error()), ExitCode::Failure);
    }

    #[test]
    fn the_trailer_is_aligned_and_tells_how_the_command_ended() {
        let mut text = Vec::new();
        trailer(&summary(), &mut text).unwrap();
        let expected = "engine   perf\nsamples  10 in 1 thread\ncommand  exited with code 3\n\
                        view     traceprof print out.trace\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        assert_eq!(ended(ExitStatus::from_raw(9)), "killed by signal 9");
        let stats = vec![("thread slots".to_owned(), "1 used".to_owned())];
        let mut text = Vec::new();
        trailer(&Summary { stats, ..summary() }, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.ends_with("trace\nthread slots  1 used\n"), "{text}");
        assert!(text.starts_with("engine        perf\n"), "{text}");
    }

    #[test]
    fn default_names_are_numbered_and_fit_for_a_file() {
        let name = |target| default_pattern(&target, Files::One).numbered(Occasion::now(None), "3");
        let command = |word: &str| Target::Command(vec![word.into(), "x".into()]);
        assert_eq!(name(Target::Pid(7)), Path::new("traceprof-7-3.trace"));
        assert_eq!(name(Target::Pids(vec![7, 8])), Path::new("traceprof-7-3.trace"));
        let named = Target::Name(Named { pattern: "^redis".to_owned(), wait: None });
        assert_eq!(name(named), Path::new("traceprof-_redis-3.trace"));
        assert_eq!(name(command("/usr/bin/python3")), Path::new("traceprof-python3-3.trace"));
        assert_eq!(name(command("./a b%p\n")), Path::new("traceprof-a_b_p_-3.trace"));
        assert_eq!(name(command("..")), Path::new("traceprof-command-3.trace"));
    }
}
