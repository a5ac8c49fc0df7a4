//! `traceprof record`: records, prints the closing report, and chooses the exit code.

mod json;
mod options;
mod pid_file;
mod progress;
mod ready_fd;

use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::anyhow;

pub(super) use self::options::options;
use self::pid_file::{PidFile, check_name};
use self::ready_fd::{Ready, ReadyObserver};
use super::arguments::RecordArguments;
use super::exit::{CommandFailure, ExitCode};
use super::option_values::{LeastQuality, Percent};
use super::output::{Destination, unwritable};
use crate::inspect::dry_run;
use crate::record::{Summary, record};
use crate::view::text::escape::{escaped, shell_quoted};

/// Records and reports.
pub(super) fn run(arguments: RecordArguments) -> Result<(), CommandFailure> {
    let is_json = arguments.json;
    let mut summary = None;
    let ended = run_into(arguments, &mut summary);
    if is_json {
        let written = json::write(summary.as_ref(), ended.as_ref().err());
        return ended.and(written);
    }
    ended
}

fn run_into(
    arguments: RecordArguments,
    recorded: &mut Option<Summary>,
) -> Result<(), CommandFailure> {
    // First, while nothing else is open.
    let ready = arguments.ready_fd.map(Ready::take).transpose()?;
    let (quiet, fail_under) = (arguments.quiet, arguments.fail_under.clone());
    let (is_dry, pidfile) = (arguments.dry_run, arguments.pidfile.clone());
    let options = options(arguments)?;
    pidfile.as_deref().map(|path| check_name(path, &options.output)).transpose()?;
    if is_dry {
        pidfile.as_deref().map(PidFile::check).transpose()?;
        let steps = dry_run(&options).map_err(CommandFailure::of_recording)?;
        let write = |out: &mut dyn Write| list(&steps, 0, out).map_err(unwritable);
        return Destination::Standard.write(write);
    }
    let pidfile = pidfile.as_deref().map(PidFile::write).transpose()?;
    let mut observer = ReadyObserver { inner: progress::observer(quiet), ready };
    let ended = record(&options, &mut observer);
    // Clears the live line before anything else is printed.
    drop((observer, pidfile));
    let summary = ended.map_err(CommandFailure::of_recording)?;
    if !quiet {
        // A closed standard error leaves nobody to tell; the trace is written anyway.
        let _ = trailer(&summary, &mut io::stderr().lock());
    }
    outcome(recorded.insert(summary), &fail_under)
}

/// Writes the closing report.
fn trailer(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    let labels = summary.text.iter().map(|(label, _)| label.chars().count());
    let width = labels.max().unwrap_or(0).max("command".len());
    list(&summary.text, width, out)?;
    if let Some(status) = summary.command_status {
        writeln!(out, "{:width$}  {}", "command", ended(status))?;
    }
    if let Some(output) = &summary.output {
        let output = shell_quoted(&output.display().to_string());
        writeln!(out, "{:width$}  traceprof print {}", "view", escaped(&output))?;
    }
    Ok(())
}

/// Prints labels and values; the labels take at least `least` columns.
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

/// Returns the outcome of a finished recording.
fn outcome(summary: &Summary, fail_under: &[LeastQuality]) -> Result<(), CommandFailure> {
    let output = summary.output.as_ref().map(|output| format!("{} is written", output.display()));
    let output = output.unwrap_or_else(|| "no save was requested".to_owned());
    if let Some(text) = &summary.cut_short {
        return Err(CommandFailure::new(ExitCode::Output, anyhow!(text.clone())));
    }
    if !summary.left.is_empty() {
        let error = anyhow!(
            "left in the target, which runs on unharmed: {}; `traceprof detach --pid {}` removes \
             it as soon as it can, and so does the next recording",
            summary.left.join("; "),
            summary.pid
        );
        return Err(CommandFailure::new(ExitCode::LeftBehind, error));
    }
    if let Some(died) = &summary.died {
        let error = anyhow!(
            "{died}: run it without traceprof to see whether it is the program's own fault; \
             {output}"
        );
        return Err(CommandFailure::new(ExitCode::TargetDied, error));
    }
    if let Some(why) = &summary.nothing {
        let error = anyhow!("no samples: {why}; {output}");
        return Err(CommandFailure::new(ExitCode::NoSamples, error));
    }
    match fail_under.iter().find_map(|least| shortfall(summary, *least)) {
        Some(why) => Err(CommandFailure::new(ExitCode::LowQuality, anyhow!("{why}; {output}"))),
        None => Ok(()),
    }
}

