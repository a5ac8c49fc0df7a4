//! Checks and counts the trace points of a block without building them.
//!
//! # Invariants
//! - [`BlockWalk::block`] accepts the same blocks and reaches the same state as [`super::forest`].

use super::bytes::{Cursor, Malformed, ParseResult};
use super::checkpoint::{BlockEntry, Checkpoint, OpenCall};
use super::index::tables::CallRow;
use super::kind::{FIRST_SIZED, Kind};
use super::object::{Record, TracePoint, bit};
use super::survey::Survey;
use super::{LocationId, MAX_DEPTH};

/// An open call.
#[derive(Debug, Clone, Copy)]
struct Level {
    location: u32,
    children: u32,
    call: OpenCall,
}

/// A call that was open at the start of the block and ended in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EndedCall {
    /// The number of its children in this block.
    pub(super) children: u32,
    /// Its row without the number of children.
    pub(super) row: CallRow,
}

/// The contents of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Walked {
    /// The state at its end.
    pub(super) end: Checkpoint,
    /// The number of calls that were open throughout the block.
    pub(super) low: usize,
    /// The number of new children of the stream and of each open call. Calls deeper than `low` have
    /// no other children.
    pub(super) children: Vec<u32>,
    /// The calls that were open at its start and ended in it, innermost first.
    pub(super) ended: Vec<EndedCall>,
    /// The calls that started and ended in it, if they were requested.
    pub(super) inner: Vec<CallRow>,
    /// Whether it has a TRACEPOINT_THREAD_EXIT.
    pub(super) exit: bool,
}

/// A walk over blocks.
#[derive(Debug, Default)]
pub(super) struct BlockWalk {
    /// Whether to list also the calls that start and end in one block.
    all_calls: bool,
    /// The largest location id in use plus one, 0 if none is used.
    pub(super) locations: u64,
    /// The largest text id in use plus one, 0 if none is used.
    pub(super) texts: u64,
    /// The union of the flags of all samples.
    pub(super) flags: u32,
    levels: Vec<Level>,
    roots: u32,
    low: usize,
    last_ns: u64,
    first_ns: Option<u64>,
    samples: u64,
    main_before: u64,
    tick_ns: u64,
    /// The base that the time of the next sample is relative to.
    due_ns: u64,
    exit: bool,
    ended: Vec<EndedCall>,
    inner: Vec<CallRow>,
}

impl BlockWalk {
    /// Creates a walk. With `all_calls` it lists also the calls that start and end in one block.
    pub(super) fn new(all_calls: bool) -> Self {
        Self { all_calls, ..Self::default() }
    }

    /// Walks over the block, or the part of a block, that `entry` describes and that is at offset
    /// `at` in its payload. Adds the thread-neutral objects in it to `survey`.
    pub(super) fn block(
        &mut self,
        entry: &BlockEntry,
        bytes: &[u8],
        at: usize,
        survey: &mut Survey,
    ) -> ParseResult<Walked> {
        let mut cursor = Cursor::new(bytes);
        begin_block(&mut cursor, entry)?;
        let Some(data_end) = bytes.len().checked_sub(usize::from(entry.ends.last)) else {
            return cursor.fail("a block is too short for its end");
        };
        if entry.begin.logical.checked_add(entry.data_bytes()).is_none() {
            return cursor.fail("a logical offset overflows");
        }
        self.begin(entry);
        let base = entry.begin.logical.wrapping_sub(cursor.at() as u64);
        loop {
            self.calls(&mut cursor, base);
            if cursor.at() >= data_end {
                break;
            }
            let start = cursor.at();
            let number = cursor.u8()?;
            let wrong = |what| Malformed { at: start, what };
            match Kind::from_number(number) {
                Some(Kind::Sample) => self.sample(&mut cursor, start)?,
                Some(Kind::Call) => {
                    let location = cursor.varint32()?;
                    self.call(location, base.wrapping_add(cursor.at() as u64)).map_err(wrong)?;
                }
                Some(Kind::Footer) => {
                    let run = cursor.varint()? >> 1;
                    self.footer(run, base.wrapping_add(start as u64)).map_err(wrong)?;
                }
                Some(Kind::Site) => {
                    let location = cursor.varint32()?;
                    self.site(0, location).map_err(wrong)?;
                }
                Some(Kind::OuterSite) => {
                    let up = cursor.varint32()?;
                    let location = cursor.varint32()?;
                    self.site(up as usize, location).map_err(wrong)?;
                }
                Some(kind) if (kind as u8) < Kind::Call as u8 => {
                    survey.object(kind, &mut cursor, at + start, bytes)?;
                }
                _ => self.rare(number, bytes, &mut cursor, start)?,
            }
        }
        end_block(&mut cursor, entry)?;
        self.end(entry, base.wrapping_add(data_end as u64))
    }

