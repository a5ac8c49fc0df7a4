//! One HTML page with all samples: flame graph, timeline, functions, spans.
//!
//! # Invariants
//! - The page loads nothing, because its content security policy forbids it. It contains its script
//!   and style, and no others run.
//! - No text of a trace is markup: all texts are in one block of base64, which the script reads as
//!   data.
//! - Weights add up to those of the trace, even if samples had to be merged.
//! - Memory grows with [`ENTRIES_MAX`] samples of each mode, the distinct stacks of each thread,
//!   and the names.

mod assembly;
mod byte_columns;
mod merged_samples;
mod page_head;
mod page_mark;
mod page_samples;
mod source_files;
mod stack_tables;

use std::io::Write;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use sha2::{Digest, Sha256};

use crate::trace::LazyTrace;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::select::error::ViewError;
use crate::view::select::selection::{Selected, Selection};
use assembly::Assembly;
use byte_columns::ByteColumns;
pub use page_mark::is_page_of;
use page_samples::{ModeSamples, PageSamples};
use stack_tables::StackTables;

/// Maximum number of separate samples of a mode. Beyond that, samples of one stack that are close
/// in time are merged.
///
/// If there are nearly as many stacks, there may be up to twice as many samples as stacks.
pub const ENTRIES_MAX: u64 = 1_000_000;
/// Maximum number of contexts. The heaviest are kept.
pub const CONTEXTS_MAX: usize = 1 << 16;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// The script, one file per topic.
const SCRIPT: [&str; 18] = [
    include_str!("trace.js"),
    include_str!("tree.js"),
    include_str!("sums.js"),
    include_str!("state.js"),
    include_str!("colors.js"),
    include_str!("frames.js"),
    include_str!("graph.js"),
    include_str!("flame.js"),
    include_str!("segments.js"),
    include_str!("chart.js"),
    include_str!("timeline.js"),
    include_str!("tree_table.js"),
    include_str!("tables.js"),
    include_str!("source.js"),
    include_str!("assembly.js"),
    include_str!("legend.js"),
    include_str!("menu.js"),
    include_str!("page.js"),
];

/// Returns the modes of the page: the mode that the user asked for, else the recorded ones.
pub fn modes(trace: &LazyTrace, selection: &Selection) -> Vec<Mode> {
    let recording = RecordingInfo::of(trace);
    let waits = !selection.states.is_empty() || !selection.calls.is_empty();
    match selection.mode {
        Some(mode) => vec![mode],
        None if !recording.has_wall() => vec![Mode::Cpu],
        None if waits => vec![Mode::Wall],
        None => vec![Mode::Wall, Mode::Cpu],
    }
}

/// The options of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageOptions<'a> {
    /// Whether threads that only wait for work are left out. Otherwise they are collapsed.
    pub no_idle: bool,
    /// Maximum number of separate samples of a mode, see [`ENTRIES_MAX`].
    pub entries_max: u64,
    /// Maximum number of contexts, see [`CONTEXTS_MAX`].
    pub contexts_max: usize,
    /// The directory with the source files to show, if any.
    pub source: Option<&'a Path>,
    /// Whether the machine code of the heaviest functions is shown.
    pub assembly: bool,
}

impl Default for PageOptions<'_> {
    fn default() -> Self {
        Self {
            no_idle: false,
            entries_max: ENTRIES_MAX,
            contexts_max: CONTEXTS_MAX,
            source: None,
            assembly: false,
        }
    }
}

