//! A failed attempt to record.

use crate::record::contract::error::RecordError;

/// A failed attempt to record.
pub(crate) struct Failed {
    /// The error.
    pub(crate) error: RecordError,
    /// Whether the trace existed already.
    pub(crate) has_begun: bool,
}

impl From<RecordError> for Failed {
    fn from(error: RecordError) -> Self {
        Self { error, has_begun: false }
    }
}