    fn begin(&mut self, entry: &BlockEntry) {
        let begin = &entry.begin;
        self.levels.clear();
        self.ended.clear();
        self.inner.clear();
        let level = |(location, call): (&LocationId, &OpenCall)| Level {
            location: location.0,
            children: 0,
            call: *call,
        };
        self.levels.extend(begin.locations.iter().zip(&begin.calls).map(level));
        begin.locations.iter().for_each(|location| self.refer(location.0));
        self.low = self.levels.len();
        (self.roots, self.exit, self.first_ns) = (0, false, None);
        (self.last_ns, self.samples) = (begin.last_ns, begin.samples);
        (self.main_before, self.tick_ns) = (begin.main_before, entry.tick_ns);
        self.due_ns = begin.last_ns.wrapping_add(entry.tick_ns);
    }

    fn end(&mut self, entry: &BlockEntry, logical: u64) -> ParseResult<Walked> {
        let times = (self.first_ns.unwrap_or(entry.begin.last_ns), self.last_ns);
        let samples = self.samples - entry.begin.samples;
        if samples != entry.samples || times != (entry.first_ns, entry.last_ns) {
            let what = "the samples of a block differ from its directory entry";
            return Err(Malformed { at: 0, what });
        }
        let end = Checkpoint {
            logical,
            last_ns: self.last_ns,
            samples: self.samples,
            main_before: self.main_before,
            locations: self.levels.iter().map(|level| LocationId(level.location)).collect(),
            calls: self.levels.iter().map(|level| level.call).collect(),
        };
        let of_levels = self.levels.iter().map(|level| level.children);
        Ok(Walked {
            end,
            low: self.low,
            children: std::iter::once(self.roots).chain(of_levels).collect(),
            ended: std::mem::take(&mut self.ended),
            inner: std::mem::take(&mut self.inner),
            exit: self.exit,
        })
    }

    /// Records a reference to `location`.
    #[inline]
    fn refer(&mut self, location: u32) {
        self.locations = self.locations.max(u64::from(location) + 1);
    }

    /// Counts a child of the call that is `depth` levels below the thread.
    #[inline]
    fn child_of(&mut self, depth: usize) {
        let children = match depth.checked_sub(1) {
            Some(place) => &mut self.levels[place].children,
            None => &mut self.roots,
        };
        *children = children.saturating_add(1);
    }

    #[inline]
    fn child(&mut self) {
        self.child_of(self.levels.len());
    }

