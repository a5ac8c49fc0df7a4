//! Why a view could not be made.

use std::io;

use crate::trace::TraceError;
use crate::view::select::context_filter::HOW;

/// Why a view ended early; its output up to there is written.
#[derive(Debug)]
pub enum ViewError {
    /// The trace cannot be read on.
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
    pub const NO_STACKS: &str = "--include and --exclude choose whole stacks, and --timeline lists \
        calls: leave out --timeline, or choose with --thread, --from and --to";

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
