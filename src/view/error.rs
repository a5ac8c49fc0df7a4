//! Why a view could not be made.

use std::io;

use super::context::HOW;
use crate::trace::TraceError;

/// A view that ended early; what could be written is written.
#[derive(Debug)]
pub enum ViewError {
    /// The trace cannot be read on.
    Trace(TraceError),
    /// Contexts are asked for, and no sample that was looked at has one.
    NoContext,
    /// Stacks are asked for of a view that shows calls, not stacks.
    NoStacks,
    /// The output cannot be written.
    Output(io::Error),
}

impl ViewError {
    /// That stacks are asked for where there are none.
    pub const NO_STACKS: &str = "--include and --exclude choose whole stacks, and --timeline lists \
        calls: leave out --timeline, or choose with --thread, --from and --to";

    /// That contexts are asked for which nobody told.
    pub fn no_context() -> String {
        format!("no sample that was looked at has a span or a tag. {HOW}")
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