    #[inline]
    fn call(&mut self, location: u32, start: u64) -> Result<(), &'static str> {
        if self.levels.len() == MAX_DEPTH {
            return Err("too many calls are open");
        }
        self.child();
        self.refer(location);
        let call = OpenCall { start, samples_before: self.samples };
        self.levels.push(Level { location, children: 0, call });
        Ok(())
    }

    /// Processes consecutive calls with short ids, which are most of a block.
    #[inline]
    fn calls(&mut self, cursor: &mut Cursor<'_>, base: u64) {
        let (outer, samples_before) = (self.levels.len(), self.samples);
        let mut locations = self.locations;
        while self.levels.len() < MAX_DEPTH
            && let Some(location) = cursor.short_varint_after(Kind::Call as u8)
        {
            locations = locations.max(u64::from(location) + 1);
            let call = OpenCall { start: base.wrapping_add(cursor.at() as u64), samples_before };
            self.levels.push(Level { location, children: 1, call });
        }
        self.locations = locations;
        if self.levels.len() > outer {
            // Each call is the only child of the previous one so far.
            self.child_of(outer);
            if let Some(innermost) = self.levels.last_mut() {
                innermost.children = 0;
            }
        }
    }

    #[inline]
    fn footer(&mut self, run: u64, end: u64) -> Result<(), &'static str> {
        let depth = (self.levels.len() as u64).checked_sub(run);
        let depth = depth.ok_or("a footer closes more calls than are open")? as usize;
        if depth < self.low || self.all_calls {
            self.note_ended(depth, end);
        }
        self.levels.truncate(depth);
        Ok(())
    }

    /// Records the calls from `depth` on as ended.
    fn note_ended(&mut self, depth: usize, end: u64) {
        for place in (depth..self.levels.len()).rev() {
            let Level { children, call, .. } = self.levels[place];
            let samples = self.samples - call.samples_before;
            let row = CallRow { start: call.start, end, children, samples, last_ns: self.last_ns };
            if place < self.low {
                self.ended.push(EndedCall { children, row });
            } else if self.all_calls {
                self.inner.push(row);
            }
        }
        self.low = self.low.min(depth);
    }

    #[inline]
    fn site(&mut self, up: usize, location: u32) -> Result<(), &'static str> {
        self.refer(location);
        let place = self.levels.len().checked_sub(up.saturating_add(1));
        self.levels[place.ok_or("a trace point moves a call that is not open")?].location =
            location;
        Ok(())
    }

    #[inline]
    fn sample(&mut self, cursor: &mut Cursor<'_>, start: usize) -> ParseResult<()> {
        let present = cursor.varint()?;
        if present & !bit::ALL != 0 {
            return cursor.fail("a sample has invalid field bits");
        }
        let time = cursor.signed()?;
        if present & bit::SLOT != 0 {
            cursor.varint32()?;
        }
        if present & bit::EPOCH != 0 {
            cursor.varint32()?;
        }
        if present & !(bit::SLOT | bit::EPOCH) != 0 {
            self.rare_fields(present, cursor, start)?;
        }
        let time_ns = self.due_ns.wrapping_add(time as u64);
        if time_ns < self.last_ns {
            let what = "the time of a sample is before that of the last one";
            return Err(Malformed { at: start, what });
        }
        self.last_ns = time_ns;
        self.due_ns = time_ns.wrapping_add(self.tick_ns);
        self.first_ns = self.first_ns.or(Some(time_ns));
        let overflow = Malformed { at: start, what: "a count overflows" };
        self.samples = self.samples.checked_add(1).ok_or(overflow)?;
        self.child();
        Ok(())
    }

    /// Checks the fields of a sample that most samples do not have.
    #[inline(never)]
    fn rare_fields(
        &mut self,
        present: u64,
        cursor: &mut Cursor<'_>,
        start: usize,
    ) -> ParseResult<()> {
        let has = |bit| present & bit != 0;
        let small = |limit: u64, cursor: &mut Cursor<'_>| match cursor.varint()? {
            value if value <= limit => Ok(value),
            _ => cursor.fail("a field of a sample is out of range"),
        };
        let wide = u64::from(u32::MAX);
        let mut outer = 0;
        for (bit, limit) in [
            (bit::WEIGHT, wide),
            (bit::END_REASON, u64::from(u16::MAX)),
            (bit::FLAGS, wide),
            (bit::OUTER, wide),
            (bit::STATE, u64::from(u8::MAX)),
            (bit::SYSCALL, wide),
            (bit::SPAN, u64::MAX),
            (bit::ROOT_SPAN, u64::MAX),
        ] {
            if has(bit) {
                let value = small(limit, cursor)?;
                outer = if bit == bit::OUTER { value } else { outer };
                self.flags |= if bit == bit::FLAGS { value as u32 } else { 0 };
            }
        }
        if has(bit::TAGS) {
            let mask = small((1 << 10) - 1, cursor)?;
            for _ in 0..mask.count_ones() {
                small(wide, cursor)?;
            }
        }
        if has(bit::MAIN_BEFORE) {
            let skipped = cursor.varint()?;
            let overflow = Malformed { at: start, what: "a count overflows" };
            self.main_before = self.main_before.checked_add(skipped).ok_or(overflow)?;
        }
        if has(bit::WAITS_ON) {
            self.texts = self.texts.max(small(wide, cursor)?);
        }
        if has(bit::ROOT_HIGH) {
            cursor.varint()?;
        }
        for _ in 0..(present >> bit::LATER).count_ones() {
            cursor.varint()?;
        }
        if outer > self.levels.len() as u64 {
            let what = "a sample leaves out more calls than are open";
            return Err(Malformed { at: start, what });
        }
        Ok(())
    }

    /// Checks an object of a kind that is not common.
    #[inline(never)]
    fn rare(
        &mut self,
        number: u8,
        bytes: &[u8],
        cursor: &mut Cursor<'_>,
        start: usize,
    ) -> ParseResult<()> {
        let mut whole = Cursor::new(&bytes[start..]);
        let at = |bad: Malformed| Malformed { at: start + bad.at, ..bad };
        let record = Record::decode(&mut whole).map_err(at)?;
        match (record, Kind::from_number(number)) {
            (Record::Point(point), _) => {
                self.exit |= number == Kind::ThreadExit as u8;
                if let TracePoint::Gap { before, length } = point {
                    let times = super::forest::gap(before, length, self.last_ns);
                    let (_, to_ns) = times.map_err(|what| Malformed { at: start, what })?;
                    self.due_ns = to_ns;
                }
                self.child();
            }
            _ if number >= FIRST_SIZED => {}
            _ => {
                let what = "an object is in a block that may not contain it";
                return Err(Malformed { at: start, what });
            }
        }
        cursor.take(whole.at() - 1).map(drop)
    }
}

