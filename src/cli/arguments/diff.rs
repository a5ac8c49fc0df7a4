//! Arguments of `diff`.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};

use super::SelectionArguments;
use super::headings::{BASE, SHOWN, WHERE};
use crate::cli::number_values::count;
use crate::view::diff::DiffFormat;
use crate::view::{RootId, Selection, SpanId, TagValue, TimePoint};

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub struct DiffArguments {
    /// Trace file of the first side
    pub before: PathBuf,

    /// Trace file of the second side; not needed with a --base- option
    #[arg(required_unless_present = "base")]
    pub after: Option<PathBuf>,

    /// Compare every path from the root, too
    #[arg(long, help_heading = SHOWN)]
    pub paths: bool,

    /// Number of changes to print
    #[arg(long, value_name = "N", default_value = "40", value_parser = count, help_heading = SHOWN)]
    pub top: usize,

    /// table, json, folded or flamegraph
    #[arg(short, long, default_value = "table", help_heading = WHERE)]
    pub format: DiffFormat,

    /// Write one JSON object, as --format json
    #[arg(long, conflicts_with = "format", help_heading = WHERE)]
    pub json: bool,

    /// File to write instead of the standard output
    #[arg(short, long, value_name = "FILE", help_heading = WHERE)]
    pub output: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long, help_heading = WHERE)]
    pub force: bool,

    /// Which samples of both sides.
    #[command(flatten)]
    pub selection: SelectionArguments,

    /// Which samples of the first side.
    #[command(flatten)]
    pub base: BaseArguments,
}

/// Which samples of the first side, if they are not those of the second side.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("base").multiple(true), next_help_heading = BASE)]
pub struct BaseArguments {
    /// Only this thread; repeatable
    #[arg(long, group = "base", value_name = "ID|NAME")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub base_thread: Vec<String>,

    /// Only the threads of this process; repeatable
    #[arg(long, group = "base", value_name = "PID|NAME", hide_short_help = true)]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub base_process: Vec<String>,

    /// From this time on; without --base-to up to the end
    #[arg(long, group = "base", value_name = "TIME", allow_hyphen_values = true)]
    pub base_from: Option<TimePoint>,

    /// Up to this time; without --base-from from the start
    #[arg(long, group = "base", value_name = "TIME", allow_hyphen_values = true)]
    pub base_to: Option<TimePoint>,

    /// Only this span; repeatable
    #[arg(long, group = "base", value_name = "ID", hide_short_help = true)]
    pub base_span: Vec<SpanId>,

    /// Only below this root span; repeatable
    #[arg(long, group = "base", value_name = "ID", hide_short_help = true)]
    pub base_root_span: Vec<RootId>,

    /// Only samples with this tag; repeatable
    #[arg(long, group = "base", value_name = "NAME=VALUE")]
    pub base_tag: Vec<TagValue>,
}

impl BaseArguments {
    /// The selection of the first side, given that of the second side.
    pub fn apply(self, selection: &Selection) -> Selection {
        fn or<T: Clone>(base: Vec<T>, other: &[T]) -> Vec<T> {
            if base.is_empty() { other.to_vec() } else { base }
        }
        // The start of one window and the end of another make no window.
        let (from, to) = match (self.base_from, self.base_to) {
            (None, None) => (selection.from, selection.to),
            times => times,
        };
        Selection {
            threads: or(self.base_thread, &selection.threads),
            processes: or(self.base_process, &selection.processes),
            spans: or(self.base_span, &selection.spans),
            roots: or(self.base_root_span, &selection.roots),
            tags: or(self.base_tag, &selection.tags),
            from,
            to,
            ..selection.clone()
        }
    }
}