/// Returns what is below a least quality, if that is.
fn shortfall(summary: &Summary, least: LeastQuality) -> Option<String> {
    let (what, found, least, option) = match least {
        LeastQuality::Rooted(Percent(least)) => {
            let what = "the share of samples that reach the root".to_owned();
            (what, summary.quality_percent, least, String::new())
        }
        LeastQuality::Named(language, Percent(least)) => {
            let (name, option) = (language.name(), format!("{}=", language.name().to_lowercase()));
            let Some(share) = summary.named.iter().find(|it| it.language == language) else {
                let text =
                    format!("no sample has a {name} function: --fail-under {option}{least} %");
                return Some(text);
            };
            (format!("the share of {name} samples with a name"), share.percent(), least, option)
        }
    };
    // NaN is not good enough either.
    (found < least || found.is_nan())
        .then(|| format!("{what}, {found:.2} %, is below --fail-under {option}{least} %"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::record::{NamedShare, RecordError};
    use crate::runtime::ManagedLanguage;
    use crate::trace::{Metadata, Written};

    pub(in crate::cli) fn summary() -> Summary {
        Summary {
            text: vec![
                ("engine".to_owned(), "perf".to_owned()),
                ("samples".to_owned(), "10 in 1 thread".to_owned()),
            ],
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
            died: None,
            pid: 7,
            left: Vec::new(),
            nothing: None,
            quality_percent: 90.0,
            named: vec![NamedShare { language: ManagedLanguage::Python, samples: 4, named: 3 }],
        }
    }

    fn code(result: Result<(), CommandFailure>) -> ExitCode {
        result.map_or_else(|failure| failure.code, |()| ExitCode::Ok)
    }

    #[test]
    fn the_outcome_follows_the_output_then_samples_then_quality() {
        let rooted = |percent| [LeastQuality::Rooted(Percent(percent))];
        assert_eq!(code(outcome(&summary(), &[])), ExitCode::Ok);
        assert_eq!(code(outcome(&summary(), &rooted(90.0))), ExitCode::Ok);
        assert_eq!(code(outcome(&summary(), &rooted(90.1))), ExitCode::LowQuality);
        let nothing = || Some("no CPU time".to_owned());
        let empty = Summary { samples: 0, nothing: nothing(), ..summary() };
        assert_eq!(code(outcome(&empty, &rooted(99.0))), ExitCode::NoSamples);
        let cut_short = Summary {
            cut_short: Some("no space".to_owned()),
            samples: 0,
            nothing: nothing(),
            ..summary()
        };
        assert_eq!(code(outcome(&cut_short, &rooted(99.0))), ExitCode::Output);
        let left = Summary { left: vec!["a segment".to_owned()], samples: 0, ..summary() };
        assert_eq!(code(outcome(&left, &[])), ExitCode::LeftBehind);
        let died = || Some("SIGSEGV ended process 7".to_owned());
        let died = Summary { died: died(), samples: 0, nothing: nothing(), ..summary() };
        assert_eq!(code(outcome(&died, &[])), ExitCode::TargetDied);
        let unknown = Summary { quality_percent: f64::NAN, ..summary() };
        assert_eq!(code(outcome(&unknown, &rooted(1.0))), ExitCode::LowQuality);
    }

    #[test]
    fn a_quality_that_is_too_low_is_named() {
        let rooted = |percent| LeastQuality::Rooted(Percent(percent));
        let python = |percent| LeastQuality::Named(ManagedLanguage::Python, Percent(percent));
        let check = |summary: &Summary, least: &[LeastQuality], expected: Option<&str>| {
            let failure = outcome(summary, least).err();
            assert!(failure.as_ref().is_none_or(|failure| failure.code == ExitCode::LowQuality));
            let text = failure.map(|failure| failure.message());
            assert_eq!(text.as_deref(), expected);
        };
        check(&summary(), &[rooted(90.0), python(75.0)], None);
        let low = "the share of samples that reach the root, 90.00 %, is below --fail-under 95 %; \
                   out.trace is written";
        check(&summary(), &[python(75.0), rooted(95.0)], Some(low));
        let low = "the share of Python samples with a name, 75.00 %, is below --fail-under \
                   python=76 %; out.trace is written";
        check(&summary(), &[rooted(90.0), python(76.0)], Some(low));
        let none = "no sample has a Python function: --fail-under python=0 %; out.trace is written";
        check(&Summary { named: Vec::new(), ..summary() }, &[python(0.0)], Some(none));
    }

    #[test]
    fn every_reason_has_its_code() {
        let error = || anyhow!("why");
        let check =
            |error, expected| assert_eq!(CommandFailure::of_recording(error).code, expected);
        check(RecordError::NotPermitted(error()), ExitCode::NotPermitted);
        check(RecordError::TargetGone(error()), ExitCode::TargetGone);
        check(RecordError::Output(error()), ExitCode::Output);
        check(RecordError::Usage("why".to_owned()), ExitCode::Usage);
        check(RecordError::Other(error()), ExitCode::Failure);
    }

    #[test]
    fn the_trailer_is_aligned_and_shows_how_the_command_ended() {
        let mut text = Vec::new();
        trailer(&summary(), &mut text).unwrap();
        let expected = "engine   perf\nsamples  10 in 1 thread\ncommand  exited with code 3\n\
                        view     traceprof print out.trace\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        assert_eq!(ended(ExitStatus::from_raw(9)), "killed by signal 9");
        let mut wide = summary();
        wide.text.push(("thread slots".to_owned(), "1 used".to_owned()));
        let mut text = Vec::new();
        trailer(&wide, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("\nthread slots  1 used\n"), "{text}");
        assert!(text.starts_with("engine        perf\n"), "{text}");
    }
}
