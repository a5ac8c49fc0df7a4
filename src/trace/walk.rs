//! The trace points of a block, checked and counted without being built.
//!
//! # Invariants
//! - What [`Walk::block`] accepts, and the state that it ends in, is what [`super::forest`] accepts
//!   and reaches.

use super::bytes::{Cursor, Malformed, Parsed};
use super::checkpoint::{BlockEntry, Checkpoint, OpenCall};
use super::index::tables::CallRow;
use super::kind::{FIRST_SIZED, Kind};
use super::object::{Point, Record, bit};
use super::survey::Survey;
use super::{LocationId, MAX_DEPTH};

/// An open call.
#[derive(Debug, Clone, Copy)]
struct Level {
    location: u32,
    children: u32,
    call: OpenCall,
}

/// A call that was open when the block began and ended in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    /// Its children in this block.
    pub(super) children: u32,
    /// Its row but for the children.
    pub(super) row: CallRow,
}

/// What a block holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Walked {
    /// The state at its end.
    pub(super) end: Checkpoint,
    /// How many calls were open all the time.
    pub(super) low: usize,
    /// New children of the stream and of the open calls. Those beyond `low` have no others.
    pub(super) children: Vec<u32>,
    /// Calls that were open at its begin and ended, innermost first.
    pub(super) ended: Vec<Ended>,
    /// Calls that began and ended in it, if they were asked for.
    pub(super) inner: Vec<CallRow>,
    /// It has a TRACEPOINT_THREAD_EXIT.
    pub(super) exit: bool,
}

/// Walks over blocks.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Also list the calls that begin and end in one block.
    all_calls: bool,
    /// One more than the largest location id that was used, 0 if none was.
    pub(super) locations: u64,
    /// The same of the ids of texts.
    pub(super) texts: u64,
    levels: Vec<Level>,
    roots: u32,
    low: usize,
    last_ns: u64,
    first_ns: Option<u64>,
    samples: u64,
    main_before: u64,
    tick_ns: u64,
    /// What the time of the next sample is relative to.
    due_ns: u64,
    exit: bool,
    ended: Vec<Ended>,
    inner: Vec<CallRow>,
}

impl Walk {
    /// `all_calls` also lists the calls that begin and end in one block.
    pub(super) fn new(all_calls: bool) -> Self {
        Self { all_calls, ..Self::default() }
    }

