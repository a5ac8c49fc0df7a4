//! Samples of a lazily read trace by thread and time.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::fault::{Fault, Found};
use super::reading::Reading;
use super::source::Directory;
use super::walk::{Step, Walk};
use crate::trace::{HEADER_BYTES, LocationId, NO_THREAD, SIDE, Sample, ThreadId};

/// Threads and times to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The threads, `None` for all.
    pub threads: Option<BTreeSet<ThreadId>>,
    /// First time, CLOCK_MONOTONIC nanoseconds.
    pub from_ns: u64,
    /// Last time.
    pub to_ns: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { threads: None, from_ns: 0, to_ns: u64::MAX }
    }
}

impl Window {
    /// True if samples of this thread are looked at.
    pub fn has_thread(&self, thread: ThreadId) -> bool {
        self.threads.as_ref().is_none_or(|threads| threads.contains(&thread))
    }
}

/// The samples of one stream.
struct Samples<'a> {
    walk: Option<Walk<'a>>,
    /// Of the next sample: the calls that are not its own, and the samples of the main stream
    /// before it.
    next: Option<(usize, u64)>,
}

impl<'a> Samples<'a> {
    /// From the block on that the first sample at or after `from_ns` can be in.
    fn new(reading: &'a Reading, stream: u32, from_ns: u64) -> Found<Self> {
        // Samples of equal times may begin in the block before.
        let block = reading.block_at_time(stream, from_ns.saturating_sub(1))?;
        let mut samples = Self { walk: Walk::new(reading, stream, block)?, next: None };
        samples.advance()?;
        Ok(samples)
    }

