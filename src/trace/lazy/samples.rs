//! Samples of a lazily read trace by thread and time.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::fault::Found;
use super::reading::Reading;
use super::walk::{Step, Walk};
use crate::trace::{LocationId, SIDE, Sample, ThreadId};

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
struct StreamSamples<'a> {
    walk: Option<Walk<'a>>,
    /// Of the next sample: the calls that are not its own, and the samples of the main stream
    /// before it.
    next: Option<(usize, u64)>,
}

impl<'a> StreamSamples<'a> {
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

/// The last sample of a stream at or before some time.
struct LastSample {
    sample: Sample,
    stack: Vec<LocationId>,
    /// How many samples of the main stream lie before it.
    main_before: u64,
}

impl LastSample {
    fn read(reading: &Reading, stream: u32, time_ns: u64) -> Found<Option<Self>> {
        reading.check_stream(stream)?;
        if reading.index.block_count(stream)? == 0 {
            return Ok(None);
        }
        let mut number = reading.block_at_time(stream, time_ns)?;
        // A block may have no sample, and its row then has the time of one before it.
        while number > 0 && reading.block(stream, number)?.entry()?.samples == 0 {
            number -= 1;
        }
        Self::read_in(reading, stream, number, time_ns)
    }

    fn read_in(reading: &Reading, stream: u32, number: u64, time_ns: u64) -> Found<Option<Self>> {
        let Some(mut walk) = Walk::new(reading, stream, number)? else { return Ok(None) };
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
                    let main_before = if main { walk.state.samples - 1 } else { main_before };
                    last = Some(Self {
                        sample: walk.sample.clone(),
                        stack: stack.to_vec(),
                        main_before,
                    });
                }
                _ => {}
            }
        }
        Ok(last)
    }
}

/// The samples of a thread, which are in two streams.
pub(super) struct ThreadSamples<'a> {
    reading: &'a Reading,
    thread: ThreadId,
}

impl<'a> ThreadSamples<'a> {
    /// The samples of this thread.
    pub(super) fn of(reading: &'a Reading, thread: ThreadId) -> Self {
        Self { reading, thread }
    }

    /// Calls `f` with the samples between two times in the order in which they were taken.
    pub(super) fn between(
        &self,
        (from_ns, to_ns): (u64, u64),
        f: &mut dyn FnMut(&Sample, &[LocationId]),
    ) -> Found<()> {
        let Self { reading, thread } = *self;
        reading.check_stream(thread.0)?;
        reading.check_stream(thread.0 | SIDE)?;
        let mut main = StreamSamples::new(reading, thread.0, from_ns)?;
        let mut side = StreamSamples::new(reading, thread.0 | SIDE, from_ns)?;
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

    /// Calls `f` with the samples of the two streams, one after the other: whether it is the side
    /// stream, and the number of the sample in it.
    pub(super) fn by_stream(
        &self,
        times_ns: &RangeInclusive<u64>,
        f: &mut dyn FnMut(bool, u64, &Sample),
    ) -> Found<()> {
        let Self { reading, thread } = *self;
        for stream in [thread.0, thread.0 | SIDE] {
            reading.check_stream(stream)?;
            let mut samples = StreamSamples::new(reading, stream, *times_ns.start())?;
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

    /// The last sample at or before a time, and its stack.
    pub(super) fn stack_at(&self, time_ns: u64) -> Found<Option<(Sample, Vec<LocationId>)>> {
        let Self { reading, thread } = *self;
        let main = LastSample::read(reading, thread.0, time_ns)?;
        let side = LastSample::read(reading, thread.0 | SIDE, time_ns)?;
        let last = match (main, side) {
            // The number of the main stream's last sample, and how many lie before the side's.
            (Some(main), Some(side)) if side.main_before > main.main_before => Some(side),
            (main, side) => main.or(side),
        };
        Ok(last.map(|LastSample { sample, stack, .. }| (sample, stack)))
    }
}
