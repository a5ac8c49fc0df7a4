//! A comparison as lines of text: the largest changes, and one line for the noise.

use std::io::{self, Write};

use super::estimate::ShareChange;
use super::paths::DiffFunction;
use super::{Comparison, DiffRow, DiffRows, header};
use crate::view::text::escape::escaped;
use crate::view::text::number::counted;

/// Writes the header and the tables.
pub(super) fn write(
    comparison: &Comparison<'_>,
    top: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    header::write(comparison, out)?;
    writeln!(out)?;
    let names = comparison.names;
    let function = |row: &DiffRow| function(&names.functions[row.of]);
    write_rows(&comparison.functions, ("function", &function), top, out)?;
    if let Some(paths) = &comparison.paths {
        writeln!(out)?;
        write_rows(paths, ("path", &|row| path(&names.stack(row.of))), top, out)?;
    }
    Ok(())
}

fn write_rows(
    DiffRows { rows, light }: &DiffRows,
    (noun, name): (&str, &dyn Fn(&DiffRow) -> String),
    top: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (changed, noise) = rows.split_at(rows.partition_point(|row| !row.is_noise()));
    let (leading, reported): (Vec<&DiffRow>, Vec<&DiffRow>) =
        changed.iter().partition(|row| row.leads);
    let (shown, hidden) = reported.split_at(reported.len().min(top));
    if !shown.is_empty() {
        writeln!(out, "{:>19}{:>33}", "total %", "self %")?;
        let columns = " before   after  change  ± 95 %";
        writeln!(out, "{columns}  {columns}  {noun}")?;
    }
    for row in shown {
        writeln!(out, "{}  {}  {}", columns(&row.total), columns(&row.own), name(row))?;
    }
    if !hidden.is_empty() {
        let most = hidden.first().map_or(0.0, |row| row.rank()) * 100.0;
        let more = counted(hidden.len() as u64, noun);
        writeln!(out, "... {more} also changed, by up to {most:.2} points")?;
    }
    if !leading.is_empty() {
        let some = counted(leading.len() as u64, noun);
        writeln!(out, "... {some} changed only through a callee")?;
    }
    let quiet = counted(noise.len() as u64 + light.rows, noun);
    let sum = |of: fn(&ShareChange) -> f64| noise.iter().map(|row| of(&row.own)).sum::<f64>();
    let before = (sum(|change| change.before) + light.before) * 100.0;
    let after = (sum(|change| change.after) + light.after) * 100.0;
    let none = if reported.is_empty() { "no change beyond noise: " } else { "... " };
    writeln!(
        out,
        "{none}{quiet} within noise, with self {before:.2} % before and {after:.2} % after"
    )
}

fn columns(change: &ShareChange) -> String {
    let ShareChange { before, after, margin, noise, .. } = change;
    let percent = |share: f64| share * 100.0;
    let (before, after) = (percent(*before), percent(*after));
    match noise {
        true => format!("{before:7.2} {after:7.2}       ~       ~"),
        false => {
            let (change, margin) = (percent(change.difference()), percent(*margin));
            format!("{before:7.2} {after:7.2} {change:+7.2} {margin:7.2}")
        }
    }
}

/// Returns the text of a function and its module.
fn function(function: &DiffFunction) -> String {
    match function.module.is_empty() {
        true => named(&function.name),
        false => format!("{} ({})", named(&function.name), escaped(&function.module)),
    }
}

fn path(stack: &[&DiffFunction]) -> String {
    stack.iter().map(|function| named(&function.name)).collect::<Vec<_>>().join(";")
}

fn named(name: &str) -> String {
    if name.is_empty() { "[unnamed]".to_owned() } else { escaped(name).into_owned() }
}