    /// Walks over the block, or the part of one, that `entry` describes and that lies at `at` in
    /// its payload. Thread-neutral objects in it go to `survey`.
    pub(super) fn block(
        &mut self,
        entry: &BlockEntry,
        bytes: &[u8],
        at: usize,
        survey: &mut Survey,
    ) -> Parsed<Walked> {
        let mut cursor = Cursor::new(bytes);
        begin_block(&mut cursor, entry)?;
        let Some(data_end) = bytes.len().checked_sub(usize::from(entry.ends.last)) else {
            return cursor.fail("a block has no room for its end");
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

    fn end(&mut self, entry: &BlockEntry, logical: u64) -> Parsed<Walked> {
        let times = (self.first_ns.unwrap_or(entry.begin.last_ns), self.last_ns);
        let samples = self.samples - entry.begin.samples;
        if samples != entry.samples || times != (entry.first_ns, entry.last_ns) {
            let what = "a block has other samples than its directory says";
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

    /// Notes that `location` is referred to.
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

    /// Calls in a row, as far as they have short ids: most of a block.
    #[inline]
    fn calls(&mut self, cursor: &mut Cursor<'_>, base: u64) {
        let (outer, samples_before) = (self.levels.len(), self.samples);
        let mut locations = self.locations;
        while self.levels.len() < MAX_DEPTH
            && let Some(location) = cursor.short_behind(Kind::Call as u8)
        {
            locations = locations.max(u64::from(location) + 1);
            let call = OpenCall { start: base.wrapping_add(cursor.at() as u64), samples_before };
            self.levels.push(Level { location, children: 1, call });
        }
        self.locations = locations;
        if self.levels.len() > outer {
            // Each is the only child of the one before, so far.
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

    /// Notes the calls from `depth` on as ended.
    fn note_ended(&mut self, depth: usize, end: u64) {
        for place in (depth..self.levels.len()).rev() {
            let Level { children, call, .. } = self.levels[place];
            let samples = self.samples - call.samples_before;
            let row = CallRow { start: call.start, end, children, samples, last_ns: self.last_ns };
            if place < self.low {
                self.ended.push(Ended { children, row });
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
        self.levels[place.ok_or("a call that is not open moves")?].location = location;
        Ok(())
    }

    #[inline]
    fn sample(&mut self, cursor: &mut Cursor<'_>, start: usize) -> Parsed<()> {
        let present = cursor.varint()?;
        if present & !bit::ALL != 0 {
            return cursor.fail("a sample announces fields that cannot be");
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
            let what = "the time of a sample lies before that of the last one";
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

    /// The fields of a sample that most samples have not.
    #[inline(never)]
    fn rare_fields(&mut self, present: u64, cursor: &mut Cursor<'_>, start: usize) -> Parsed<()> {
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

    /// An object of a kind that is not common.
    #[inline(never)]
    fn rare(
        &mut self,
        number: u8,
        bytes: &[u8],
        cursor: &mut Cursor<'_>,
        start: usize,
    ) -> Parsed<()> {
        let mut whole = Cursor::new(&bytes[start..]);
        let at = |bad: Malformed| Malformed { at: start + bad.at, ..bad };
        let record = Record::decode(&mut whole).map_err(at)?;
        match (record, Kind::from_number(number)) {
            (Record::Point(point), _) => {
                self.exit |= number == Kind::ThreadExit as u8;
                if let Point::Gap { before, length } = point {
                    let times = super::forest::gap(before, length, self.last_ns);
                    let (_, to_ns) = times.map_err(|what| Malformed { at: start, what })?;
                    self.due_ns = to_ns;
                }
                self.child();
            }
            _ if number >= FIRST_SIZED => {}
            _ => {
                let what = "an object lies where it may not";
                return Err(Malformed { at: start, what });
            }
        }
        cursor.take(whole.at() - 1).map(drop)
    }
}

/// Passes the BLOCK_START that a block must have.
pub(super) fn begin_block(cursor: &mut Cursor<'_>, entry: &BlockEntry) -> Parsed<()> {
    let begin = Record::BlockStart { stream: entry.stream };
    if entry.ends.first && Record::decode(cursor)? != begin {
        return cursor.fail("a block does not begin as its directory says");
    }
    Ok(())
}

/// Passes the BLOCK_END that a block must have.
pub(super) fn end_block(cursor: &mut Cursor<'_>, entry: &BlockEntry) -> Parsed<()> {
    if entry.ends.last && Record::decode(cursor)? != Record::BlockEnd || !cursor.is_at_end() {
        return cursor.fail("a block does not end where its directory says");
    }
    Ok(())
}

/// Sets what a directory says of a block of trace points to what its points say; gives the state at
/// its end, if they can be read. `survey` takes the objects among them.
#[cfg(any(test, fuzzing))]
pub(super) fn measure(
    walk: &mut Walk,
    entry: &mut BlockEntry,
    bytes: &[u8],
    survey: &mut Survey,
) -> Option<Checkpoint> {
    (entry.first_ns, entry.last_ns) = (entry.begin.last_ns, entry.begin.last_ns);
    entry.samples = 0;
    // It fails where the numbers of samples are compared, after all points.
    let _ = walk.block(entry, bytes, 0, &mut Survey::default());
    entry.samples = walk.samples.wrapping_sub(entry.begin.samples);
    entry.first_ns = walk.first_ns.unwrap_or(entry.begin.last_ns);
    entry.last_ns = walk.last_ns;
    walk.block(entry, bytes, 0, survey).ok().map(|walked| walked.end)
}
