//! `traceprof verify`.

use std::io::Write;

use super::arguments::VerifyArguments;
use super::exit::{CommandFailure, ExitCode};
use super::output::{Destination, unwritable};
use super::{input, progress_line};
use crate::trace::{self, FileState};
use crate::view::print::verification;

/// Checks the trace. The exit code is the verdict.
pub(super) fn run(arguments: &VerifyArguments) -> Result<ExitCode, CommandFailure> {
    input::begin("checking", &arguments.file);
    let found = trace::verify(&arguments.file);
    progress_line::end();
    let found = found.map_err(CommandFailure::of_trace)?;
    let file = arguments.file.display().to_string();
    let written = Destination::Standard.write(|out: &mut dyn Write| {
        let write = if arguments.json { verification::write_json } else { verification::write };
        write(&found, &file, out).map_err(unwritable)
    });
    match written {
        // The exit code does not depend on the reader of the output.
        Err(failure) if !failure.is_broken_pipe() => Err(failure),
        _ => Ok(match found.state() {
            FileState::Clean => ExitCode::Ok,
            FileState::Unfinished => ExitCode::Unfinished,
            FileState::Lossy => ExitCode::Lossy,
        }),
    }
}
