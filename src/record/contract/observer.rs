//! The trait of callers that watch a recording.

use super::event::{Event, Progress};

/// Receives the events and the progress of a recording while it runs.
pub trait Observer {
    /// Receives a single event.
    fn event(&mut self, event: Event);
    /// Receives the current progress; the recorder calls this several times a second.
    fn tick(&mut self, progress: &Progress);
    /// Returns whether the recording should end now; the recorder asks after each [`Self::tick`].
    fn wants_end(&mut self) -> bool {
        false
    }
}
