//! A comparison as one JSON object, with noise included and marked. Shares are percentages, changes
//! are percentage points.

use std::io::{self, Write};

use serde_json::{Value as Json, json};

use super::estimate::{BLOCKS, ShareChange};
use super::side::DiffSide;
use super::{Comparison, DiffRow, DiffRows, header};
use crate::view::text::escape::json_escaped;

/// Writes the object.
pub(super) fn write(comparison: &Comparison<'_>, out: &mut dyn Write) -> io::Result<()> {
    let Comparison { before, after, names, functions, paths } = comparison;
    let rebuilt = header::rebuilt(before, after);
    let rebuilt = rebuilt
        .iter()
        .map(|(name, [before, after])| json!({ "module": name, "before": before, "after": after }));
    let function = |of: usize| {
        let function = &names.functions[of];
        json!({ "function": function.name, "module": function.module })
    };
    let stack = |of: usize| {
        let (process, stack): (Vec<_>, Vec<_>) =
            names.stack(of).into_iter().partition(|it| it.is_process);
        let stack = stack.iter().map(|it| json!({ "function": it.name, "module": it.module }));
        let mut json = json!({ "stack": stack.collect::<Vec<_>>() });
        if let Some(process) = process.first() {
            json["process"] = json!(process.name);
        }
        json
    };
    let all = json!({
        "mode": before.mode().name(),
        "before": of_side(before),
        "after": of_side(after),
        "seconds_per_second": header::rate(before, after).map(|rate| of_change(&rate, 1.0)),
        "rebuilt": rebuilt.collect::<Vec<_>>(),
        "confidence_percent": 95,
        "blocks": BLOCKS,
        "functions": of_rows(functions, &function),
        "light_functions": of_light(functions),
        "paths": paths.as_ref().map(|paths| of_rows(paths, &stack)),
        "light_paths": paths.as_ref().map(of_light),
    });
    writeln!(out, "{}", json_escaped(&all.to_string()))
}

fn of_side(side: &DiffSide) -> Json {
    let weight = side.whole.series.sum();
    json!({
        "name": side.name,
        "selection": side.profile.recording.window,
        "length_ns": side.length_ns,
        "samples": side.samples(),
        "threads": side.threads,
        "processes": side.processes.len(),
        "weight": weight,
        "weight_seconds": side.weight_s().map(|weight_s| weight as f64 * weight_s),
    })
}

fn of_rows(DiffRows { rows, .. }: &DiffRows, name: &dyn Fn(usize) -> Json) -> Json {
    let row = |row: &DiffRow| {
        let mut json = name(row.of);
        json["noise"] = json!(row.is_noise());
        json["total"] = of_change(&row.total, 100.0);
        json["self"] = of_change(&row.own, 100.0);
        json
    };
    Json::Array(rows.iter().map(row).collect())
}

/// Returns the sum of the rows that are too light to be listed.
fn of_light(DiffRows { light, .. }: &DiffRows) -> Json {
    let (before, after) = (light.before * 100.0, light.after * 100.0);
    json!({ "count": light.rows, "self_before": before, "self_after": after })
}

fn of_change(change: &ShareChange, factor: f64) -> Json {
    let ShareChange { before, after, margin, chance, noise } = change;
    let difference = change.difference();
    json!({
        "before": before * factor,
        "after": after * factor,
        "change": difference * factor,
        "low": (difference - margin) * factor,
        "high": (difference + margin) * factor,
        "p": chance,
        "noise": noise,
    })
}
