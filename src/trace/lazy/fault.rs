//! Why something was not found in a lazily read trace.

use crate::trace::TraceError;
use crate::trace::index::Broken;

/// What went wrong.
#[derive(Debug)]
pub(super) enum Fault {
    /// The index does not fit the data: a scan of the data makes another one.
    Index(&'static str),
    /// The data itself cannot be read.
    Trace(TraceError),
}

/// Result of looking for something.
pub(super) type Found<T> = Result<T, Fault>;

impl From<TraceError> for Fault {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Index(broken.what)
    }
}
