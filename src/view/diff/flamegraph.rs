//! A differential flame graph: the stacks after, coloured by the change.
//!
//! # Invariants
//! - Widths are the weights after, and add up to all of them. A stack that no longer exists has no
//!   width.
//! - Weights before are scaled to the sum after, so colours show changed shares and not the lengths
//!   of the recordings.
//! - A path has a colour only if its self time changed by more than noise.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};

use super::Comparison;
use super::side::DiffSide;
use crate::view::export::flamegraph::{draw_changes, unit};
use crate::view::export::folded::frame;
use crate::view::text::escape::escaped;
use crate::view::text::number::counted;

/// Writes the picture.
pub(super) fn write(comparison: &Comparison<'_>, out: &mut dyn Write) -> io::Result<()> {
    let sides = [comparison.before, comparison.after];
    let [was, is] = sides.map(|side| side.whole.series.sum());
    let scale = if was > 0 { is as f64 / was as f64 } else { 0.0 };
    let rows = comparison.paths.iter().flat_map(|paths| &paths.rows);
    let reported: HashSet<usize> = rows.filter(|row| !row.own.noise).map(|row| row.of).collect();
    let names = comparison.names;
    let mut stacks: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    let (mut changed, mut gone) = (0, 0);
    for path in names.all() {
        let [old, new] = names.own(path).map(|series| series.sum());
        let is_reported = reported.contains(&path);
        if new == 0 {
            gone += u64::from(is_reported);
            continue;
        }
        changed += u64::from(is_reported);
        let frames = names.stack(path).into_iter().map(|it| frame(&escaped(&it.name)));
        let counts = stacks.entry(frames.collect::<Vec<_>>().join(";")).or_default();
        let old = if is_reported { (old as f64 * scale).round() as u64 } else { new };
        counts[0] = counts[0].saturating_add(old);
        counts[1] = counts[1].saturating_add(new);
    }
    let lines: Vec<(&str, String)> =
        stacks.iter().map(|(stack, [old, new])| (stack.as_str(), format!("{old} {new}"))).collect();
    let text = |side: &DiffSide| escaped(&side.name).into_owned();
    let title = format!("{} against {}", text(comparison.after), text(comparison.before));
    let subtitle = subtitle(changed, gone);
    draw_changes(lines, [&title, &subtitle, unit(comparison.after.mode())], out)
}

fn subtitle(changed: u64, gone: u64) -> String {
    let mut text = match changed {
        0 => "no path changed its self time by more than noise".to_owned(),
        _ => format!(
            "red: more self time, blue: less; {} changed by more than noise",
            counted(changed, "path")
        ),
    };
    if gone > 0 {
        text.push_str(&format!("; {} gone, not drawn", counted(gone, "path")));
    }
    text
}
