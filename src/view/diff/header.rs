//! The header of a comparison: both sides, and the time that each used.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use super::Comparison;
use super::estimate::ShareChange;
use super::side::DiffSide;
use crate::elf::build_id_text;
use crate::view::recording::mode::Mode;
use crate::view::text::escape::escaped;
use crate::view::text::number::counted;

/// Maximum number of modules that a line names.
const NAMED_MAX: usize = 8;

/// Writes the header of a table.
pub(super) fn write(comparison: &Comparison<'_>, out: &mut dyn Write) -> io::Result<()> {
    let sides = [("before", comparison.before), ("after", comparison.after)];
    for (label, side) in sides {
        writeln!(out, "{label:9} {}", escaped(&text(side)))?;
    }
    let label = match comparison.before.mode() {
        Mode::Cpu => "cpu time",
        Mode::Wall => "wall time",
    };
    if let Some(rate) = rate(comparison.before, comparison.after) {
        let ShareChange { before, after, margin, noise, .. } = rate;
        let change = match noise {
            true => "within noise".to_owned(),
            false => format!("{:+.3} ± {margin:.3}", rate.difference()),
        };
        writeln!(out, "{label:9} {before:.3} -> {after:.3} s per second: {change}")?;
    }
    let rebuilt = rebuilt(comparison.before, comparison.after);
    if !rebuilt.is_empty() {
        let named = rebuilt.iter().take(NAMED_MAX).map(|(name, [before, after])| {
            format!("{} ({} -> {})", escaped(name), short(before), short(after))
        });
        let named = named.collect::<Vec<_>>().join(", ");
        let more = match rebuilt.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {}", counted(more as u64, "other")),
        };
        writeln!(out, "rebuilt   {named}{more}")?;
    }
    for (label, _) in sides.into_iter().filter(|(_, side)| side.whole.blocks() < 2.0) {
        writeln!(
            out,
            "note      {label}: too short to see how samples differ over time; they count as \
             independent"
        )?;
    }
    Ok(())
}

fn text(side: &DiffSide) -> String {
    let window = side.profile.recording.window.as_ref();
    let window = window.map_or_else(String::new, |window| format!(", {window}"));
    let mut text = format!("{}{window}", side.name);
    text.push_str(&format!(": {:.3} s", side.length_ns as f64 / 1e9));
    let weight = side.whole.series.sum();
    let unit = if side.mode() == Mode::Cpu { "CPU time" } else { "all threads' time" };
    match side.weight_s() {
        Some(weight_s) => text.push_str(&format!(", {:.3} s of {unit}", weight as f64 * weight_s)),
        None => text.push_str(&format!(", {}", counted(weight, "period"))),
    }
    let (samples, threads) = (side.samples(), side.threads as u64);
    let of = match side.processes.len() {
        0 | 1 => String::new(),
        several => format!(" of {several} processes"),
    };
    format!("{text}, {} in {}{of}", counted(samples, "sample"), counted(threads, "thread"))
}

/// Returns the change of the time used per second of the recordings, in seconds.
pub(super) fn rate(before: &DiffSide, after: &DiffSide) -> Option<ShareChange> {
    let of = |side: &DiffSide| Some(side.whole.mean().times(side.per_second()?));
    Some(ShareChange::new(of(before)?, of(after)?))
}

/// Returns the build ids of modules with the same name on both sides and no build id in common.
pub(super) fn rebuilt(before: &DiffSide, after: &DiffSide) -> Vec<(String, [String; 2])> {
    let [before, after] = [before, after].map(builds);
    let both = before.into_iter().filter_map(|(name, old)| {
        let new = after.get(name)?;
        let first = |ids: &BTreeSet<String>| ids.first().cloned();
        let changed = old.is_disjoint(new);
        changed.then_some(())?;
        Some((name.to_owned(), [first(&old)?, first(new)?]))
    });
    both.collect()
}

fn builds(side: &DiffSide) -> BTreeMap<&str, BTreeSet<String>> {
    let mut builds: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for module in side.profile.modules.iter().filter(|module| !module.build_id.is_empty()) {
        let name = module.path.rsplit('/').next().unwrap_or(&module.path);
        builds.entry(name).or_default().insert(build_id_text(&module.build_id));
    }
    builds
}

/// Returns the first digits of a build id, enough to identify it.
fn short(build_id: &str) -> &str {
    build_id.get(..12).unwrap_or(build_id)
}
