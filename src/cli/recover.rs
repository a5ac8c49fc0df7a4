//! `traceprof recover`.

use std::io::{self, Write};
use std::path::Path;

use anyhow::anyhow;

use super::arguments::RecoverArguments;
use super::exit::{ExitCode, Failure};
use super::output::is_part_of;
use super::work;
use crate::trace::{self, FileState, LazyTrace, Recovered, WriterOptions, index_path};
use crate::view::Recording;
use crate::view::escape::{escaped, shell_quoted};
use crate::view::verification::loss_text;

/// Saves what can be read.
pub(super) fn run(arguments: &RecoverArguments) -> Result<ExitCode, Failure> {
    let RecoverArguments { input, output, force } = arguments;
    if is_part_of(output, input) || is_part_of(&index_path(output), input) {
        let error = anyhow!("{} is the trace itself: name another output", output.display());
        return Err(Failure::new(ExitCode::Output, error));
    }
    let options = WriterOptions { force: *force, ..WriterOptions::default() };
    work::begin("recovering", input);
    let recovered = trace::recover(input, output, options);
    work::end();
    let recovered = recovered.map_err(Failure::of_trace)?;
    // Nobody to tell when the standard error is closed; the trace is written all the same.
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
    // The new trace knows when its recording began.
    let begin_ns = LazyTrace::open(output).ok().and_then(|trace| Recording::of(&trace).begin_ns());
    for loss in &recovered.losses {
        writeln!(out, "lost     {}", loss_text(loss, begin_ns))?;
    }
    let bytes = (recovered.written.data_bytes, recovered.written.index_bytes);
    writeln!(out, "written  {} bytes, index {} bytes", bytes.0, bytes.1)?;
    let output = shell_quoted(&output.display().to_string());
    writeln!(out, "view     traceprof print {}", escaped(&output))
}
