//! The samples of a lazily read trace by thread and time.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::fault::LazyResult;
use super::open_trace::OpenTrace;
use super::walk::{Step, StreamWalk};
use crate::trace::{LocationId, SIDE, Sample, ThreadId};

/// The threads and times to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The threads, `None` for all.
    pub threads: Option<BTreeSet<ThreadId>>,
    /// The first time, in CLOCK_MONOTONIC nanoseconds.
    pub from_ns: u64,
    /// The last time, in CLOCK_MONOTONIC nanoseconds.
    pub to_ns: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { threads: None, from_ns: 0, to_ns: u64::MAX }
    }
}

impl Window {
    /// Returns whether the window includes this thread.
    pub fn has_thread(&self, thread: ThreadId) -> bool {
        self.threads.as_ref().is_none_or(|threads| threads.contains(&thread))
    }
}

/// The samples of one stream.
struct StreamSamples<'a> {
    walk: Option<StreamWalk<'a>>,
    /// For the next sample: the number of outer calls that are not its own, and the number of
    /// samples of the main stream before it.
    next: Option<(usize, u64)>,
}

impl<'a> StreamSamples<'a> {
    /// Starts at the first block that can contain a sample at or after `from_ns`.
    fn new(trace: &'a OpenTrace, stream: u32, from_ns: u64) -> LazyResult<Self> {
        // Samples with equal times may start in the block before.
        let block = trace.block_at_time(stream, from_ns.saturating_sub(1))?;
        let mut samples = Self { walk: StreamWalk::new(trace, stream, block)?, next: None };
        samples.advance()?;
        Ok(samples)
    }

    /// Moves to the next sample.
    fn advance(&mut self) -> LazyResult<()> {
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

    /// Returns the next sample and its stack.
    fn get(&self) -> Option<(&Sample, &[LocationId])> {
        let (walk, (outer, _)) = (self.walk.as_ref()?, self.next?);
        Some((&walk.sample, walk.state.locations.get(outer..).unwrap_or_default()))
    }

    /// Returns the number of samples of the stream before the next one.
    fn count_before(&self) -> u64 {
        self.walk.as_ref().map_or(0, |walk| walk.state.samples.saturating_sub(1))
    }
}

/// The last sample of a stream at or before a time.
struct LastSample {
    sample: Sample,
    stack: Vec<LocationId>,
    /// The number of samples of the main stream before it.
    main_before: u64,
}

impl LastSample {
    fn read(trace: &OpenTrace, stream: u32, time_ns: u64) -> LazyResult<Option<Self>> {
        trace.check_stream(stream)?;
        if trace.index.block_count(stream)? == 0 {
            return Ok(None);
        }
        let mut number = trace.block_at_time(stream, time_ns)?;
        // A block may have no samples; its row then has the time of an earlier sample.
        while number > 0 && trace.block(stream, number)?.entry()?.samples == 0 {
            number -= 1;
        }
        Self::read_in(trace, stream, number, time_ns)
    }

    fn read_in(
        trace: &OpenTrace,
        stream: u32,
        number: u64,
        time_ns: u64,
    ) -> LazyResult<Option<Self>> {
        let Some(mut walk) = StreamWalk::new(trace, stream, number)? else { return Ok(None) };
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

/// Reads the samples of a thread from its two streams.
pub(super) struct ThreadSampleReader<'a> {
    trace: &'a OpenTrace,
    thread: ThreadId,
}

impl<'a> ThreadSampleReader<'a> {
    /// Creates the reader of this thread's samples.
    pub(super) fn of(trace: &'a OpenTrace, thread: ThreadId) -> Self {
        Self { trace, thread }
    }

    /// Calls `f` with the samples between two times in the order of recording.
    pub(super) fn between(
        &self,
        (from_ns, to_ns): (u64, u64),
        f: &mut dyn FnMut(&Sample, &[LocationId]),
    ) -> LazyResult<()> {
        let Self { trace, thread } = *self;
        trace.check_stream(thread.0)?;
        trace.check_stream(thread.0 | SIDE)?;
        let mut main = StreamSamples::new(trace, thread.0, from_ns)?;
        let mut side = StreamSamples::new(trace, thread.0 | SIDE, from_ns)?;
        loop {
            let side_is_next = match (main.next, side.next) {
                (Some(_), Some((_, main_before))) => main_before <= main.count_before(),
                (None, Some(_)) => true,
                (_, None) => false,
            };
            let stream = if side_is_next { &mut side } else { &mut main };
            let Some((sample, stack)) = stream.get() else { return Ok(()) };
            // Times of a thread never decrease, across both streams.
            if sample.time_ns > to_ns {
                return Ok(());
            }
            if sample.time_ns >= from_ns {
                f(sample, stack);
            }
            stream.advance()?;
        }
    }

    /// Calls `f` with the samples of the two streams, one after the other. The arguments are
    /// whether it is the side stream, the number of the sample in the stream, and the sample.
    pub(super) fn by_stream(
        &self,
        times_ns: &RangeInclusive<u64>,
        f: &mut dyn FnMut(bool, u64, &Sample),
    ) -> LazyResult<()> {
        let Self { trace, thread } = *self;
        for stream in [thread.0, thread.0 | SIDE] {
            trace.check_stream(stream)?;
            let mut samples = StreamSamples::new(trace, stream, *times_ns.start())?;
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

    /// Returns the last sample at or before a time, and its stack.
    pub(super) fn stack_at(&self, time_ns: u64) -> LazyResult<Option<(Sample, Vec<LocationId>)>> {
        let Self { trace, thread } = *self;
        let main = LastSample::read(trace, thread.0, time_ns)?;
        let side = LastSample::read(trace, thread.0 | SIDE, time_ns)?;
        let last = match (main, side) {
            // Compares the number of the main stream's last sample with the number of main samples
            // before the side stream's last one.
            (Some(main), Some(side)) if side.main_before > main.main_before => Some(side),
            (main, side) => main.or(side),
        };
        Ok(last.map(|LastSample { sample, stack, .. }| (sample, stack)))
    }
}
