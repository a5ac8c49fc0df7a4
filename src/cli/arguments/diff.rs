//! Arguments of `diff`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::SelectionArguments;
use crate::view::diff::DiffFormat;
use crate::view::{Moment, RootId, Selection, SpanId, TagValue};

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub struct DiffArguments {
    /// Trace file with what was before
    pub before: PathBuf,

    /// Trace file with what is now; it may be left out where a --base- option chooses another part of
    /// the first one
    #[arg(required_unless_present = "base")]
    pub after: Option<PathBuf>,

    /// What of both traces is looked at.
    #[command(flatten)]
    pub selection: SelectionArguments,

    /// What of the first is looked at.
    #[command(flatten)]
    pub base: BaseArguments,

    /// Compare every path from the root too, not only every function
    #[arg(long)]
    pub paths: bool,

    /// Most lines of changes
    #[arg(long, value_name = "N", default_value = "40")]
    pub top: usize,

    /// Format to write: table, json, folded or flamegraph
    #[arg(short, long, default_value = "table")]
    pub format: DiffFormat,

    /// Write one JSON object, as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,

    /// File to write instead of the standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}

/// What of the first side is looked at, where that is not what is looked at of the second.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("base").multiple(true))]
pub struct BaseArguments {
    /// Look at this thread only, before; repeatable
    #[arg(long, group = "base", value_name = "ID|NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub base_thread: Vec<String>,

    /// Look at the threads of this process only, before, where several were recorded; repeatable
    #[arg(long, group = "base", value_name = "PID|NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub base_process: Vec<String>,

    /// Look at samples from here on, before; without --base-to up to the end
    #[arg(long, group = "base", value_name = "TIME", allow_hyphen_values = true)]
    pub base_from: Option<Moment>,

    /// Look at samples up to here, before; without --base-from from the begin on
    #[arg(long, group = "base", value_name = "TIME", allow_hyphen_values = true)]
    pub base_to: Option<Moment>,

    /// Look at samples in this span only, before; repeatable
    #[arg(long, group = "base", value_name = "ID")]
    pub base_span: Vec<SpanId>,

    /// Look at samples below this root span only, before; repeatable
    #[arg(long, group = "base", value_name = "ID")]
    pub base_root_span: Vec<RootId>,

    /// Look at samples with this value of a tag only, before; repeatable
    #[arg(long, group = "base", value_name = "NAME=VALUE")]
    pub base_tag: Vec<TagValue>,
}

impl BaseArguments {
    /// What is looked at of the first side, if `selection` is what is looked at of the second.
    pub fn apply(self, selection: &Selection) -> Selection {
        fn or<T: Clone>(base: Vec<T>, other: &[T]) -> Vec<T> {
            if base.is_empty() { other.to_vec() } else { base }
        }
        // A begin of one window and an end of another would be a window that nobody asked for.
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
