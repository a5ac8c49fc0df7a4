//! One page of HTML with all samples, for a browser: flame graph, time line, functions, spans.
//!
//! # Invariants
//! - The page loads nothing: its policy forbids it. Script and style are in it, and no others run.
//! - No text of a trace is markup: all of it is in one block of base64, which the script reads as data.
//! - Weights add up to those of the trace, also where samples had to be merged.
//! - Memory is that of [`ENTRIES_MAX`] samples of each mode, and of the distinct stacks of each thread and
//!   names.

mod columns;
mod entries;
mod gather;
mod head;
mod stacks;

use std::io::Write;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use sha2::{Digest, Sha256};

use super::error::ViewError;
use super::mode::Mode;
use super::profile::Profile;
use super::recording::Recording;
use super::selection::{Selected, Selection};
use crate::trace::LazyTrace;
use columns::Columns;
use gather::{Gathered, ModeEntries};

/// Most samples of a mode that are kept one by one; of more, neighbours of one stack are merged. Where stacks
/// are nearly as many, there are up to twice as many samples as stacks.
pub const ENTRIES_MAX: u64 = 1_000_000;
/// Most contexts that are told apart, the heaviest.
pub const CONTEXTS_MAX: usize = 1 << 16;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// The script, in parts that each are about one thing.
const SCRIPT: [&str; 8] = [
    include_str!("trace.js"),
    include_str!("tree.js"),
    include_str!("state.js"),
    include_str!("colors.js"),
    include_str!("flame.js"),
    include_str!("timeline.js"),
    include_str!("tables.js"),
    include_str!("page.js"),
];

/// The modes that a page of this selection has: those that were recorded, or the one that is asked for.
pub fn modes(trace: &LazyTrace, selection: &Selection) -> Vec<Mode> {
    let recording = Recording::of(trace);
    let waits = !selection.states.is_empty() || !selection.calls.is_empty();
    match selection.mode {
        Some(mode) => vec![mode],
        None if !recording.has_wall() => vec![Mode::Cpu],
        None if waits => vec![Mode::Wall],
        None => vec![Mode::Wall, Mode::Cpu],
    }
}

/// How a page is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageOptions {
    /// Leave out threads that only wait for work; they are folded otherwise.
    pub no_idle: bool,
    /// Most samples of a mode that are kept one by one: [`ENTRIES_MAX`].
    pub entries_max: u64,
    /// Most contexts that are told apart, the heaviest: [`CONTEXTS_MAX`].
    pub contexts_max: usize,
}

impl Default for PageOptions {
    fn default() -> Self {
        Self { no_idle: false, entries_max: ENTRIES_MAX, contexts_max: CONTEXTS_MAX }
    }
}

/// Writes the page of what is selected, of each mode that it shows; each profile was loaded from that. Says
/// what its reader should know of it.
///
/// # Errors
/// Those of reading and of writing.
pub fn write(
    trace: &LazyTrace,
    sides: &[(&Selected, &Profile)],
    options: &PageOptions,
    out: &mut dyn Write,
) -> Result<Vec<String>, ViewError> {
    let gathered = Gathered::new(trace, sides, options)?;
    let mut columns = Columns::default();
    let tables = stacks::Tables::new(&gathered, sides.first().map(|(_, profile)| *profile));
    tables.write(&mut columns);
    gathered.write(&mut columns);
    let head = head::head(trace, sides, (&gathered, &tables), &columns)?;
    let script = SCRIPT.concat();
    for part in parts(PAGE) {
        match part {
            Part::Text(text) => out.write_all(text.as_bytes())?,
            Part::Policy => write!(out, "{}", policy(&script))?,
            Part::Style => out.write_all(STYLE.as_bytes())?,
            Part::Script => out.write_all(script.as_bytes())?,
            Part::Trace => write_packed(&head, &columns, out)?,
        }
    }
    let excess = gathered.modes.iter().filter_map(ModeEntries::excess);
    Ok(excess.map(|excess| format!("the page has {excess}")).collect())
}

/// Writes the length of the head, the head and the columns: deflated, in base64.
fn write_packed(
    head: &serde_json::Value,
    columns: &Columns,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    let head = head.to_string();
    let encoded = EncoderWriter::new(out, &BASE64_STANDARD);
    let mut packed = DeflateEncoder::new(encoded, Compression::default());
    let length = u32::try_from(head.len()).unwrap_or(u32::MAX);
    packed.write_all(&length.to_le_bytes())?;
    packed.write_all(head.as_bytes())?;
    columns.write(&mut packed)?;
    packed.finish()?.finish()?;
    Ok(())
}

/// Nothing is loaded or sent, and no script and style but those of the page itself apply.
fn policy(script: &str) -> String {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
    let (script, style) = (hash(script), hash(STYLE));
    format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; \
         base-uri 'none'; form-action 'none'"
    )
}

/// What the page is made of.
enum Part<'a> {
    Text(&'a str),
    Policy,
    Style,
    Script,
    Trace,
}

/// The parts of the page in their order.
fn parts(page: &str) -> impl Iterator<Item = Part<'_>> {
    // A text between two marks begins with the name of the first.
    page.split("<?")
        .flat_map(|text| match text.split_once("?>") {
            Some(("policy", rest)) => [Some(Part::Policy), Some(Part::Text(rest))],
            Some(("style", rest)) => [Some(Part::Style), Some(Part::Text(rest))],
            Some(("script", rest)) => [Some(Part::Script), Some(Part::Text(rest))],
            Some(("trace", rest)) => [Some(Part::Trace), Some(Part::Text(rest))],
            _ => [Some(Part::Text(text)), None],
        })
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_of_its_parts_once() {
        let count = |is: fn(&Part<'_>) -> bool| parts(PAGE).filter(is).count();
        assert_eq!(count(|part| matches!(part, Part::Policy)), 1);
        assert_eq!(count(|part| matches!(part, Part::Style)), 1);
        assert_eq!(count(|part| matches!(part, Part::Script)), 1);
        assert_eq!(count(|part| matches!(part, Part::Trace)), 1);
        let text: usize =
            parts(PAGE).map(|part| if let Part::Text(text) = part { text.len() } else { 0 }).sum();
        let marks = "<?policy?><?style?><?script?><?trace?>".len();
        assert_eq!(text + marks, PAGE.len());
    }

    /// What ends a script or a style ends it wherever it stands.
    #[test]
    fn script_and_style_do_not_end_themselves() {
        for text in SCRIPT.iter().chain([&STYLE]) {
            let text = text.to_ascii_lowercase();
            assert!(!text.contains("</") && !text.contains("<!--"), "{text}");
        }
    }

    #[test]
    fn the_policy_has_the_hashes_of_what_is_there() {
        let policy = policy("");
        // The SHA-256 of nothing, a known vector.
        assert!(
            policy.contains("'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"));
    }
}
