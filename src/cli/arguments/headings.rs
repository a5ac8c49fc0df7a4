//! The headings of the groups of options in the help.

/// Processes and programs to record.
pub(super) const WHAT: &str = "What to record";
/// How samples are taken.
pub(super) const HOW: &str = "How to record";
/// Files, and what is printed.
pub(super) const WHERE: &str = "Where to write";
/// Descendants and programs after exec.
pub(super) const SEVERAL: &str = "Several processes";
/// Bounded files and rings.
pub(super) const LONG_RUNS: &str = "Long runs";
/// Options that few people need.
pub(super) const ADVANCED: &str = "Advanced";
/// Which samples of a trace a view uses.
pub(super) const SELECTION: &str = "Which samples";
/// The same for the first side of a comparison.
pub(super) const BASE: &str = "Which samples of the first side";
/// What a view shows of them.
pub(super) const SHOWN: &str = "What to show";

/// All of them.
pub(super) const ALL: [&str; 9] =
    [WHAT, HOW, WHERE, SEVERAL, LONG_RUNS, ADVANCED, SELECTION, BASE, SHOWN];
