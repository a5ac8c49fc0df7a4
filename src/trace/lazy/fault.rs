//! Errors of the lazy reader.

use crate::trace::TraceError;
use crate::trace::index::Broken;

/// The error of a lookup in a lazily read trace.
#[derive(Debug)]
pub(super) enum LazyError {
    /// The index contradicts the data. A scan of the data makes a new index.
    Index(&'static str),
    /// The data itself cannot be read.
    Trace(TraceError),
}

/// The result of a lookup.
pub(super) type LazyResult<T> = Result<T, LazyError>;

impl From<TraceError> for LazyError {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}

impl From<Broken> for LazyError {
    fn from(broken: Broken) -> Self {
        Self::Index(broken.what)
    }
}
