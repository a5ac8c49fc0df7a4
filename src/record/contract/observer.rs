//! Who watches a recording.

use super::event::{Event, Progress};

/// Watches a recording while it runs.
pub trait Observer {
    /// Something happened once.
    fn event(&mut self, event: Event);
    /// The state some time later; called several times a second.
    fn tick(&mut self, progress: &Progress);
    /// Whether the recording is to end now; asked after each [`Self::tick`].
    fn wants_end(&mut self) -> bool {
        false
    }
}
