//! Writing the texts that samples refer to.

use crate::trace::{TextId, TraceError, TraceWriter};

impl TraceWriter {
    /// The id of a text, for [`Sample::waits_on`](crate::trace::Sample::waits_on); equal content gives
    /// an equal id. One that is too long for the format is cut.
    pub fn text(&mut self, text: &str) -> Result<TextId, TraceError> {
        let id = self.tables.string(text)?;
        self.write_full_frame()?;
        Ok(TextId(id))
    }
}