    /// Goes to the next sample.
    fn advance(&mut self) -> Found<()> {
        self.next = None;
        let Some(walk) = &mut self.walk else { return Ok(()) };
        while let Some(step) = walk.step()? {
            if let Step::Sample { outer, main_before } = step {
                self.next = Some((outer, main_before));
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next sample and its stack.
    fn get(&self) -> Option<(&Sample, &[LocationId])> {
        let (walk, (outer, _)) = (self.walk.as_ref()?, self.next?);
        Some((&walk.sample, walk.state.locations.get(outer..).unwrap_or_default()))
    }

    /// Samples of the stream before the next one.
    fn count_before(&self) -> u64 {
        self.walk.as_ref().map_or(0, |walk| walk.state.samples.saturating_sub(1))
    }
}

impl Reading {
    /// Calls `f` with the samples of a window in the order in which they lie in the file: each
    /// frame is decoded once, whatever number of threads it has blocks of.
    pub(super) fn samples_as_written(
        &self,
        window: &Window,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> Found<()> {
        let count = self.index.frame_count();
        let mut end = HEADER_BYTES as u64;
        for number in 0..count {
            let row = self.index.frame(number)?;
            if !self.scanned && row.offset != end {
                return Err(Fault::Index("the frames of the index are not in order"));
            }
            let directory = self.source.directory(row.offset)?;
            let header = &directory.header;
            end = row.offset + header.total_bytes();
            let apart = header.last_ns < window.from_ns || header.first_ns > window.to_ns;
            if header.samples > 0 && !apart {
                self.samples_of_frame(&directory, window, f)?;
            }
        }
        Ok(())
    }

    fn samples_of_frame(
        &self,
        directory: &Directory,
        window: &Window,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> Found<()> {
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
            let mut walk = Walk::of_block(self, directory, *at, entry)?;
            while let Some(step) = walk.step()? {
                let Step::Sample { outer, .. } = step else { continue };
                if (window.from_ns..=window.to_ns).contains(&walk.sample.time_ns) {
                    f(thread, &walk.sample, walk.state.locations.get(outer..).unwrap_or_default());
                }
            }
        }
        Ok(())
    }

    /// Calls `f` with the samples of a thread in the order in which they were taken.
    pub(super) fn samples(
        &self,
        thread: ThreadId,
        (from_ns, to_ns): (u64, u64),
        f: &mut dyn FnMut(&Sample, &[LocationId]),
    ) -> Found<()> {
        self.check_stream(thread.0)?;
        self.check_stream(thread.0 | SIDE)?;
        let mut main = Samples::new(self, thread.0, from_ns)?;
        let mut side = Samples::new(self, thread.0 | SIDE, from_ns)?;
        loop {
            let side_is_next = match (main.next, side.next) {
                (Some(_), Some((_, main_before))) => main_before <= main.count_before(),
                (None, Some(_)) => true,
                (_, None) => false,
            };
            let stream = if side_is_next { &mut side } else { &mut main };
            let Some((sample, stack)) = stream.get() else { return Ok(()) };
            // Times of a thread do not go back, whichever stream they are in.
            if sample.time_ns > to_ns {
                return Ok(());
            }
            if sample.time_ns >= from_ns {
                f(sample, stack);
            }
            stream.advance()?;
        }
    }

    /// Calls `f` with the samples of a thread's two streams, one after the other: whether it is the
    /// side stream, and the number of the sample in it.
    pub(super) fn samples_by_stream(
        &self,
        thread: ThreadId,
        times_ns: &RangeInclusive<u64>,
        f: &mut dyn FnMut(bool, u64, &Sample),
    ) -> Found<()> {
        for stream in [thread.0, thread.0 | SIDE] {
            self.check_stream(stream)?;
            let mut samples = Samples::new(self, stream, *times_ns.start())?;
            while let Some((sample, _)) = samples.get() {
                if sample.time_ns > *times_ns.end() {
                    break;
                }
                if times_ns.contains(&sample.time_ns) {
                    f(stream & SIDE != 0, samples.count_before(), sample);
                }
                samples.advance()?;
            }
        }
        Ok(())
    }

    /// The last sample of a thread at or before a time, and its stack.
    pub(super) fn stack_at(
        &self,
        thread: ThreadId,
        time_ns: u64,
    ) -> Found<Option<(Sample, Vec<LocationId>)>> {
        let main = self.last_at(thread.0, time_ns)?;
        let side = self.last_at(thread.0 | SIDE, time_ns)?;
        Ok(match (main, side) {
            // The number of the main stream's last sample, and how many lie before the side's.
            (Some(main), Some(side)) if side.2 > main.2 => Some((side.0, side.1)),
            (main, side) => main.or(side).map(|(sample, stack, _)| (sample, stack)),
        })
    }

    /// The last sample of a stream at or before a time, with its stack and how many samples of the
    /// main stream lie before it.
    fn last_at(&self, stream: u32, time_ns: u64) -> Found<Option<(Sample, Vec<LocationId>, u64)>> {
        self.check_stream(stream)?;
        if self.index.block_count(stream)? == 0 {
            return Ok(None);
        }
        let mut number = self.block_at_time(stream, time_ns)?;
        // A block may have no sample, and its row then has the time of one before it.
        while number > 0 && self.block(stream, number)?.entry()?.samples == 0 {
            number -= 1;
        }
        self.last_in(stream, number, time_ns)
    }

    fn last_in(
        &self,
        stream: u32,
        number: u64,
        time_ns: u64,
    ) -> Found<Option<(Sample, Vec<LocationId>, u64)>> {
        let Some(mut walk) = Walk::new(self, stream, number)? else { return Ok(None) };
        let mut last = None;
        while let Some(step) = walk.step()? {
            match step {
                Step::BlockEnd => break,
                Step::Sample { outer, main_before } => {
                    if walk.sample.time_ns > time_ns {
                        break;
                    }
                    let stack = walk.state.locations.get(outer..).unwrap_or_default();
                    let main = stream & SIDE == 0;
                    let before = if main { walk.state.samples - 1 } else { main_before };
                    last = Some((walk.sample.clone(), stack.to_vec(), before));
                }
                _ => {}
            }
        }
        Ok(last)
    }
}
