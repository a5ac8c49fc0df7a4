//! The samples of a lazily read trace in file order.

use super::fault::{LazyError, LazyResult};
use super::open_trace::OpenTrace;
use super::samples::Window;
use super::source::Directory;
use super::walk::{Step, StreamWalk};
use crate::trace::{HEADER_BYTES, LocationId, NO_THREAD, SIDE, Sample, ThreadId};

/// Reads the samples of a window in file order: each frame is decoded once, regardless of how many
/// threads have blocks in it.
pub(super) struct WrittenSamples<'a> {
    trace: &'a OpenTrace,
    window: &'a Window,
}

impl<'a> WrittenSamples<'a> {
    /// Creates the reader of this window's samples.
    pub(super) fn of(trace: &'a OpenTrace, window: &'a Window) -> Self {
        Self { trace, window }
    }

    /// Calls `f` with each sample and its stack.
    pub(super) fn for_each(
        &self,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> LazyResult<()> {
        let Self { trace, window } = *self;
        let count = trace.index.frame_count();
        let mut end = HEADER_BYTES as u64;
        for number in 0..count {
            let row = trace.index.frame(number)?;
            if !trace.scanned && row.offset != end {
                return Err(LazyError::Index("the frames of the index are not in order"));
            }
            let directory = trace.source.directory(row.offset)?;
            let header = &directory.header;
            if !trace.scanned && header.crc() != row.crc {
                // Then the scan that made the index has not checked what is in this frame.
                return Err(LazyError::Index("a frame differs from the index"));
            }
            end = row.offset + header.total_bytes();
            let outside = header.last_ns < window.from_ns || header.first_ns > window.to_ns;
            if header.samples > 0 && !outside {
                self.in_frame(&directory, f)?;
            }
        }
        Ok(())
    }

    fn in_frame(
        &self,
        directory: &Directory,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> LazyResult<()> {
        let Self { trace, window } = *self;
        for (at, entry) in &directory.blocks {
            let thread = ThreadId(entry.stream & !SIDE);
            let outside = entry.last_ns < window.from_ns || entry.first_ns > window.to_ns;
            if entry.stream == NO_THREAD
                || entry.samples == 0
                || outside
                || !window.has_thread(thread)
            {
                continue;
            }
            let mut walk = StreamWalk::for_block(trace, directory, *at, entry)?;
            while let Some(step) = walk.step()? {
                let Step::Sample { outer, .. } = step else { continue };
                if (window.from_ns..=window.to_ns).contains(&walk.sample.time_ns) {
                    f(thread, &walk.sample, walk.state.locations.get(outer..).unwrap_or_default());
                }
            }
        }
        Ok(())
    }
}
