//! What changed between two recordings, or two parts of one: by function and by path, with what is
//! noise kept out. How that is told is in [`estimate`].
//!
//! Does not read more than two sides at once, and does not match what was renamed.

pub mod estimate;
mod flamegraph;
mod folded;
mod head;
mod json;
mod owners;
mod paths;
mod side;
mod student;
mod table;

use std::collections::HashMap;
use std::io::{self, Write};
use std::str::FromStr;

use estimate::{Change, Series, tell_apart};
use paths::Paths;
pub use side::Side;

/// Fewer samples than this on both sides together say nothing, whatever their difference; to look at
/// them would hide others (Bourgon, Gentleman and Huber 2010).
const SAMPLES_MIN: f64 = 10.0;

/// How a comparison is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffFormat {
    /// Lines of text.
    Table,
    /// One JSON object.
    Json,
    /// `root;caller;leaf BEFORE AFTER`, a line per stack: what differential flame graphs are made of.
    Folded,
    /// A picture of the stacks that are now, as SVG, coloured by what changed.
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

/// What of a comparison is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiffOptions {
    /// In what form.
    pub format: DiffFormat,
    /// Paths from the root too.
    pub paths: bool,
    /// Most lines of each table.
    pub top: usize,
}

/// Writes what changed.
pub fn write(
    before: &Side,
    after: &Side,
    options: &DiffOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let paths = Paths::new(before, after);
    if options.format == DiffFormat::Folded {
        return folded::write(&paths, [before, after], out);
    }
    // The picture has paths, and what is noise is told of each of them.
    let with_paths = options.paths || options.format == DiffFormat::Flamegraph;
    let comparison = Comparison::new(before, after, &paths, with_paths);
    match options.format {
        DiffFormat::Flamegraph => flamegraph::write(&comparison, out),
        DiffFormat::Json => json::write(&comparison, out),
        _ => table::write(&comparison, options.top, out),
    }
}

/// What changed of a function or a path.
#[derive(Debug, Clone)]
struct Row {
    /// The index of the function or of the path.
    of: usize,
    /// Itself.
    own: Change,
    /// With all that it called.
    total: Change,
    /// A path that changed no more than one that it leads to, and not in itself.
    leads: bool,
}

impl Row {
    fn is_noise(&self) -> bool {
        self.own.noise && self.total.noise
    }

    /// The largest change that is none by chance.
    fn rank(&self) -> f64 {
        let told = [self.own, self.total].into_iter().filter(|change| !change.noise);
        told.map(|change| change.difference().abs()).fold(0.0, f64::max)
    }
}

/// What is too light to say anything.
#[derive(Debug, Clone, Copy, Default)]
struct Light {
    rows: u64,
    /// Shares of all of it, in itself.
    before: f64,
    after: f64,
}

/// All functions, or all paths.
#[derive(Debug, Default)]
struct Rows {
    /// Largest change first, noise last.
    rows: Vec<Row>,
    light: Light,
}

/// Two sides and what differs.
struct Comparison<'a> {
    before: &'a Side,
    after: &'a Side,
    /// What rows are called.
    names: &'a Paths,
    functions: Rows,
    /// If these are asked for.
    paths: Option<Rows>,
}

impl<'a> Comparison<'a> {
    fn new(before: &'a Side, after: &'a Side, names: &'a Paths, with_paths: bool) -> Self {
        let totals = names.totals();
        let functions = names.by_function(&totals).into_iter().enumerate().skip(1);
        let functions = functions.filter(|(of, _)| !names.functions[*of].is_process);
        let functions = Rows::judged([before, after], functions).ranked();
        let paths = with_paths.then(|| {
            let all = names.all().map(|path| (path, [names.own(path), totals[path]]));
            let mut rows = Rows::judged([before, after], all);
            rows.mark_leading(names);
            rows.ranked()
        });
        Self { before, after, names, functions, paths }
    }
}

impl Rows {
    /// Tells changes from noise, of what there is by its index: what ends in it, and all that is in it.
    fn judged(
        [before, after]: [&Side; 2],
        all: impl Iterator<Item = (usize, [[Series; 2]; 2])>,
    ) -> Self {
        let mut judged = Self::default();
        for (of, sums) in all {
            let change =
                |[old, new]: &[Series; 2]| [before.whole.share(old), after.whole.share(new)];
            let [own, total] = sums.each_ref().map(change);
            let samples = |side: &Side, share: f64| share * side.whole.samples as f64;
            let heard = samples(before, total[0].value) + samples(after, total[1].value);
            if heard < SAMPLES_MIN {
                let light = &mut judged.light;
                light.rows += 1;
                light.before += own[0].value;
                light.after += own[1].value;
                continue;
            }
            let [own, total] = [own, total].map(|[old, new]| Change::new(old, new));
            judged.rows.push(Row { of, own, total, leads: false });
        }
        tell_apart(judged.rows.iter_mut().flat_map(|row| [&mut row.own, &mut row.total]));
        judged
    }

    /// Marks the paths that changed only with one that they lead to: a chain of sixty callers is one
    /// change.
    fn mark_leading(&mut self, names: &Paths) {
        let places: HashMap<usize, usize> =
            self.rows.iter().enumerate().map(|(place, row)| (row.of, place)).collect();
        for place in 0..self.rows.len() {
            let callee = self.rows[place].total;
            let caller = places.get(&names.caller(self.rows[place].of));
            let Some(caller) = caller.and_then(|caller| self.rows.get_mut(*caller)) else {
                continue;
            };
            let total = caller.total;
            let least = total.difference().abs() - total.margin;
            let as_much = callee.difference() * total.difference().signum() >= least;
            caller.leads |= !callee.noise && as_much && caller.own.noise;
        }
    }

    /// The largest change first, noise last.
    fn ranked(mut self) -> Self {
        self.rows.sort_by(|a, b| {
            let own = |row: &Row| row.own.difference().abs();
            let noise = a.is_noise().cmp(&b.is_noise());
            let size = b.rank().total_cmp(&a.rank()).then_with(|| own(b).total_cmp(&own(a)));
            noise.then(size).then(a.of.cmp(&b.of))
        });
        self
    }
}

#[cfg(test)]
mod tests;
