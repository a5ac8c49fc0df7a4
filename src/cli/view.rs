//! `traceprof view`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use super::arguments::ViewArguments;
use super::exit::{CommandFailure, ExitCode};
use super::notes::note;
use super::output::{self, Destination};
use super::{browser, input, progress_line};
use crate::trace::LazyTrace;
use crate::view::html::{self, PageOptions};
use crate::view::text::escape::escaped;
use crate::view::{self, Profile, Selected, Selection};

/// Writes the page, and prints its path.
pub(super) fn run(arguments: ViewArguments) -> Result<(), CommandFailure> {
    let ViewArguments { file, output, open, no_idle, source, assembly, selection, force } =
        arguments;
    let path = output.unwrap_or_else(|| default_path(&file));
    // A newer recording replaces the page that was made of the one before.
    let is_replaced = force || html::is_page_of(&path, &file);
    let destination = Destination::new(Some(path.clone()), is_replaced, &file)?;
    if open && destination == Destination::Standard {
        let error = anyhow!(
            "--open needs a file, not the standard output: name one with --output, or leave that \
             out"
        );
        return Err(CommandFailure::new(ExitCode::Usage, error));
    }
    if let Some(dir) = source.as_ref().filter(|dir| !dir.is_dir()) {
        let error = anyhow!("{} is no directory: name that of the source files", dir.display());
        return Err(CommandFailure::new(ExitCode::Usage, error));
    }
    let selection = Selection::from(selection);
    let trace = input::open_for(&file, &selection)?;
    let source = source.as_deref();
    let options = PageOptions { no_idle, source, assembly, ..PageOptions::default() };
    write(&trace, &selection, &options, &destination)?;
    if destination == Destination::Standard {
        return Ok(());
    }
    progress_line::end();
    let shown = path.display().to_string();
    writeln!(io::stdout(), "{}", escaped(&shown)).map_err(output::unwritable)?;
    if open { browser::open(&path) } else { Ok(()) }
}

/// Writes the page of a trace beside it, prints its path, and opens it in a browser.
pub(super) fn show(trace: &Path) -> Result<(), CommandFailure> {
    let file = trace.to_owned();
    run(ViewArguments { file, open: true, ..ViewArguments::default() })
}

/// Writes the page of what is selected of a trace.
pub(super) fn write(
    trace: &LazyTrace,
    selection: &Selection,
    options: &PageOptions<'_>,
    destination: &Destination,
) -> Result<(), CommandFailure> {
    let noted = trace.notices().len();
    let mut sides = Vec::new();
    for mode in html::modes(trace, selection) {
        let selection = Selection { mode: Some(mode), ..selection.clone() };
        let selected = input::select(trace, &selection)?;
        let profile = view::load(trace, &selected).map_err(CommandFailure::of_view)?;
        sides.push((selected, profile));
    }
    input::note_new(trace, noted);
    keep_sampled(&mut sides);
    let samples = sides.iter().map(|(_, profile)| profile.count().samples).sum();
    if let Some((selected, _)) = sides.first() {
        input::note_if_empty(selected, samples);
    }
    let sides: Vec<_> = sides.iter().map(|(selected, profile)| (selected, profile)).collect();
    let mut notes = Vec::new();
    destination.write(|out| {
        notes = html::write(trace, &sides, options, out).map_err(CommandFailure::of_view)?;
        Ok(())
    })?;
    notes.iter().for_each(|text| note(text));
    Ok(())
}

/// Drops modes without a sample, but keeps one mode.
fn keep_sampled(sides: &mut Vec<(Selected, Profile)>) {
    let is_sampled = |(_, profile): &(Selected, Profile)| profile.count().samples > 0;
    if sides.iter().any(is_sampled) {
        sides.retain(is_sampled);
    } else {
        sides.truncate(1);
    }
}

/// The path of the trace with another extension.
fn default_path(trace: &Path) -> PathBuf {
    if trace.extension().is_some_and(|extension| extension == "trace") {
        return trace.with_extension("html");
    }
    let mut name = OsString::from(trace);
    name.push(".html");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_beside_its_trace() {
        for (trace, page) in [
            ("out.trace", "out.html"),
            ("/tmp/a.b.trace", "/tmp/a.b.html"),
            ("recording", "recording.html"),
            ("x.data", "x.data.html"),
        ] {
            assert_eq!(default_path(Path::new(trace)), Path::new(page), "{trace}");
        }
    }
}
