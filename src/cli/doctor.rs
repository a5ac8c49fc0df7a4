//! `traceprof doctor`.

use std::io::{self, Write};

use serde_json::json;

use super::arguments::DoctorArguments;
use super::exit::{CommandFailure, ExitCode};
use super::output::{Destination, unwritable};
use crate::inspect::{self, Diagnosis, Finding, Prospect, SIGTRAP_WINDOW, Severity};
use crate::view::text::escape::escaped;

/// Room for the longest subject.
const SUBJECT_WIDTH: usize = 20;

/// The prospect of a recording, or the failure with its exit code.
type Outcome = Result<Prospect, CommandFailure>;

/// Checks and reports. The exit code is 0, or that of the refused recording.
pub(super) fn run(arguments: &DoctorArguments) -> Result<ExitCode, CommandFailure> {
    let Diagnosis { host, target, outcome } = inspect::diagnose(arguments.pid);
    let outcome = outcome.map_err(CommandFailure::of_recording);
    let code = outcome.as_ref().map_or_else(|failure| failure.code, |_| ExitCode::Ok);
    let written = Destination::Standard.write(|out| {
        let written = if arguments.json {
            let target = target.map(|target| json!(target));
            write_json(out, json!(host), target.into(), &outcome)
        } else {
            let name = target.as_ref().map(|target| format!("process {}", target.pid));
            let lists = [("host".to_owned(), host)];
            let of_target = name.zip(target.map(|target| target.findings));
            write_text(out, lists.into_iter().chain(of_target), &outcome)
        };
        written.map_err(unwritable)
    });
    match written {
        // The exit code does not depend on the reader of the output.
        Err(failure) if !failure.is_broken_pipe() => Err(failure),
        _ => Ok(code),
    }
}

fn write_text(
    out: &mut dyn Write,
    lists: impl Iterator<Item = (String, Vec<Finding>)>,
    outcome: &Outcome,
) -> io::Result<()> {
    for (title, findings) in lists {
        writeln!(out, "{title}")?;
        for Finding { subject, state, seen, remedy } in findings {
            let mark = match state {
                Severity::Fine => "ok",
                Severity::Limit => "!",
                Severity::Obstacle => "NO",
            };
            writeln!(out, "  {mark:2}  {subject:SUBJECT_WIDTH$}  {}", escaped(&seen))?;
            if let Some(remedy) = remedy {
                writeln!(out, "      {:SUBJECT_WIDTH$}  $ {}", "", escaped(&remedy))?;
            }
        }
        writeln!(out)?;
    }
    match outcome {
        Ok(Prospect { engine, why, kernel_included }) => {
            let kernel = if *kernel_included { "with" } else { "without" };
            writeln!(out, "record    works, by {engine} ({why}), {kernel} time in the kernel")?;
        }
        Err(failure) => {
            let code = failure.code.number();
            writeln!(out, "record    is refused (exit code {code}): {}", failure.message())?;
        }
    }
    writeln!(out, "SIGTRAP   {SIGTRAP_WINDOW}")
}

fn write_json(
    out: &mut dyn Write,
    host: serde_json::Value,
    target: serde_json::Value,
    outcome: &Outcome,
) -> io::Result<()> {
    let refusal = outcome.as_ref().err();
    let all = json!({
        "host": host,
        "target": target,
        "records": refusal.is_none(),
        "prospect": outcome.as_ref().ok(),
        "refusal": refusal.map(CommandFailure::message),
        "exit_code": refusal.map_or(ExitCode::Ok, |failure| failure.code).number(),
        "sigtrap": SIGTRAP_WINDOW,
    });
    serde_json::to_writer(&mut *out, &all).map_err(io::Error::from)?;
    writeln!(out)
}
