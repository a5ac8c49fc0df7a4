//! What `print` shows if nothing else is asked for: one screen about any trace.
//!
//! It has the summary, the hot path, the heaviest functions, the shares of threads or processes,
//! and a line that says how to see more.
//!
//! # Invariants
//! - No trace takes more than [`LINES_MAX`] lines.

use std::io::{self, Write};

use crate::view::print::hot_path::HotPath;
use crate::view::print::options::TreeOptions;
use crate::view::print::share_table::ShareTable;
use crate::view::print::short_header;
use crate::view::print::summary_screen::TopFunctions;
use crate::view::profile::sample_totals::SampleTotals;
use crate::view::profile::thread_profile::Profile;
use crate::view::text::text_style::{Ink, TextStyle};

/// Maximum number of lines.
pub const LINES_MAX: usize = 40;
/// Maximum number of lines of the header.
const HEADER_MAX: usize = 20;
/// Maximum number of functions per list.
const FUNCTIONS_MAX: usize = 8;
/// Maximum number of lines of the table of threads.
const ROWS_MAX: usize = 8;
/// The lines at the end.
const END: usize = 2;

/// Writes the screen.
pub fn write(profile: &Profile, options: &TreeOptions, out: &mut dyn Write) -> io::Result<()> {
    let style = &options.style;
    let totals = SampleTotals::in_profile(profile);
    let used = short_header::write(&profile.recording, &totals, HEADER_MAX, (style, out))?;
    let path = HotPath::new(profile, options);
    let functions = TopFunctions::new(profile, options);
    let shares = ShareTable::new(profile, options);
    if totals.count.samples == 0 {
        return Ok(());
    }
    let room = Room::new(used, (path.len(), functions.len(), shares.len()), style);
    if room.path > 0 {
        path.write(room.path, style, out)?;
    }
    if room.functions > 0 {
        functions.write(room.functions, style, out)?;
    }
    if room.rows > 0 {
        shares.write(room.rows, style, out)?;
    }
    let one = match (shares.is_of_processes(), shares.len()) {
        (true, _) => " --process NAME: of one;",
        (false, 0) => "",
        (false, _) => " --thread NAME: of one;",
    };
    let more = format!("--tree: call trees;{one} traceprof view: a page");
    let label = style.paint(Some(Ink::Heading), "more     ");
    writeln!(out, "\n{label} {}", style.fit(&more, 10))
}

/// How many lines each part has, without its headings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    path: usize,
    functions: usize,
    rows: usize,
}

impl Room {
    /// Divides the lines below `used` ones. The parts want these numbers of lines.
    fn new(used: usize, (path, functions, rows): (usize, usize, usize), style: &TextStyle) -> Self {
        let most = Self { path, functions: functions.min(FUNCTIONS_MAX), rows: rows.min(ROWS_MAX) };
        let left = LINES_MAX.saturating_sub(used + END);
        let mut room = Self { path: 0, functions: 0, rows: 0 };
        // The parts grow in turn, so that none starves the others.
        loop {
            let before = room;
            let parts: [fn(&mut Self) -> &mut usize; 3] =
                [|it| &mut it.path, |it| &mut it.functions, |it| &mut it.rows];
            for part in parts {
                let mut more = room;
                *part(&mut more) += 1;
                let is_wanted = more.path <= most.path
                    && more.functions <= most.functions
                    && more.rows <= most.rows;
                if is_wanted && more.lines(style) <= left {
                    room = more;
                }
            }
            if before == room {
                return room;
            }
        }
    }

    /// Returns the number of lines of all parts. A part has an empty line and a heading.
    fn lines(self, style: &TextStyle) -> usize {
        let with_head = |lines: usize| if lines == 0 { 0 } else { 2 + lines };
        let lists = match self.functions {
            0 => 0,
            named => TopFunctions::lines(named, style),
        };
        with_head(self.path) + lists + with_head(self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_lines_however_long_the_header_is() {
        for width in [None, Some(40), Some(80), Some(200)] {
            let style = TextStyle { width, ..TextStyle::default() };
            for used in 3..=HEADER_MAX {
                let Room { path, functions, rows } = Room::new(used, (30, 500, 60), &style);
                let lines =
                    used + 2 + path + TopFunctions::lines(functions, &style) + 2 + rows + END;
                assert!(lines <= LINES_MAX, "{used} {path} {functions} {rows}");
                assert!(path >= 2 && functions >= 2 && rows >= 2, "{path} {functions} {rows}");
            }
        }
    }

    #[test]
    fn what_a_part_does_not_need_goes_to_the_others() {
        let style = TextStyle { width: Some(80), ..TextStyle::default() };
        let room = Room::new(10, (2, 5, 0), &style);
        assert_eq!(room, Room { path: 2, functions: 5, rows: 0 });
        let room = Room::new(12, (4, 500, 60), &style);
        assert_eq!(room, Room { path: 4, functions: 8, rows: 8 });
    }
}
