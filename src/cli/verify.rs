//! `traceprof verify`.

use std::io::Write;

use super::arguments::VerifyArguments;
use super::exit::{ExitCode, Failure};
use super::output::{Destination, unwritable};
use super::work;
use crate::trace::{self, FileState};
use crate::view::verification;

/// Checks the trace; the exit code is the verdict.
pub(super) fn run(arguments: &VerifyArguments) -> Result<ExitCode, Failure> {
    work::begin("checking", &arguments.file);
    let found = trace::verify(&arguments.file);
    work::end();
    let found = found.map_err(Failure::of_trace)?;
    let file = arguments.file.display().to_string();
    let written = Destination::Standard.write(|out: &mut dyn Write| {
        let write = if arguments.json { verification::write_json } else { verification::write };
        write(&found, &file, out).map_err(unwritable)
    });
    match written {
        // The verdict is the same whether or not somebody reads all of it.
        Err(failure) if !failure.is_broken_pipe() => Err(failure),
        _ => Ok(match found.state() {
            FileState::Clean => ExitCode::Ok,
            FileState::Unfinished => ExitCode::Unfinished,
            FileState::Lossy => ExitCode::Lossy,
        }),
    }
}
