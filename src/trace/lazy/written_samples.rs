//! The samples of a lazily read trace in file order.
//!
//! # Invariants
//! - If everything is read, and no scan has checked it before, then what a scan checks of the
//!   streams is checked here: frames with right checksums may contradict each other, and an index
//!   may fit them. A contradiction leads to a scan, which decides.

use std::collections::HashMap;

use super::fault::{LazyError, LazyResult};
use super::open_trace::OpenTrace;
use super::samples::Window;
use super::source::Directory;
use super::walk::{Step, StreamWalk};
use crate::trace::checkpoint::{BlockEntry, Checkpoint};
use crate::trace::kind::Kind;
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
        let is_unchecked = !trace.scanned && *window == Window::default();
        let mut reached = is_unchecked.then(Reached::default);
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
            if (header.samples > 0 || reached.is_some()) && !outside {
                self.in_frame(&directory, reached.as_mut(), f)?;
            }
        }
        reached.map_or(Ok(()), |reached| reached.check_end(trace))
    }

    fn in_frame(
        &self,
        directory: &Directory,
        mut reached: Option<&mut Reached>,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> LazyResult<()> {
        let Self { trace, window } = *self;
        if let Some(reached) = &mut reached {
            reached.check_frame(directory)?;
        }
        for (at, entry) in &directory.blocks {
            let thread = ThreadId(entry.stream & !SIDE);
            let outside = entry.last_ns < window.from_ns || entry.first_ns > window.to_ns;
            let is_empty = entry.samples == 0 && reached.is_none();
            if entry.stream == NO_THREAD || is_empty || outside || !window.has_thread(thread) {
                continue;
            }
            if let Some(reached) = &mut reached {
                reached.check_begin(entry)?;
            }
            let mut walk = StreamWalk::for_block(trace, directory, *at, entry)?;
            while let Some(step) = walk.step()? {
                let Step::Sample { outer, .. } = step else {
                    if let (Some(reached), Some(last)) = (&mut reached, walk.state.locations.last())
                    {
                        reached.refer(*last);
                    }
                    continue;
                };
                if (window.from_ns..=window.to_ns).contains(&walk.sample.time_ns) {
                    f(thread, &walk.sample, walk.state.locations.get(outer..).unwrap_or_default());
                }
            }
            if let Some(reached) = &mut reached {
                reached.check_end_of(entry, walk.state)?;
            }
        }
        Ok(())
    }
}

/// What the streams of a trace have reached.
#[derive(Debug, Default)]
struct Reached {
    states: HashMap<u32, Checkpoint>,
    /// The largest location id in use plus one, 0 if none is used.
    locations: u64,
}

impl Reached {
    fn refer(&mut self, location: LocationId) {
        self.locations = self.locations.max(u64::from(location.0) + 1);
    }

    fn check_frame(&self, directory: &Directory) -> LazyResult<()> {
        let samples = directory.blocks.iter().map(|(_, entry)| u128::from(entry.samples));
        match samples.sum::<u128>() == directory.header.samples.into() {
            true => Ok(()),
            false => Err(LazyError::Index("the samples of a frame differ from its header")),
        }
    }

    /// Checks that a block continues its stream.
    fn check_begin(&mut self, entry: &BlockEntry) -> LazyResult<()> {
        entry.begin.locations.iter().for_each(|location| self.refer(*location));
        let before = self.states.entry(entry.stream).or_default();
        match *before == entry.begin {
            true => Ok(()),
            false => Err(LazyError::Index("a block does not continue the one before it")),
        }
    }

    /// Checks that the end of a block is as its entry says.
    fn check_end_of(&mut self, entry: &BlockEntry, state: Checkpoint) -> LazyResult<()> {
        let end = (entry.begin.samples.wrapping_add(entry.samples), entry.last_ns);
        if (state.samples, state.last_ns) != end {
            return Err(LazyError::Index("the samples of a block differ from its entry"));
        }
        self.states.insert(entry.stream, state);
        Ok(())
    }

    /// Checks that all locations in use are there.
    fn check_end(&self, trace: &OpenTrace) -> LazyResult<()> {
        match self.locations <= trace.index.neutral_count(Kind::Location)?.into() {
            true => Ok(()),
            false => Err(LazyError::Index("a trace point refers to a missing location")),
        }
    }
}
