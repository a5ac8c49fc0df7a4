//! `traceprof record`: records, prints the closing report, and chooses the exit code.

mod json;
mod options;
mod pid_file;
mod progress;
mod ready_fd;
mod report;

use std::io::{self, Write};
use std::process::ExitStatus;

use anyhow::anyhow;

pub(super) use self::options::options;
use self::pid_file::{PidFile, check_name};
use self::ready_fd::{Ready, ReadyObserver};
use super::arguments::RecordArguments;
use super::exit::{CommandExit, CommandFailure, ExitCode};
use super::notes::note;
use super::option_values::{ExitOf, LeastQuality, Percent};
use super::output::{Destination, unwritable};
use super::view;
use crate::inspect::dry_run;
use crate::record::{Recorded, RunningProgram, Summary, Target, record};
use crate::view::TextStyle;
use crate::view::text::escape::escaped;

/// Records and reports, and returns how this program exits.
pub(super) fn run(arguments: RecordArguments) -> Result<CommandExit, CommandFailure> {
    let is_json = arguments.json;
    let mut summary = None;
    let ended = run_into(arguments, &mut summary);
    if is_json {
        let written = json::write(summary.as_ref(), ended.as_ref());
        return ended.and_then(|exit| written.map(|()| exit));
    }
    ended
}

fn run_into(
    arguments: RecordArguments,
    recorded: &mut Option<Summary>,
) -> Result<CommandExit, CommandFailure> {
    // First, while nothing else is open.
    let ready = arguments.ready_fd.map(Ready::take).transpose()?;
    let (quiet, stats, fail_under) =
        (arguments.quiet, arguments.stats, arguments.fail_under.clone());
    let (is_dry, pidfile) = (arguments.dry_run, arguments.pidfile.clone());
    let (whose, has_view) = (arguments.exit_code, arguments.view);
    let options = options(arguments)?;
    pidfile.as_deref().map(|path| check_name(path, &options.output)).transpose()?;
    if is_dry {
        pidfile.as_deref().map(PidFile::check).transpose()?;
        let steps = dry_run(&options).map_err(CommandFailure::of_recording)?;
        let write = |out: &mut dyn Write| {
            report::list(&steps, &TextStyle::default(), out).map_err(unwritable)
        };
        Destination::Standard.write(write)?;
        return Ok(ExitCode::Ok.into());
    }
    let pidfile = pidfile.as_deref().map(PidFile::write).transpose()?;
    let mut observer = ReadyObserver { inner: progress::observer(quiet, stats), ready };
    let ended = record(&options, &mut observer);
    // Clears the live line before anything else is printed.
    drop((observer, pidfile));
    let Recorded { summary, running } = ended.map_err(CommandFailure::of_recording)?;
    if !quiet {
        report::write(&summary, stats);
    }
    let summary = recorded.insert(summary);
    if let (true, Some(trace)) = (has_view, &summary.output) {
        // The recording is done, and the page can be made again.
        view::show(trace).unwrap_or_else(|failure| note(&failure.message()));
    }
    if let Some(program) = running {
        summary.command_status = wait(program, quiet)?;
    }
    let is_program = matches!(options.target, Target::Command(_)) && whose == ExitOf::Command;
    outcome(summary, &fail_under, (is_program, quiet))
}

/// Waits for the started program, and returns its exit status unless a signal ended the wait.
fn wait(mut program: RunningProgram, quiet: bool) -> Result<Option<ExitStatus>, CommandFailure> {
    let tell = |text: &str| {
        if !quiet {
            // A closed standard error leaves nobody to tell.
            let _ = writeln!(io::stderr(), "{}", escaped(text));
        }
    };
    let title = format!("{} ({})", program.name, program.pid);
    tell(&format!(
        "waiting for {title} to exit; a signal to traceprof, like Ctrl-C, ends the wait"
    ));
    let status = program.wait().map_err(CommandFailure::of_recording)?;
    tell(&match status {
        Some(status) => format!("{title} {}", report::ended(status)),
        None => format!("{title} runs on"),
    });
    Ok(status)
}

