//! Compares two recordings, or two parts of one, by function and by path.
//!
//! Noise is left out; [`estimate`] explains how. It reads at most two sides, and does not match
//! renamed functions.

pub mod estimate;
mod flamegraph;
mod folded;
mod header;
mod json;
mod paths;
mod process_labels;
mod side;
mod student_t;
mod table;

use std::collections::HashMap;
use std::io::{self, Write};
use std::str::FromStr;

use estimate::{BlockWeights, ShareChange, mark_noise};
use paths::Paths;
pub use side::DiffSide;

/// Minimum number of samples on both sides together. Fewer mean nothing, whatever their difference.
///
/// Testing such rows would hide others (Bourgon, Gentleman and Huber 2010).
const SAMPLES_MIN: f64 = 10.0;

/// The format of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffFormat {
    /// Lines of text.
    Table,
    /// One JSON object.
    Json,
    /// `root;caller;leaf BEFORE AFTER`, a line per stack: the input of differential flame graphs.
    Folded,
    /// An SVG picture of the stacks after, coloured by the change.
    Flamegraph,
}

impl FromStr for DiffFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "table" => Ok(Self::Table),
            "json" => Ok(Self::Json),
            "folded" | "collapsed" => Ok(Self::Folded),
            "flamegraph" | "svg" => Ok(Self::Flamegraph),
            _ => Err("the formats are: table, json, folded, flamegraph".to_owned()),
        }
    }
}

/// The options of a written comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiffOptions {
    /// The output format.
    pub format: DiffFormat,
    /// Whether to list paths from the root too.
    pub paths: bool,
    /// Maximum number of lines of each table.
    pub top: usize,
}

/// Writes the comparison of two sides.
pub fn write(
    before: &DiffSide,
    after: &DiffSide,
    options: &DiffOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let paths = Paths::new(before, after);
    if options.format == DiffFormat::Folded {
        return folded::write(&paths, [before, after], out);
    }
    // The flame graph shows paths, and colours only those beyond noise.
    let with_paths = options.paths || options.format == DiffFormat::Flamegraph;
    let comparison = Comparison::new(before, after, &paths, with_paths);
    match options.format {
        DiffFormat::Flamegraph => flamegraph::write(&comparison, out),
        DiffFormat::Json => json::write(&comparison, out),
        _ => table::write(&comparison, options.top, out),
    }
}

/// The change of a function or a path.
#[derive(Debug, Clone)]
struct DiffRow {
    /// The index of the function or of the path.
    of: usize,
    /// The change of the self weight.
    own: ShareChange,
    /// The change of the total weight, callees included.
    total: ShareChange,
    /// Whether the path changed only because of a path below it.
    leads: bool,
}

impl DiffRow {
    fn is_noise(&self) -> bool {
        self.own.noise && self.total.noise
    }

    /// Returns the largest change that is not noise.
    fn rank(&self) -> f64 {
        let reported = [self.own, self.total].into_iter().filter(|change| !change.noise);
        reported.map(|change| change.difference().abs()).fold(0.0, f64::max)
    }
}

/// The sum of the rows that are too light to be compared.
#[derive(Debug, Clone, Copy, Default)]
struct LightRows {
    rows: u64,
    /// The sum of their self shares before.
    before: f64,
    /// The sum of their self shares after.
    after: f64,
}

/// The rows of all functions, or of all paths.
#[derive(Debug, Default)]
struct DiffRows {
    /// Largest change first, noise last.
    rows: Vec<DiffRow>,
    light: LightRows,
}

/// Two sides and their differences.
struct Comparison<'a> {
    before: &'a DiffSide,
    after: &'a DiffSide,
    /// The paths and functions that name the rows.
    names: &'a Paths,
    functions: DiffRows,
    /// The rows of paths, if the user asked for them.
    paths: Option<DiffRows>,
}

impl<'a> Comparison<'a> {
    fn new(before: &'a DiffSide, after: &'a DiffSide, names: &'a Paths, with_paths: bool) -> Self {
        let totals = names.totals();
        let functions = names.by_function(&totals).into_iter().enumerate().skip(1);
        let functions = functions.filter(|(of, _)| !names.functions[*of].is_process);
        let functions = DiffRows::judged([before, after], functions).ranked();
        let paths = with_paths.then(|| {
            let all = names.all().map(|path| (path, [names.own(path), totals[path]]));
            let mut rows = DiffRows::judged([before, after], all);
            rows.mark_leading(names);
            rows.ranked()
        });
        Self { before, after, names, functions, paths }
    }
}

impl DiffRows {
    /// Separates changes from noise. `all` has the self and total weights of each row by its index.
    fn judged(
        [before, after]: [&DiffSide; 2],
        all: impl Iterator<Item = (usize, [[BlockWeights; 2]; 2])>,
    ) -> Self {
        let mut judged = Self::default();
        for (of, sums) in all {
            let change =
                |[old, new]: &[BlockWeights; 2]| [before.whole.share(old), after.whole.share(new)];
            let [own, total] = sums.each_ref().map(change);
            let samples = |side: &DiffSide, share: f64| share * side.whole.samples as f64;
            let heard = samples(before, total[0].value) + samples(after, total[1].value);
            if heard < SAMPLES_MIN {
                let light = &mut judged.light;
                light.rows += 1;
                light.before += own[0].value;
                light.after += own[1].value;
                continue;
            }
            let [own, total] = [own, total].map(|[old, new]| ShareChange::new(old, new));
            judged.rows.push(DiffRow { of, own, total, leads: false });
        }
        mark_noise(judged.rows.iter_mut().flat_map(|row| [&mut row.own, &mut row.total]));
        judged
    }

    /// Marks the paths that changed only because of a path below them: a chain of sixty callers is
    /// one change.
    fn mark_leading(&mut self, names: &Paths) {
        let indices: HashMap<usize, usize> =
            self.rows.iter().enumerate().map(|(index, row)| (row.of, index)).collect();
        for index in 0..self.rows.len() {
            let callee = self.rows[index].total;
            let caller = indices.get(&names.caller(self.rows[index].of));
            let Some(caller) = caller.and_then(|caller| self.rows.get_mut(*caller)) else {
                continue;
            };
            let total = caller.total;
            let least = total.difference().abs() - total.margin;
            let as_much = callee.difference() * total.difference().signum() >= least;
            caller.leads |= !callee.noise && as_much && caller.own.noise;
        }
    }

    /// Sorts the rows: the largest change first, noise last.
    fn ranked(mut self) -> Self {
        self.rows.sort_by(|a, b| {
            let own = |row: &DiffRow| row.own.difference().abs();
            let noise = a.is_noise().cmp(&b.is_noise());
            let size = b.rank().total_cmp(&a.rank()).then_with(|| own(b).total_cmp(&own(a)));
            noise.then(size).then(a.of.cmp(&b.of))
        });
        self
    }
}

#[cfg(test)]
mod tests;