/// Skips and checks the BLOCK_START of a block.
pub(super) fn begin_block(cursor: &mut Cursor<'_>, entry: &BlockEntry) -> ParseResult<()> {
    let begin = Record::BlockStart { stream: entry.stream };
    if entry.ends.first && Record::decode(cursor)? != begin {
        return cursor.fail("a block does not begin as its directory says");
    }
    Ok(())
}

/// Skips and checks the BLOCK_END of a block.
pub(super) fn end_block(cursor: &mut Cursor<'_>, entry: &BlockEntry) -> ParseResult<()> {
    if entry.ends.last && Record::decode(cursor)? != Record::BlockEnd || !cursor.is_at_end() {
        return cursor.fail("a block does not end where its directory says");
    }
    Ok(())
}

/// Sets the directory entry of a block of trace points according to its points. Returns the state
/// at its end, if the points are valid. Adds the objects among them to `survey`.
#[cfg(any(test, fuzzing))]
pub(super) fn measure(
    walk: &mut BlockWalk,
    entry: &mut BlockEntry,
    bytes: &[u8],
    survey: &mut Survey,
) -> Option<Checkpoint> {
    (entry.first_ns, entry.last_ns) = (entry.begin.last_ns, entry.begin.last_ns);
    entry.samples = 0;
    // The first walk fails where the numbers of samples are compared, after all points.
    let _ = walk.block(entry, bytes, 0, &mut Survey::default());
    entry.samples = walk.samples.wrapping_sub(entry.begin.samples);
    entry.first_ns = walk.first_ns.unwrap_or(entry.begin.last_ns);
    entry.last_ns = walk.last_ns;
    walk.block(entry, bytes, 0, survey).ok().map(|walked| walked.end)
}
