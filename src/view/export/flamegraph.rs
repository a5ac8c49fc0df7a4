//! Flame graphs: SVG pictures of folded stacks that can be searched and zoomed in a browser. This
//! is the only user of inferno.
//!
//! # Invariants
//! - Equal profiles give equal files: colours depend on names only.
//! - Widths add up to the weight of all samples, except those of omitted threads. A frame below a
//!   ten-thousandth of the total is not drawn; its caller covers its width.

use std::collections::BTreeMap;
use std::io::{self, Write};

use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::{self, Options, TextTruncateDirection};

use super::{ExportOptions, folded, title};
use crate::trace::RunState;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::mode::Mode;

/// The colours of time in which threads did not run, as in the HTML page. Functions next to them
/// have pale colours.
const STATES: [(RunState, &str, Color); 4] = [
    (RunState::Runnable, "orange", Color { r: 237, g: 160, b: 28 }),
    (RunState::Sleeping, "blue", Color { r: 130, g: 175, b: 230 }),
    (RunState::Disk, "red", Color { r: 225, g: 80, b: 55 }),
    (RunState::Stopped, "grey", Color { r: 165, g: 172, b: 180 }),
];
/// The colour of a state that this version does not know.
const OTHER: Color = Color { r: 215, g: 215, b: 215 };
/// The placeholders for unknown frames, as in [`crate::view::profile::step_names::StepNames`].
const MARKS: [&str; 4] = ["[truncated]", "[stack dropped]", "[no stack]", "[unknown]"];

/// Draws all stacks.
pub(super) fn write(
    profile: &Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let lines = folded::lines(profile, options);
    let (title, details) = (title::title(profile), title::details(profile));
    if lines.values().all(|weight| *weight == 0) {
        return write_empty(&title, out);
    }
    let stacks: Vec<(&str, u64)> = lines.iter().map(|(line, weight)| (&**line, *weight)).collect();
    let counted = stacks.into_iter().map(|(stack, weight)| (stack, weight.to_string())).collect();
    let subtitle = with_legend(profile.mode, details);
    draw(counted, colors(profile, &lines), [&title, &subtitle, unit(profile.mode)], out)
}

/// Draws stacks, each with its weight, or with its weights before and after. In the latter case
/// colours show the change, and widths the weights after.
fn draw(
    mut stacks: Vec<(&str, String)>,
    mut colors: PaletteMap,
    [title, subtitle, unit]: [&str; 3],
    out: &mut dyn Write,
) -> io::Result<()> {
    // The stacks are sorted by frames. Sorted as lines, `f(int)` would come between `f` and `f;g`,
    // and would be drawn there.
    stacks.sort_by(|(one, _), (other, _)| one.split(';').cmp(other.split(';')));
    let lines: Vec<String> =
        stacks.into_iter().map(|(stack, counts)| drawable(&format!("{stack} {counts}"))).collect();
    let mut drawn = Options::default();
    drawn.title = drawable(title);
    drawn.subtitle = Some(drawable(subtitle));
    drawn.count_name = unit.to_owned();
    drawn.deterministic = true;
    drawn.palette_map = Some(&mut colors);
    drawn.text_truncate_direction = TextTruncateDirection::Right;
    // inferno keeps the order of a flame chart, which it reads from the last line to the first.
    drawn.flame_chart = true;
    flamegraph::from_lines(&mut drawn, lines.iter().rev().map(String::as_str), &mut *out)?;
    writeln!(out)
}

/// Draws stacks with their weights before and after.
pub(in crate::view) fn draw_changes(
    stacks: Vec<(&str, String)>,
    texts: [&str; 3],
    out: &mut dyn Write,
) -> io::Result<()> {
    draw(stacks, PaletteMap::default(), texts, out)
}

/// Returns the unit of widths.
pub(in crate::view) fn unit(mode: Mode) -> &'static str {
    match mode {
        Mode::Cpu => "periods",
        Mode::Wall => "µs",
    }
}

fn with_legend(mode: Mode, details: String) -> String {
    if mode == Mode::Cpu {
        return details;
    }
    let states = STATES.map(|(state, color, _)| format!("{color} {}", state.name()));
    format!("{details} ({})", states.join(", "))
}

fn colors(profile: &Profile, lines: &BTreeMap<String, u64>) -> PaletteMap {
    let mut colors = PaletteMap::default();
    if profile.mode == Mode::Wall {
        // Functions come first: the states are among these frames and overwrite their colours
        // below.
        for frame in lines.keys().flat_map(|stack| stack.split(';')).map(drawable) {
            colors.insert(frame.as_str(), pale(&frame));
        }
    }
    for mark in MARKS {
        colors.insert(mark, OTHER);
    }
    for (wait, name) in profile.waits.iter() {
        let known = STATES.iter().find(|(state, ..)| *state as u8 == wait.state);
        colors.insert(drawable(&folded::frame(name)), known.map_or(OTHER, |(.., color)| *color));
    }
    colors
}

/// Returns the colour of a function next to states. It depends only on the name.
fn pale(name: &str) -> Color {
    let hash = name
        .bytes()
        .fold(2_166_136_261_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    let [_, one, other, third] = (hash ^ hash >> 15).to_le_bytes();
    Color { r: 244 + third % 10, g: 206 + one % 32, b: 168 + other % 36 }
}

/// Replaces the characters that XML cannot represent and that [`crate::view::text::escape`] leaves.
fn drawable(text: &str) -> String {
    text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

/// Writes a picture that says that there is nothing to draw. inferno would fail.
fn write_empty(title: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut title = drawable(title);
    for (character, written) in [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;")] {
        title = title.replace(character, written);
    }
    writeln!(
        out,
        "<?xml version=\"1.0\" standalone=\"no\"?>\n\
         <svg version=\"1.1\" width=\"1200\" height=\"60\" xmlns=\"http://www.w3.org/2000/svg\">\n\
         <text x=\"600\" y=\"36\" text-anchor=\"middle\" font-family=\"monospace\">\
         {title}: no samples</text>\n</svg>"
    )
}
