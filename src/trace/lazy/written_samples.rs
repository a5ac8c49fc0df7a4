//! Samples of a lazily read trace in the order of the file.

use super::fault::{Fault, Found};
use super::reading::Reading;
use super::samples::Window;
use super::source::Directory;
use super::walk::{Step, Walk};
use crate::trace::{HEADER_BYTES, LocationId, NO_THREAD, SIDE, Sample, ThreadId};

/// The samples of a window in the order in which they lie in the file: each frame is decoded once,
/// whatever number of threads it has blocks of.
pub(super) struct WrittenSamples<'a> {
    reading: &'a Reading,
    window: &'a Window,
}

impl<'a> WrittenSamples<'a> {
    /// The samples of this window.
    pub(super) fn of(reading: &'a Reading, window: &'a Window) -> Self {
        Self { reading, window }
    }

    /// Calls `f` with each of them and its stack.
    pub(super) fn for_each(
        &self,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> Found<()> {
        let Self { reading, window } = *self;
        let count = reading.index.frame_count();
        let mut end = HEADER_BYTES as u64;
        for number in 0..count {
            let row = reading.index.frame(number)?;
            if !reading.scanned && row.offset != end {
                return Err(Fault::Index("the frames of the index are not in order"));
            }
            let directory = reading.source.directory(row.offset)?;
            let header = &directory.header;
            end = row.offset + header.total_bytes();
            let apart = header.last_ns < window.from_ns || header.first_ns > window.to_ns;
            if header.samples > 0 && !apart {
                self.in_frame(&directory, f)?;
            }
        }
        Ok(())
    }

    fn in_frame(
        &self,
        directory: &Directory,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> Found<()> {
        let Self { reading, window } = *self;
        for (at, entry) in &directory.blocks {
            let thread = ThreadId(entry.stream & !SIDE);
            let apart = entry.last_ns < window.from_ns || entry.first_ns > window.to_ns;
            if entry.stream == NO_THREAD
                || entry.samples == 0
                || apart
                || !window.has_thread(thread)
            {
                continue;
            }
            let mut walk = Walk::of_block(reading, directory, *at, entry)?;
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