/// Returns the outcome of a finished recording. `is_program` says whether a started program
/// determines it where the recording has succeeded, and `quiet` leaves out notes.
fn outcome(
    summary: &Summary,
    fail_under: &[LeastQuality],
    (is_program, quiet): (bool, bool),
) -> Result<CommandExit, CommandFailure> {
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
    let failure = match (&summary.died, &summary.nothing) {
        (Some(died), _) => Some(CommandFailure::new(
            ExitCode::TargetDied,
            anyhow!(
                "{died}: run it without traceprof to see whether it is the program's own fault; \
                 {output}"
            ),
        )),
        (None, Some(why)) => {
            Some(CommandFailure::new(ExitCode::NoSamples, anyhow!("no samples: {why}; {output}")))
        }
        (None, None) => None,
    };
    match failure {
        // The program's own code tells how it ended, and most of these programs end soon.
        Some(_) if is_program && quiet => {}
        Some(failure) if is_program => note(&failure.message()),
        Some(failure) => return Err(failure),
        None => {}
    }
    if let Some(why) = fail_under.iter().find_map(|least| shortfall(summary, *least)) {
        return Err(CommandFailure::new(ExitCode::LowQuality, anyhow!("{why}; {output}")));
    }
    let status = summary.command_status.filter(|_| is_program);
    Ok(status.map_or(ExitCode::Ok.into(), CommandExit::of_command))
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
    use std::os::unix::process::ExitStatusExt;
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
            brief: Vec::new(),
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

    /// The exit code, for the recording of a process or of a started program.
    fn code(summary: &Summary, fail_under: &[LeastQuality], is_program: bool) -> u8 {
        let ended = outcome(summary, fail_under, (is_program, false));
        ended.unwrap_or_else(|failure| failure.code.into()).number()
    }

    fn check(summary: &Summary, fail_under: &[LeastQuality], expected: ExitCode) {
        assert_eq!(code(summary, fail_under, false), expected.number());
    }

    #[test]
    fn the_outcome_follows_the_output_then_samples_then_quality() {
        let rooted = |percent| [LeastQuality::Rooted(Percent(percent))];
        check(&summary(), &[], ExitCode::Ok);
        check(&summary(), &rooted(90.0), ExitCode::Ok);
        check(&summary(), &rooted(90.1), ExitCode::LowQuality);
        let nothing = || Some("no CPU time".to_owned());
        let empty = Summary { samples: 0, nothing: nothing(), ..summary() };
        check(&empty, &rooted(99.0), ExitCode::NoSamples);
        let cut_short = Summary {
            cut_short: Some("no space".to_owned()),
            samples: 0,
            nothing: nothing(),
            ..summary()
        };
        check(&cut_short, &rooted(99.0), ExitCode::Output);
        let left = Summary { left: vec!["a segment".to_owned()], samples: 0, ..summary() };
        check(&left, &[], ExitCode::LeftBehind);
        let died = || Some("SIGSEGV ended process 7".to_owned());
        let died = Summary { died: died(), samples: 0, nothing: nothing(), ..summary() };
        check(&died, &[], ExitCode::TargetDied);
        let unknown = Summary { quality_percent: f64::NAN, ..summary() };
        check(&unknown, &rooted(1.0), ExitCode::LowQuality);
    }

    #[test]
    fn a_started_program_determines_the_code_unless_the_recording_failed() {
        assert_eq!(code(&summary(), &[], true), 3);
        let nothing = Some("no CPU time".to_owned());
        let empty = Summary { samples: 0, nothing, ..summary() };
        assert_eq!(code(&empty, &[], true), 3, "a program that ended soon");
        let died = Summary {
            died: Some("SIGSEGV ended process 7".to_owned()),
            command_status: Some(ExitStatus::from_raw(libc::SIGSEGV)),
            ..summary()
        };
        assert_eq!(code(&died, &[], true), 139);
        let cut_short = Summary { cut_short: Some("no space".to_owned()), ..summary() };
        assert_eq!(code(&cut_short, &[], true), ExitCode::Output.number());
        let low = [LeastQuality::Rooted(Percent(90.1))];
        assert_eq!(code(&summary(), &low, true), ExitCode::LowQuality.number());
        let running = Summary { command_status: None, ..summary() };
        assert_eq!(code(&running, &[], true), 0, "the user stopped the wait");
    }

    #[test]
    fn a_quality_that_is_too_low_is_named() {
        let rooted = |percent| LeastQuality::Rooted(Percent(percent));
        let python = |percent| LeastQuality::Named(ManagedLanguage::Python, Percent(percent));
        let check = |summary: &Summary, least: &[LeastQuality], expected: Option<&str>| {
            let failure = outcome(summary, least, (false, false)).err();
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
        check(RecordError::NotExecutable(error()), ExitCode::NotExecutable);
        check(RecordError::NoCommand(error()), ExitCode::NoCommand);
        check(RecordError::Usage("why".to_owned()), ExitCode::Usage);
        check(RecordError::Other(error()), ExitCode::Failure);
    }
}
