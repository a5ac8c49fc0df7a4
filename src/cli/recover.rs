//! `traceprof recover`.

use std::io::{self, Write};
use std::path::Path;

use anyhow::anyhow;

use super::arguments::RecoverArguments;
use super::exit::{CommandFailure, ExitCode};
use super::output::is_part_of;
use super::progress_line;
use crate::trace::{self, FileState, LazyTrace, Recovered, WriterOptions, index_path};
use crate::view::RecordingInfo;
use crate::view::print::verification::loss_text;
use crate::view::text::escape::{escaped, shell_quoted};

/// Saves the readable part.
pub(super) fn run(arguments: &RecoverArguments) -> Result<ExitCode, CommandFailure> {
    let RecoverArguments { input, output, force } = arguments;
    if is_part_of(output, input) || is_part_of(&index_path(output), input) {
        let error = anyhow!("{} is the input trace: name another output", output.display());
        return Err(CommandFailure::new(ExitCode::Output, error));
    }
    let options = WriterOptions { force: *force, ..WriterOptions::default() };
    super::input::begin("recovering", input);
    let recovered = trace::recover(input, output, options);
    progress_line::end();
    let recovered = recovered.map_err(CommandFailure::of_trace)?;
    // A closed standard error leaves nobody to tell; the trace is written anyway.
    let _ = report(&recovered, output, &mut io::stderr().lock());
    Ok(match recovered.was {
        FileState::Clean | FileState::Unfinished => ExitCode::Ok,
        FileState::Lossy => ExitCode::Lossy,
    })
}

fn report(recovered: &Recovered, output: &Path, out: &mut dyn Write) -> io::Result<()> {
    let was = match recovered.was {
        FileState::Clean => "clean: there was nothing to recover",
        FileState::Unfinished => "sound, but not closed",
        FileState::Lossy => "damaged",
    };
    writeln!(out, "trace    {was}")?;
    writeln!(out, "samples  {} saved", recovered.samples)?;
    // The new trace has the start of the recording.
    let begin_ns =
        LazyTrace::open(output).ok().and_then(|trace| RecordingInfo::of(&trace).begin_ns());
    for loss in &recovered.losses {
        writeln!(out, "lost     {}", loss_text(loss, begin_ns))?;
    }
    let bytes = (recovered.written.data_bytes, recovered.written.index_bytes);
    writeln!(out, "written  {} bytes, index {} bytes", bytes.0, bytes.1)?;
    let output = shell_quoted(&output.display().to_string());
    writeln!(out, "view     traceprof print {}", escaped(&output))
}
