//! Why an attempt to record has failed.

use crate::record::contract::error::RecordError;

/// Why an attempt to record has failed.
pub(crate) struct Failed {
    /// What is said of it.
    pub(crate) error: RecordError,
    /// There was a trace already.
    pub(crate) has_begun: bool,
}

impl From<RecordError> for Failed {
    fn from(error: RecordError) -> Self {
        Self { error, has_begun: false }
    }
}
