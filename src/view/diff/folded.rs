//! Two columns: `root;caller;leaf BEFORE AFTER`, sorted. `difffolded.pl` writes such lines, and
//! `flamegraph.pl` and inferno read them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::paths::Paths;
use super::side::DiffSide;
use crate::view::export::folded::frame;
use crate::view::text::escape::escaped;

/// Writes all stacks of both sides, each with its weights.
pub(super) fn write(paths: &Paths, sides: [&DiffSide; 2], out: &mut dyn Write) -> io::Result<()> {
    let factor = factors(sides);
    let mut lines: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for path in paths.all() {
        let sums = paths.own(path).map(|series| series.sum());
        if sums == [0, 0] {
            continue;
        }
        let frames = paths.stack(path).into_iter().map(|it| frame(&escaped(&it.name)));
        let line = lines.entry(frames.collect::<Vec<_>>().join(";")).or_default();
        for ((line, sum), factor) in line.iter_mut().zip(sums).zip(factor) {
            *line = line.saturating_add((sum as f64 * factor).round() as u64);
        }
    }
    for (stack, [before, after]) in lines {
        writeln!(out, "{stack} {before} {after}")?;
    }
    Ok(())
}

/// Returns the factors of the weights. Weights are unchanged if both sides have the same unit.
/// Otherwise they become microseconds.
fn factors(sides: [&DiffSide; 2]) -> [f64; 2] {
    match sides.map(DiffSide::weight_s) {
        [Some(before_s), Some(after_s)] if before_s != after_s => [before_s * 1e6, after_s * 1e6],
        _ => [1.0, 1.0],
    }
}
