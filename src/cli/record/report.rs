//! The closing report of a recording, on the standard error.
//!
//! # Invariants
//! - On a terminal, lines are wrapped to its width, and the last ones say what is hot and what to
//!   do next.

use std::io::{self, IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use crate::cli::color::{Color, error_style};
use crate::cli::input;
use crate::proc;
use crate::record::Summary;
use crate::trace::LazyTrace;
use crate::view::text::escape::{escaped, shell_quoted};
use crate::view::{self, Selection, TextStyle, print::hot_functions};

/// The labels of the lines that follow those of the recorder.
const OWN_LABELS: [&str; 3] = ["hot", "next", "command"];

/// Writes the report, in all detail if requested.
pub(super) fn write(summary: &Summary, has_details: bool) {
    let style = error_style(Color::Auto);
    let mut lines = if has_details { &summary.text } else { &summary.brief }.clone();
    if let Some(status) = summary.command_status {
        lines.push(("command".to_owned(), ended(status)));
    }
    if let Some(output) = summary.output.as_ref().filter(|_| summary.samples > 0) {
        let hot = io::stderr().is_terminal().then(|| hot(output, &style)).flatten();
        lines.extend(hot.map(|text| ("hot".to_owned(), text)));
        let output = shell_quoted(&output.display().to_string());
        lines.push(("next".to_owned(), format!("traceprof print {output}")));
        lines.push((String::new(), format!("traceprof view --open {output}")));
    }
    // A closed standard error leaves nobody to tell; the trace is written anyway.
    let _ = list(&lines, &style, &mut io::stderr().lock());
}

/// Returns the heaviest functions of the trace in a line.
fn hot(output: &Path, style: &TextStyle) -> Option<String> {
    let selection = Selection::default();
    input::limit_memory(output);
    // The report goes without the line if the trace cannot be read now.
    let mut trace = LazyTrace::open(output).ok()?;
    input::show(&mut trace, &selection);
    let selected = input::select(&trace, &selection).ok()?;
    let profile = view::load(&trace, &selected).ok()?;
    hot_functions::line(&profile, style)
}

/// Writes labels and values.
pub(super) fn list(
    lines: &[(String, String)],
    style: &TextStyle,
    out: &mut dyn Write,
) -> io::Result<()> {
    let labels = lines.iter().map(|(label, _)| label.as_str()).chain(OWN_LABELS);
    let width = labels.map(|label| label.chars().count()).max().unwrap_or(0);
    for (label, value) in lines {
        let value = escaped(value);
        // What may be copied stays in one piece.
        let text = match label.as_str() {
            "" | "next" | "written" => value.into_owned(),
            _ => style.wrapped(&value, width + 2).join(&format!("\n{:width$}  ", "")),
        };
        writeln!(out, "{:width$}  {text}", escaped(label))?;
    }
    Ok(())
}

/// Returns how a program ended.
pub(super) fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("killed by {}", proc::signal_name(signal)),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &str, text: &str) -> (String, String) {
        (label.to_owned(), text.to_owned())
    }

    #[test]
    fn lines_are_aligned_and_only_a_terminal_wraps_them() {
        let lines = [line("engine", "perf"), line("lost", "1 (no slot), 2 (ring full)")];
        let text = |style: TextStyle| {
            let mut text = Vec::new();
            list(&lines, &style, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let plain = "engine   perf\nlost     1 (no slot), 2 (ring full)\n";
        assert_eq!(text(TextStyle::default()), plain);
        let narrow = "engine   perf\nlost     1 (no slot), 2\n         (ring full)\n";
        assert_eq!(text(TextStyle { width: Some(25), ..TextStyle::default() }), narrow);
    }

    #[test]
    fn what_may_be_copied_is_not_wrapped() {
        let next = "traceprof print /a/directory/with/a/long/name/x.trace";
        let mut text = Vec::new();
        let style = TextStyle { width: Some(30), ..TextStyle::default() };
        list(&[line("next", next)], &style, &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), format!("next     {next}\n"));
    }

    #[test]
    fn the_end_of_a_program_names_code_or_signal() {
        assert_eq!(ended(ExitStatus::from_raw(3 << 8)), "exited with code 3");
        assert_eq!(ended(ExitStatus::from_raw(9)), "killed by SIGKILL");
    }
}
