//! What the frames of a scan make together.
//!
//! # Invariants
//! - A stream's block begins in the state that the one before it ended in, or frames are lost
//!   between them.

use std::collections::{HashMap, HashSet};

use super::checkpoint::{BlockEntry, Checkpoint};
use super::frame::FrameHeader;
use super::frames::Frames;
use super::index::tables::{CallRow, NEUTRAL_KINDS, Tables, neutral_place};
use super::kind::Kind;
use super::loss::{self, Counts, Loss, ThreadEnd, Totals, Unnoted};
use super::output::Identity;
use super::scanned::{FrameScan, Scan};
use super::survey::ObjectRow;
use super::walk::Walked;
use super::{MAX_DEPTH, Metadata, NONE, SIDE, ThreadId, TraceError, Value};

/// A stream between two frames.
#[derive(Debug)]
struct Lane {
    state: Checkpoint,
    /// Children so far: of the stream, then of each open call.
    children: Vec<u32>,
    /// Logical begin of the last block.
    earlier: Option<u64>,
    /// How many losses lie before its last block.
    losses: u64,
    /// The thread was seen to end.
    exit: bool,
}

impl Default for Lane {
    fn default() -> Self {
        let state = Checkpoint::default();
        Self { state, children: vec![0], earlier: None, losses: 0, exit: false }
    }
}

/// The objects of a kind.
#[derive(Debug, Default)]
struct Objects {
    /// What must be equal if an object is written again.
    crcs: Vec<u32>,
    /// Ids that were passed because frames are lost.
    lost: HashSet<u32>,
    /// How many ids may be passed.
    may_skip: u64,
    highest: Option<u32>,
}

/// Puts frames together.
#[derive(Debug)]
pub(super) struct Merge {
    all_calls: bool,
    tables: Tables,
    first: Option<FrameHeader>,
    last_offset: u64,
    last_end: u64,
    metadata: Metadata,
    objects: [Objects; NEUTRAL_KINDS.len()],
    /// Of stack nodes.
    depths: Vec<u32>,
    /// How many losses lie before each thread was named.
    named: Vec<u64>,
    lanes: HashMap<u32, Lane>,
    losses: u64,
    known_losses: Vec<Loss>,
    lost_samples: HashMap<u32, Vec<(u64, u64)>>,
    samples: u64,
    /// Thread-neutral objects, each time they are written.
    objects_ever: u64,
    lost: u64,
    eof: Option<Counts>,
    decoded_bytes: u64,
    checked: u64,
    seen_ns: u64,
    lost_frames: u64,
    mixed: bool,
    unnoted: Unnoted,
}

type Merged<T> = Result<T, &'static str>;

impl Merge {
    pub(super) fn new(all_calls: bool) -> Self {
        Self {
            all_calls,
            tables: Tables::default(),
            first: None,
            last_offset: super::HEADER_BYTES as u64,
            last_end: super::HEADER_BYTES as u64,
            metadata: Metadata::new(),
            objects: Default::default(),
            depths: Vec::new(),
            named: Vec::new(),
            lanes: HashMap::new(),
            losses: 0,
            known_losses: Vec::new(),
            lost_samples: HashMap::new(),
            samples: 0,
            objects_ever: 0,
            lost: 0,
            eof: None,
            decoded_bytes: 0,
            checked: super::HEADER_BYTES as u64,
            seen_ns: 0,
            lost_frames: 0,
            mixed: false,
            unnoted: Unnoted::default(),
        }
    }

    /// Takes in the next frame.
    pub(super) fn frame(&mut self, frame: &FrameScan) -> Result<(), TraceError> {
        let header = &frame.header;
        self.first = self.first.or(Some(*header));
        self.mixed |= frame.mixed;
        if frame.after_loss {
            let expected = self.tables.frames.len() as u64 + self.lost_frames;
            self.lost_frames += u64::from(header.sequence).saturating_sub(expected);
            self.losses += 1;
            self.unnoted.lose(self.seen_ns, header.first_ns);
            let may_skip = loss::ids_in(header.offset - self.last_end);
            self.objects.iter_mut().for_each(|objects| objects.may_skip += may_skip);
        }
        self.tables.add_frame(header);
        self.objects_ever += frame.survey.objects.len() as u64;
        for row in &frame.survey.objects {
            let position = header.position(row.at as usize);
            let at = |what| TraceError::Corrupt { offset: position, what };
            self.object(row).map_err(at)?;
            self.tables.add_neutral(row.kind, row.id, position);
        }
        let references = self.objects.iter_mut().zip(frame.survey.highest);
        references.for_each(|(objects, highest)| objects.highest = objects.highest.max(highest));
        self.metadata.extend(frame.survey.metadata.clone());
        for block in &frame.blocks {
            let Some(walked) = &block.walked else { continue };
            self.tables.add_block(header, block.at, &block.entry);
            let offset = header.position(block.at);
            self.block(&block.entry, walked)
                .map_err(|what| TraceError::Corrupt { offset, what })?;
        }
        self.seen_ns = self.seen_ns.max(header.last_ns);
        self.eof = frame.eof;
        self.decoded_bytes += frame.decoded_bytes;
        self.checked += header.total_bytes();
        self.last_offset = header.offset;
        self.last_end = header.offset + header.total_bytes();
        Ok(())
    }

