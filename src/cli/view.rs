//! `traceprof view`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};

use super::arguments::ViewArguments;
use super::exit::{ExitCode, Failure};
use super::output::{self, Destination};
use super::{source, work};
use crate::trace::LazyTrace;
use crate::view::escape::{escaped, shell_quoted};
use crate::view::html::{self, PageOptions};
use crate::view::{self, Profile, Selected, Selection};

/// What opens pages on a desktop.
const OPENER: &str = "xdg-open";

/// Writes the page, and says where it is.
pub(super) fn run(arguments: ViewArguments) -> Result<(), Failure> {
    let ViewArguments { file, output, open, no_idle, selection, force } = arguments;
    let path = output.unwrap_or_else(|| default_path(&file));
    let destination = Destination::new(Some(path.clone()), force, &file)?;
    if open && destination == Destination::Standard {
        let error =
            anyhow!("--open needs a page in a file: name it with --output, or leave that out");
        return Err(Failure::new(ExitCode::Usage, error));
    }
    let trace = source::open(&file)?;
    write(&trace, &Selection::from(selection), no_idle, &destination)?;
    if destination == Destination::Standard {
        return Ok(());
    }
    work::end();
    let shown = path.display().to_string();
    writeln!(io::stdout(), "{}", escaped(&shown)).map_err(output::unwritable)?;
    if open { open_page(&path) } else { Ok(()) }
}

/// Writes the page of what is selected of a trace.
pub(super) fn write(
    trace: &LazyTrace,
    selection: &Selection,
    no_idle: bool,
    destination: &Destination,
) -> Result<(), Failure> {
    let told = trace.notices().len();
    let mut sides = Vec::new();
    for mode in html::modes(trace, selection) {
        let selection = Selection { mode: Some(mode), ..selection.clone() };
        let selected = source::select(trace, &selection)?;
        let profile = view::load(trace, &selected).map_err(Failure::of_view)?;
        sides.push((selected, profile));
    }
    source::tell_from(trace, told);
    keep_sampled(&mut sides);
    let samples = sides.iter().map(|(_, profile)| profile.count().samples).sum();
    if let Some((selected, _)) = sides.first() {
        source::tell_if_empty(selected, samples);
    }
    let options = PageOptions { no_idle, ..PageOptions::default() };
    let sides: Vec<_> = sides.iter().map(|(selected, profile)| (selected, profile)).collect();
    destination.write(|out| html::write(trace, &sides, &options, out).map_err(Failure::of_view))
}

/// Leaves out modes without a sample, unless none has any.
fn keep_sampled(sides: &mut Vec<(Selected, Profile)>) {
    let is_sampled = |(_, profile): &(Selected, Profile)| profile.count().samples > 0;
    if sides.iter().any(is_sampled) {
        sides.retain(is_sampled);
    } else {
        sides.truncate(1);
    }
}

/// Beside the trace, under its name.
fn default_path(trace: &Path) -> PathBuf {
    if trace.extension().is_some_and(|extension| extension == "trace") {
        return trace.with_extension("html");
    }
    let mut name = OsString::from(trace);
    name.push(".html");
    name.into()
}

/// Gives the page to the desktop, and does not wait for the browser.
fn open_page(path: &Path) -> Result<(), Failure> {
    let mut opener = Command::new(OPENER);
    // A name that begins with a dash is no option.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let opened = opener.arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let advice = || {
        let path = shell_quoted(&path.display().to_string());
        format!("the page is written, but {OPENER} did not open it: give {path} to a browser")
    };
    let status = opened.with_context(advice).map_err(|it| Failure::new(ExitCode::Failure, it))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::new(ExitCode::Failure, anyhow!("{} ({status})", advice()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_lies_beside_its_trace() {
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