/// Writes the page of the selected samples of each shown mode. Each profile was loaded from its
/// selection. Returns warnings for the user.
///
/// # Errors
/// Errors of reading and of writing.
pub fn write(
    trace: &LazyTrace,
    sides: &[(&Selected, &Profile)],
    options: &PageOptions<'_>,
    out: &mut dyn Write,
) -> Result<Vec<String>, ViewError> {
    let gathered = PageSamples::new(trace, sides, options)?;
    let mut columns = ByteColumns::default();
    // A profile of any mode has all names.
    let profile = sides.first().map(|(_, profile)| *profile);
    let assembly = profile.filter(|_| options.assembly);
    let assembly = assembly.map(|profile| Assembly::gather(&gathered, profile));
    let tables = StackTables::new(&gathered, profile, assembly.as_ref());
    tables.write(&mut columns);
    gathered.write(&mut columns);
    let mut head = page_head::head(trace, sides, (&gathered, &tables), &columns)?;
    let mut notes = Vec::new();
    if let Some(dir) = options.source {
        let files = tables.files_by_weight(&gathered);
        let texts = source_files::source_texts(dir, &files);
        if texts.is_empty() {
            notes.push(source_files::none_found(dir, &files));
        }
        head["sources"] = serde_json::json!(texts);
    }
    if let Some(assembly) = &assembly {
        notes.extend_from_slice(assembly.notes());
        head["assembly"] = assembly.json();
    }
    let script = SCRIPT.concat();
    for part in parts(PAGE) {
        match part {
            PagePart::Text(text) => out.write_all(text.as_bytes())?,
            PagePart::Mark => write!(out, "{}", page_mark::mark_of(trace.path()))?,
            PagePart::Policy => write!(out, "{}", policy(&script))?,
            PagePart::Style => out.write_all(STYLE.as_bytes())?,
            PagePart::Script => out.write_all(script.as_bytes())?,
            PagePart::Trace => write_packed(&head, &columns, out)?,
        }
    }
    let excess = gathered.modes.iter().filter_map(ModeSamples::excess);
    notes.extend(excess.map(|excess| format!("the page has {excess}")));
    Ok(notes)
}

/// Writes the length of the header, the header and the columns, deflated and in base64.
fn write_packed(
    head: &serde_json::Value,
    columns: &ByteColumns,
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

/// Returns the content security policy. The page loads and sends nothing, and only its own script
/// and style apply.
fn policy(script: &str) -> String {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
    let (script, style) = (hash(script), hash(STYLE));
    format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; \
         base-uri 'none'; form-action 'none'"
    )
}

/// A part of the page.
enum PagePart<'a> {
    Text(&'a str),
    Mark,
    Policy,
    Style,
    Script,
    Trace,
}

/// Returns the parts of the page in order.
fn parts(page: &str) -> impl Iterator<Item = PagePart<'_>> {
    // A text between two marks begins with the name of the first mark.
    page.split("<?")
        .flat_map(|text| match text.split_once("?>") {
            Some(("mark", rest)) => [Some(PagePart::Mark), Some(PagePart::Text(rest))],
            Some(("policy", rest)) => [Some(PagePart::Policy), Some(PagePart::Text(rest))],
            Some(("style", rest)) => [Some(PagePart::Style), Some(PagePart::Text(rest))],
            Some(("script", rest)) => [Some(PagePart::Script), Some(PagePart::Text(rest))],
            Some(("trace", rest)) => [Some(PagePart::Trace), Some(PagePart::Text(rest))],
            _ => [Some(PagePart::Text(text)), None],
        })
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_of_its_parts_once() {
        let count = |is: fn(&PagePart<'_>) -> bool| parts(PAGE).filter(is).count();
        assert_eq!(count(|part| matches!(part, PagePart::Mark)), 1);
        assert_eq!(count(|part| matches!(part, PagePart::Policy)), 1);
        assert_eq!(count(|part| matches!(part, PagePart::Style)), 1);
        assert_eq!(count(|part| matches!(part, PagePart::Script)), 1);
        assert_eq!(count(|part| matches!(part, PagePart::Trace)), 1);
        let text: usize = parts(PAGE)
            .map(|part| if let PagePart::Text(text) = part { text.len() } else { 0 })
            .sum();
        let marks = "<?mark?><?policy?><?style?><?script?><?trace?>".len();
        assert_eq!(text + marks, PAGE.len());
    }

    /// An end tag ends a script or a style wherever it is.
    #[test]
    fn script_and_style_do_not_end_themselves() {
        for text in SCRIPT.iter().chain([&STYLE]) {
            let text = text.to_ascii_lowercase();
            assert!(!text.contains("</") && !text.contains("<!--"), "{text}");
        }
    }

    #[test]
    fn the_policy_has_the_hashes_of_script_and_style() {
        let policy = policy("");
        // The SHA-256 of empty input, a known test vector.
        assert!(
            policy.contains("'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"));
    }
}
