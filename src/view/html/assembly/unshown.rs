//! The files whose code a page does not show, for the user: without a note, a page with some code
//! would hide that it lacks most.

use std::collections::HashMap;

use crate::trace::{LocationId, ModuleId};
use crate::view::html::page_samples::PageSamples;
use crate::view::profile::call_tree::StackStep;
use crate::view::recording::mode::Mode;
use crate::view::text::escape::escaped;

/// Minimum share of the time of a file that is named.
const SHARE_MIN: f64 = 0.05;
/// Maximum number of files that are named.
const NAMED_MAX: usize = 3;

/// Why the code of a file is not shown.
#[derive(Debug, Clone)]
pub(super) struct FileWhy {
    /// The path, escaped.
    path: String,
    /// The end of a sentence about the file.
    why: String,
}

/// The share of a file in the time of the mode in which it has the largest.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileShare {
    share: f64,
    mode: Mode,
}

impl FileWhy {
    pub(super) fn new(path: &str, why: String) -> Self {
        Self { path: escaped(path).into_owned(), why }
    }

    /// Returns why a function of the file has no assembly.
    pub(super) fn of_function(&self) -> String {
        format!("{} {}", self.path, self.why)
    }

    fn note(&self, FileShare { share, mode }: FileShare) -> String {
        let (percent, mode) = (share * 100.0, mode.name());
        let Self { path, why } = self;
        format!("the code of {path} ({percent:.0} % of {mode} time) is not shown: it {why}")
    }
}

/// Returns the shares of all files. `module_of` returns that of native code.
pub(super) fn shares(
    gathered: &PageSamples<'_>,
    module_of: impl Fn(LocationId) -> Option<ModuleId>,
) -> HashMap<ModuleId, FileShare> {
    let module_of = |step| if let StackStep::Frame(id) = step { module_of(id) } else { None };
    let modules: Vec<_> = gathered.tree.calls().iter().map(|call| module_of(call.step)).collect();
    let mut shares: HashMap<ModuleId, FileShare> = HashMap::new();
    for entries in &gathered.modes {
        let mode = entries.mode;
        let (mut weights, mut all) = (HashMap::new(), 0.0);
        for entry in entries.all() {
            all += entry.weight as f64;
            if let Some(Some(module)) = modules.get(entry.call as usize) {
                *weights.entry(*module).or_insert(0.0) += entry.weight as f64;
            }
        }
        for (module, weight) in weights {
            let share = weight / all;
            let known = shares.entry(module).or_insert(FileShare { share, mode });
            if share > known.share {
                *known = FileShare { share, mode };
            }
        }
    }
    shares
}

/// Returns what to tell the user of these files, the heaviest first.
pub(super) fn notes<'a>(
    files: impl Iterator<Item = (ModuleId, &'a FileWhy)>,
    shares: &HashMap<ModuleId, FileShare>,
) -> Vec<String> {
    let weighed = files.filter_map(|(id, why)| Some((why, *shares.get(&id)?)));
    let mut named: Vec<_> = weighed.filter(|(_, share)| share.share >= SHARE_MIN).collect();
    named.sort_by(|(one, its), (other, others)| {
        others.share.total_cmp(&its.share).then_with(|| one.path.cmp(&other.path))
    });
    named.into_iter().take(NAMED_MAX).map(|(why, share)| why.note(share)).collect()
}