    fn object(&mut self, row: &ObjectRow) -> Merged<()> {
        let Some(place) = neutral_place(row.kind) else { return Err("an object has no id") };
        let objects = &mut self.objects[place];
        let count = objects.crcs.len() as u64;
        match objects.crcs.get_mut(row.id as usize) {
            Some(known) if *known == row.crc => return Ok(()),
            Some(known) if objects.lost.remove(&row.id) => *known = row.crc,
            Some(_) => return Err("an object is written again with other content"),
            None => {
                let skipped = u64::from(row.id) - count;
                if skipped > objects.may_skip {
                    return Err("an object skips an id");
                }
                // What follows may have been lost too: an object with a known id is written again.
                objects.may_skip -= skipped;
                objects.lost.extend(count as u32..row.id);
                objects.crcs.resize(row.id as usize, 0);
                objects.crcs.push(row.crc);
                if skipped > 0 {
                    self.known_losses.extend(self.unnoted.note());
                }
            }
        }
        match row.kind {
            Kind::StackNode => self.depth(row),
            Kind::Thread => {
                self.named.resize(row.id as usize, 0);
                self.named.push(self.losses);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn depth(&mut self, row: &ObjectRow) -> Merged<()> {
        let depth = match row.parent {
            NONE => 0,
            parent => self.depths.get(parent as usize).map_or(0, |depth| depth + 1),
        };
        if depth as usize >= MAX_DEPTH {
            return Err("a call trace is too deep");
        }
        self.depths.resize(self.depths.len().max(row.id as usize + 1), 0);
        self.depths[row.id as usize] = depth;
        Ok(())
    }

    fn block(&mut self, entry: &BlockEntry, walked: &Walked) -> Merged<()> {
        let Self { lanes, tables, losses, all_calls, .. } = self;
        let lane = lanes.entry(entry.stream).or_default();
        if let Some(gone) = loss::resume(&lane.state, entry, lane.losses < *losses)? {
            lane.ended_in_loss(gone.survivors, entry, tables, *all_calls);
            lane.children.resize(entry.begin.depth() + 1, 0);
            self.lost = self.lost.saturating_add(gone.samples);
            self.lost_samples
                .entry(entry.stream)
                .or_default()
                .push((entry.begin.samples - gone.samples, gone.samples));
            self.known_losses.push(Loss {
                thread: Some(ThreadId(entry.stream & !SIDE)),
                from_ns: gone.from_ns,
                to_ns: gone.to_ns,
                samples: Some(gone.samples),
            });
        }
        lane.losses = *losses;
        for (total, added) in lane.children.iter_mut().zip(&walked.children[..=walked.low]) {
            *total = total.saturating_add(*added);
        }
        let mut depth = entry.begin.depth();
        for ended in &walked.ended {
            let children = lane.children[depth].saturating_add(ended.children);
            depth -= 1;
            if *all_calls || lane.earlier.is_some_and(|earlier| ended.row.start <= earlier) {
                tables.add_call(entry.stream, CallRow { children, ..ended.row });
            }
        }
        walked.inner.iter().for_each(|row| tables.add_call(entry.stream, *row));
        lane.children.truncate(walked.low + 1);
        lane.children.extend_from_slice(&walked.children[walked.low + 1..]);
        lane.earlier = Some(entry.begin.logical);
        lane.state.clone_from(&walked.end);
        lane.exit |= walked.exit;
        self.samples += entry.samples;
        Ok(())
    }

    /// Puts together what all frames made.
    pub(super) fn finish<R: std::io::Read>(
        mut self,
        frames: &Frames<R>,
    ) -> Result<Scan, TraceError> {
        let end = frames.end();
        let closed = end.is_some_and(|end| end.closed);
        let offset = self.last_offset;
        let corrupt = |what| TraceError::Corrupt { offset, what };
        self.check_references().map_err(corrupt)?;
        let missing = self.totals().missing().map_err(corrupt)?;
        let count = self.thread_count();
        let ends = (0..count).map(|id| self.thread_end(id));
        let tail = loss::at_end(ends, missing);
        self.known_losses.extend(tail);
        loss::sort(&mut self.known_losses);
        // A writer that failed ended the file, not its streams.
        let finished = closed && !self.metadata.contains_key(super::WRITE_ERROR);
        self.complete_streams(finished);
        self.tables.sort();
        let identity = self.identity();
        let notices = super::notice::notices(frames.bad(), &self.known_losses, end);
        Ok(Scan {
            tables: self.tables,
            identity,
            metadata: self.metadata,
            bad: frames.bad().to_vec(),
            losses: self.known_losses,
            lost_samples: self.lost_samples,
            lost_frames: self.lost_frames,
            last_ns: self.seen_ns,
            mixed: self.mixed,
            closed,
            samples: self.samples,
            threads: count,
            first: self.first,
            decoded_bytes: self.decoded_bytes,
            checked: self.checked,
            bytes: end.map_or(self.last_end, |end| end.offset + end.left_over),
            notices,
        })
    }

    /// What is referred to must be there, or lost.
    fn check_references(&mut self) -> Merged<()> {
        let mut lost = false;
        for (place, objects) in self.objects.iter_mut().enumerate() {
            let needed = objects.highest.map_or(0, |highest| u64::from(highest) + 1);
            let lacking = needed.saturating_sub(objects.crcs.len() as u64);
            if lacking > objects.may_skip {
                return Err(match NEUTRAL_KINDS[place] {
                    Kind::Thread => "a block belongs to a thread that does not exist",
                    Kind::Location => "an object refers to a location that does not exist",
                    _ => "an object refers to one that does not exist",
                });
            }
            lost |= lacking > 0;
            objects.crcs.resize((objects.crcs.len() as u64 + lacking) as usize, 0);
        }
        if lost {
            self.known_losses.extend(self.unnoted.note());
        }
        Ok(())
    }

    /// Threads, those included that are only referred to.
    fn thread_count(&self) -> u32 {
        self.objects[neutral_place(Kind::Thread).unwrap_or(0)].crcs.len() as u32
    }

    fn totals(&self) -> Totals {
        let (eof, samples, lost, losses) = (self.eof, self.samples, self.lost, self.losses);
        let (threads, objects) = (self.thread_count(), self.objects_ever);
        Totals { eof, samples, threads, objects, lost, losses }
    }

    fn thread_end(&self, id: u32) -> ThreadEnd {
        let lanes = [self.lanes.get(&id), self.lanes.get(&(id | SIDE))];
        let lanes = || lanes.iter().flatten();
        let named = self.named.get(id as usize).copied().unwrap_or(0);
        let heard = lanes().map(|lane| lane.losses).max().unwrap_or(0).max(named);
        ThreadEnd {
            id: ThreadId(id),
            last_ns: lanes().map(|lane| lane.state.last_ns).max().unwrap_or(0),
            open: heard < self.losses && !lanes().any(|lane| lane.exit),
        }
    }

    /// Adds the extents of the streams that have ended.
    fn complete_streams(&mut self, finished: bool) {
        for (stream, lane) in &self.lanes {
            let main = self.lanes.get(&(stream & !SIDE));
            let ended = finished || main.is_some_and(|lane| lane.exit);
            let end = lane.state.logical;
            if ended && end > 0 {
                let (children, samples) = (lane.children[0], lane.state.samples);
                let last_ns = lane.state.last_ns;
                let row = CallRow { start: 0, end, children, samples, last_ns };
                self.tables.add_call(*stream, row);
            }
        }
    }

    fn identity(&self) -> Option<Identity> {
        let first = self.first.filter(|first| first.sequence == 0)?;
        let Some(Value::Text(uuid)) = self.metadata.get("trace_uuid") else { return None };
        let uuid = u128::from_str_radix(uuid, 16).ok()?;
        Some(Identity { salt: first.salt, uuid })
    }
}

impl Lane {
    /// Ends the calls beyond the first `survivors`, whose footers are lost.
    fn ended_in_loss(
        &mut self,
        survivors: usize,
        entry: &BlockEntry,
        tables: &mut Tables,
        all_calls: bool,
    ) {
        let open = self.state.calls.iter().zip(&self.children[1..]);
        for (call, children) in open.skip(survivors) {
            if all_calls || self.earlier.is_some_and(|earlier| call.start <= earlier) {
                let samples = self.state.samples - call.samples_before;
                let (start, end) = (call.start, entry.begin.logical);
                let (children, last_ns) = (*children, self.state.last_ns);
                let row = CallRow { start, end, children, samples, last_ns };
                tables.add_call(entry.stream, row);
            }
        }
        self.children.truncate(survivors + 1);
    }
}
