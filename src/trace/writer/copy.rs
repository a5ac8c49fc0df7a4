//! Writes the streams of another trace, without inferring calls again.

use crate::trace::state::StreamRef;
use crate::trace::stream::Stream;
use crate::trace::{ThreadId, TraceError, TraceWriter};

impl TraceWriter {
    /// Changes a stream with `change`, which adds `samples` samples.
    pub(in crate::trace) fn copy(
        &mut self,
        stream: StreamRef,
        samples: u64,
        change: impl FnOnce(&mut Stream),
    ) -> Result<(), TraceError> {
        let period_ns = self.threads.period_ns;
        self.change(stream.thread, |state| {
            let stream = state.stream(stream.side);
            stream.begin(period_ns);
            change(stream);
        })?;
        self.samples += samples;
        Ok(())
    }

    /// Records that a thread exited; its end was copied if it was there.
    pub(in crate::trace) fn copy_end(
        &mut self,
        thread: ThreadId,
        ended_ns: u64,
    ) -> Result<(), TraceError> {
        let object = self.threads.get(thread)?.object(Some(ended_ns));
        self.objects.push(&object);
        self.write_full_frame()
    }
}
