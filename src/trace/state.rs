//! A thread while it is written: its streams, and the state of the inference and the gap rule.

use traceprof_abi::storage::log::flags;

use super::gap::Intervals;
use super::infer::{self, Site};
use super::object::{Neutral, TracePoint};
use super::stream::{Block, PlacedStack, Stream};
use super::{LocationId, SIDE, Sample, Thread, ThreadId};

/// The context that all threads of a trace share.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteContext<'a> {
    /// The sites by location.
    pub(super) sites: &'a [Site],
    /// The sampling period, or 0.
    pub(super) period_ns: u64,
    /// The interval between checks of threads that do not run, or 0.
    pub(super) wall_interval_ns: u64,
}

/// The identity of a stream: a thread, and which of its two streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamRef {
    pub(super) thread: ThreadId,
    pub(super) side: bool,
}

/// A thread that is being written.
#[derive(Debug)]
pub(super) struct ThreadState {
    id: u32,
    pid: u32,
    tid: u32,
    name: u32,
    /// The id of its name in its language's runtime plus 1, or 0.
    runtime_name: u32,
    first_seen_ns: u64,
    /// The time of the last sample.
    pub(super) last_ns: u64,
    /// The time of the last known stack, if there was a sample.
    known_ns: Option<u64>,
    /// Whether the thread was last seen not running, which explains a pause.
    waiting: bool,
    intervals: Box<Intervals>,
    main: Stream,
    side: Option<Box<Stream>>,
}

impl ThreadState {
    /// Creates a thread; `name` is the id of its name.
    pub(super) fn new(id: u32, thread: &Thread, name: u32) -> Self {
        Self {
            id,
            pid: thread.pid,
            tid: thread.tid,
            name,
            runtime_name: 0,
            first_seen_ns: thread.first_seen_ns,
            last_ns: 0,
            known_ns: None,
            waiting: false,
            intervals: Box::default(),
            main: Stream::new(id),
            side: None,
        }
    }

    /// Renames the thread.
    pub(super) fn rename(&mut self, name: u32) {
        self.name = name;
    }

    /// Sets the id of its name in its language's runtime.
    pub(super) fn set_runtime_name(&mut self, name: u32) {
        self.runtime_name = name.saturating_add(1);
    }

    /// Returns the thread as an object.
    pub(super) fn object(&self, ended_ns: Option<u64>) -> Neutral {
        let Self { id, pid, tid, name, runtime_name, first_seen_ns: first_seen, .. } = *self;
        let ended = ended_ns.unwrap_or(u64::MAX);
        Neutral::Thread { id, tid, pid, name, first_seen, ended, runtime_name }
    }

    /// Returns one of its streams.
    pub(super) fn stream(&mut self, side: bool) -> &mut Stream {
        let Self { main, side: of_side, .. } = self;
        match side {
            true => of_side.get_or_insert_with(|| Box::new(Stream::new(main.stream_id() | SIDE))),
            false => main,
        }
    }

    pub(super) fn streams(&mut self) -> impl Iterator<Item = &mut Stream> {
        std::iter::once(&mut self.main).chain(self.side.as_deref_mut())
    }

    /// Returns the number of bytes in its open blocks.
    pub(super) fn pending(&self) -> usize {
        self.main.pending() + self.side.as_ref().map_or(0, |side| side.pending())
    }

    /// Ends its open blocks.
    pub(super) fn end_blocks(&mut self) -> impl Iterator<Item = Block> {
        self.streams().filter_map(Stream::end_block)
    }

    /// Writes a sample. `unrooted` is the location of `[truncated]`, if the stack is incomplete.
    pub(super) fn sample(
        &mut self,
        sample: &Sample,
        stack: &[LocationId],
        unrooted: Option<LocationId>,
        common: WriteContext<'_>,
    ) {
        if !stack.is_empty() {
            self.note_interval(sample, common);
        }
        self.last_ns = sample.time_ns;
        if sample.flags & flags::FIRST != 0 && self.main.samples() == 0 {
            self.main.begin(common.period_ns);
            self.main.leaf(TracePoint::ThreadStart { time_ns: sample.time_ns });
        }
        let anchored = match unrooted {
            None => Some(0),
            Some(_) => infer::anchor(self.main.open(), stack, common.sites),
        };
        match (anchored, unrooted) {
            (None, Some(root)) => self.unrooted_sample(sample, stack, root, common),
            (outer, _) => {
                let outer = outer.unwrap_or(0);
                self.main.begin(common.period_ns);
                self.main.move_to(PlacedStack { stack, outer, proven: true }, common.sites);
                self.main.sample(sample, outer, None);
            }
        }
    }

    /// Writes a gap.
    fn gap(&mut self, tick_ns: u64, from_ns: u64, to_ns: u64) {
        self.close(tick_ns, false);
        self.main.begin(tick_ns);
        self.main.gap(from_ns, to_ns);
        self.known_ns = Some(self.known_ns.unwrap_or(0).max(to_ns));
    }

    /// Writes the thread's exit.
    pub(super) fn exit(&mut self, tick_ns: u64, time_ns: u64) {
        self.close(tick_ns, false);
        self.main.begin(tick_ns);
        self.main.leaf(TracePoint::ThreadExit { time_ns });
        self.streams().for_each(Stream::complete);
    }

    /// Closes every open call, because the recording ends.
    pub(super) fn finish(&mut self, tick_ns: u64) {
        self.close(tick_ns, true);
        self.streams().for_each(Stream::complete);
    }

    fn close(&mut self, tick_ns: u64, unfinished: bool) {
        for stream in self.streams().filter(|stream| !stream.open().is_empty()) {
            stream.begin(tick_ns);
            stream.close(0, unfinished);
        }
    }

    /// Applies the gap rule to the time since the last sample with a known stack. Measured wall
    /// clock time is not a gap.
    fn note_interval(&mut self, sample: &Sample, common: WriteContext<'_>) {
        let WriteContext { period_ns, wall_interval_ns, .. } = common;
        let measured = sample.flags & flags::WALL != 0;
        if let Some(known_ns) = self.known_ns.filter(|_| !measured) {
            let interval_ns = sample.time_ns.saturating_sub(known_ns);
            // Without a period there are no gaps. If waiting time is measured, a wait is known one
            // wall interval later.
            let expected_ns = if period_ns == 0 { 0 } else { period_ns.max(wall_interval_ns) };
            let long = self.intervals.add(interval_ns, expected_ns, sample.weight);
            if long && !self.waiting && sample.state == 0 {
                self.gap(period_ns, known_ns, sample.time_ns);
            }
        }
        self.known_ns = Some(self.known_ns.unwrap_or(0).max(sample.time_ns));
        self.waiting = sample.state != 0 || measured;
    }

    /// Writes a sample to the side stream, under its call of `[truncated]`.
    fn unrooted_sample(
        &mut self,
        sample: &Sample,
        stack: &[LocationId],
        root: LocationId,
        common: WriteContext<'_>,
    ) {
        let Self { main, side, .. } = self;
        let side = side.get_or_insert_with(|| Box::new(Stream::new(main.stream_id() | SIDE)));
        side.begin(common.period_ns);
        if side.open().is_empty() {
            side.open_call(root);
        }
        let anchor = infer::anchor(&side.open()[1..], stack, common.sites);
        let outer = 1 + anchor.unwrap_or(0);
        side.move_to(PlacedStack { stack, outer, proven: anchor.is_some() }, common.sites);
        side.sample(sample, outer, Some(main.samples()));
    }
}
