//! The errors of views.

use std::io;

use crate::trace::TraceError;
use crate::view::select::context_filter::HOW;

/// The reason why a view ended early. Its output up to that point is written.
#[derive(Debug)]
pub enum ViewError {
    /// The rest of the trace cannot be read.
    Trace(TraceError),
    /// The user asked for contexts, and no sample has one.
    NoContext,
    /// The user asked for stacks in a view that shows calls.
    NoStacks,
    /// The output cannot be written.
    Output(io::Error),
}

impl ViewError {
    /// The message for stacks in a view of calls.
    pub const NO_STACKS: &str = "--include and --exclude select complete stacks, but --timeline \
        lists calls: leave out --timeline, or select with --thread, --from and --to";

    /// The message for contexts in a trace without any.
    pub fn no_context() -> String {
        format!("no selected sample has a span or a tag. {HOW}")
    }
}

impl From<io::Error> for ViewError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<TraceError> for ViewError {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}
