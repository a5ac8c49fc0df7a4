//! The header of the first screen: the summary, in a limited number of lines.
//!
//! # Invariants
//! - Lines about the target and about what is missing are never left out. Lines about the method
//!   are, if there are too many.

use std::io::{self, Write};

use crate::view::print::summary;
use crate::view::profile::sample_totals::SampleTotals;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::text::text_style::TextStyle;

/// The labels of lines that are left out if there are too many lines, the first one first.
const DETAILS: [&str; 6] = ["target", "sampling", "rooted", "names", "languages", "executed"];

/// Writes the header in at most `most` lines, and returns their number. A table names the
/// processes.
pub(super) fn write(
    recording: &RecordingInfo,
    totals: &SampleTotals,
    most: usize,
    (style, out): (&TextStyle, &mut dyn Write),
) -> io::Result<usize> {
    let mut lines = summary::lines_without_process_names(recording, totals, style);
    let count = |lines: &[(&str, String)]| -> usize {
        lines.iter().map(|(label, text)| summary::rows(label, text, style).len()).sum()
    };
    for detail in DETAILS {
        if count(&lines) <= most {
            break;
        }
        lines.retain(|(label, _)| *label != detail);
    }
    if count(&lines) > most {
        for (_, text) in &mut lines {
            *text = style.fit(text, summary::LABEL).into_owned();
        }
        lines.truncate(most);
    }
    summary::write_lines(&lines, style, out)
}
