//! Notes for the user, on the standard error.

use std::io::Write;

use super::progress_line;
use crate::view::text::escape::escaped;

/// Prints a note.
pub(super) fn note(text: &str) {
    // A closed standard error leaves nobody to tell.
    let _ = progress_line::aside(|| writeln!(std::io::stderr(), "note: {}", escaped(text)));
}
