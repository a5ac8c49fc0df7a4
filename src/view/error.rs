//! Why a view could not be made.

use std::io;

use crate::trace::TraceError;

/// A view that ended early; what could be written is written.
#[derive(Debug)]
pub enum ViewError {
    /// The trace cannot be read on.
    Trace(TraceError),
    /// The output cannot be written.
    Output(io::Error),
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
