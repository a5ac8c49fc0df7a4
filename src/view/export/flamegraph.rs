//! Flame graphs: SVG pictures of folded stacks that can be searched and zoomed in a browser. This
//! is the only user of inferno.
//!
//! # Invariants
//! - Equal profiles give equal files: colours depend on names only.
//! - Widths add up to the weight of all samples, except those of omitted threads. A frame below a
//!   ten-thousandth of the total is not drawn; its caller covers its width.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::{self, Options, TextTruncateDirection};

use super::{ExportOptions, folded, title};
use crate::trace::{Language, LocationId, RunState};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::step_names::{MARKS, StepNames};
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
/// The colours of languages in profiles of several, as in the HTML page: the darkest one of each.
/// Names spread them towards white.
const LANGUAGES: [(Language, &str, Color); 10] = [
    (Language::Native, "salmon", Color { r: 232, g: 150, b: 104 }),
    (Language::Kernel, "violet", Color { r: 180, g: 154, b: 216 }),
    (Language::Python, "yellow", Color { r: 236, g: 216, b: 96 }),
    (Language::Java, "teal", Color { r: 112, g: 190, b: 184 }),
    (Language::JavaScript, "pink", Color { r: 224, g: 140, b: 176 }),
    (Language::Php, "blue", Color { r: 128, g: 156, b: 216 }),
    (Language::Ruby, "crimson", Color { r: 214, g: 92, b: 112 }),
    (Language::Perl, "slate", Color { r: 124, g: 138, b: 158 }),
    (Language::Lua, "indigo", Color { r: 108, g: 112, b: 196 }),
    (Language::Other, "beige", Color { r: 204, g: 192, b: 164 }),
];
/// The colour of a state that this version does not know.
const OTHER: Color = Color { r: 215, g: 215, b: 215 };
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
    let subtitle = with_legend(profile, details);
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

fn with_legend(profile: &Profile, details: String) -> String {
    let mut colors = Vec::new();
    if has_languages(profile) {
        let present: BTreeSet<_> = profile.locations.iter().map(|it| it.kind.language()).collect();
        let present = LANGUAGES.iter().filter(|(language, ..)| present.contains(language));
        colors.extend(present.map(|(language, color, _)| format!("{color} {}", language.name())));
    }
    if profile.mode == Mode::Wall {
        let states = STATES.iter();
        colors.extend(states.map(|(state, color, _)| format!("{color} {}", state.name())));
    }
    match colors.is_empty() {
        true => details,
        false => format!("{details} ({})", colors.join(", ")),
    }
}

/// Returns whether there is code of more than one language, so that colours show languages.
fn has_languages(profile: &Profile) -> bool {
    profile.locations.iter().any(|it| it.kind.language() != Language::Native)
}

fn colors(profile: &Profile, lines: &BTreeMap<String, u64>) -> PaletteMap {
    let mut colors = PaletteMap::default();
    if has_languages(profile) {
        let names = StepNames::of_functions(profile);
        // Of one name in two languages, that of the managed one is the rarer.
        let mut by_language: Vec<_> = profile.locations.iter().zip(0..).collect();
        by_language.sort_by_key(|(location, id)| (location.kind.language(), *id));
        for (location, id) in by_language {
            let step = StackStep::Frame(names.id(LocationId(id)));
            let frame = drawable(&folded::frame(names.text(step)));
            let color = of_language(location.kind.language(), &frame);
            colors.insert(frame, color);
        }
    } else if profile.mode == Mode::Wall {
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
    let [_, one, other, third] = hash(name).to_le_bytes();
    Color { r: 244 + third % 10, g: 206 + one % 32, b: 168 + other % 36 }
}

/// Returns the colour of a function in a language.
fn of_language(language: Language, name: &str) -> Color {
    let known = LANGUAGES.iter().find(|(known, ..)| *known == language);
    let Color { r, g, b } = known.map_or(OTHER, |(.., color)| *color);
    // Up to a third of the way to white.
    let lightness = hash(name) % 86;
    let lighter = |part: u8| part + ((255 - u32::from(part)) * lightness / 255) as u8;
    Color { r: lighter(r), g: lighter(g), b: lighter(b) }
}

fn hash(name: &str) -> u32 {
    let hash = name
        .bytes()
        .fold(2_166_136_261_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    hash ^ hash >> 15
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
