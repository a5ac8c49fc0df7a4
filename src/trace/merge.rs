//! Merges the scanned frames of a file.
//!
//! # Invariants
//! - A stream's block starts in the state in which the previous block ended, or frames are lost
//!   between them.

use std::collections::{HashMap, HashSet};

use super::checkpoint::{BlockEntry, Checkpoint};
use super::frame::FrameHeader;
use super::frames::Frames;
use super::index::tables::{CallRow, IndexTables, NEUTRAL_KINDS, neutral_kind_index};
use super::kind::Kind;
use super::loss::{self, EofCounts, FileTotals, Loss, PendingLoss, ThreadEnd};
use super::output::Identity;
use super::scanned::{FrameScan, Scan};
use super::survey::ObjectRow;
use super::walk::Walked;
use super::{MAX_DEPTH, Metadata, NONE, SIDE, ThreadId, TraceError, Value, memory};

/// The state of a stream between two frames.
#[derive(Debug)]
struct StreamProgress {
    state: Checkpoint,
    /// The number of children so far: of the stream, then of each open call.
    children: Vec<u32>,
    /// The logical offset of the last block.
    earlier: Option<u64>,
    /// The number of losses before its last block.
    losses: u64,
    /// Whether the thread's exit was seen.
    exit: bool,
}

impl Default for StreamProgress {
    fn default() -> Self {
        let state = Checkpoint::default();
        Self { state, children: vec![0], earlier: None, losses: 0, exit: false }
    }
}

/// The objects of one kind.
#[derive(Debug, Default)]
struct KindObjects {
    /// The checksum of each object, which must be equal if the object is written again.
    crcs: Vec<u32>,
    /// The ids that were skipped because frames are lost.
    lost: HashSet<u32>,
    /// The number of ids that may be skipped.
    may_skip: u64,
    highest: Option<u32>,
}

/// The merged result of the frames so far.
#[derive(Debug)]
pub(super) struct Merge {
    all_calls: bool,
    tables: IndexTables,
    first: Option<FrameHeader>,
    last_offset: u64,
    last_end: u64,
    metadata: Metadata,
    objects: [KindObjects; NEUTRAL_KINDS.len()],
    /// The depths of the stack nodes.
    depths: Vec<u32>,
    /// The number of losses before each thread was named.
    named: Vec<u64>,
    streams: HashMap<u32, StreamProgress>,
    losses: u64,
    known_losses: Vec<Loss>,
    lost_samples: HashMap<u32, Vec<(u64, u64)>>,
    samples: u64,
    /// The number of thread-neutral objects; an object that is written again counts again.
    objects_ever: u64,
    lost: u64,
    eof: Option<EofCounts>,
    decoded_bytes: u64,
    checked: u64,
    seen_ns: u64,
    lost_frames: u64,
    mixed: bool,
    flags: u32,
    pending_loss: PendingLoss,
}

type Merged<T> = Result<T, &'static str>;

impl Merge {
    pub(super) fn new(all_calls: bool) -> Self {
        Self {
            all_calls,
            tables: IndexTables::default(),
            first: None,
            last_offset: super::HEADER_BYTES as u64,
            last_end: super::HEADER_BYTES as u64,
            metadata: Metadata::new(),
            objects: Default::default(),
            depths: Vec::new(),
            named: Vec::new(),
            streams: HashMap::new(),
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
            flags: 0,
            pending_loss: PendingLoss::default(),
        }
    }

    /// Merges the next frame.
    pub(super) fn frame(&mut self, frame: &FrameScan) -> Result<(), TraceError> {
        let header = &frame.header;
        memory::note(header.decoded_bytes())?;
        self.first = self.first.or(Some(*header));
        self.mixed |= frame.mixed;
        self.flags |= frame.flags;
        if frame.after_loss {
            let expected = self.tables.frames.len() as u64 + self.lost_frames;
            self.lost_frames += u64::from(header.sequence).saturating_sub(expected);
            self.losses += 1;
            self.pending_loss.add(self.seen_ns, header.first_ns);
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
        let Some(place) = neutral_kind_index(row.kind) else { return Err("an object has no id") };
        let objects = &mut self.objects[place];
        let count = objects.crcs.len() as u64;
        match objects.crcs.get_mut(row.id as usize) {
            Some(known) if *known == row.crc => return Ok(()),
            Some(known) if objects.lost.remove(&row.id) => *known = row.crc,
            Some(_) => return Err("an object is written again with different content"),
            None => {
                let skipped = u64::from(row.id) - count;
                if skipped > objects.may_skip {
                    return Err("an object skips an id");
                }
                // Later ids may have been lost too: a known object is written again after a loss.
                objects.may_skip -= skipped;
                objects.lost.extend(count as u32..row.id);
                objects.crcs.resize(row.id as usize, 0);
                objects.crcs.push(row.crc);
                if skipped > 0 {
                    self.known_losses.extend(self.pending_loss.take());
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
        let Self { streams, tables, losses, all_calls, .. } = self;
        let progress = streams.entry(entry.stream).or_default();
        if let Some(resumption) = loss::resume(&progress.state, entry, progress.losses < *losses)? {
            progress.ended_in_loss(resumption.survivors, entry, tables, *all_calls);
            progress.children.resize(entry.begin.depth() + 1, 0);
            self.lost = self.lost.saturating_add(resumption.samples);
            self.lost_samples
                .entry(entry.stream)
                .or_default()
                .push((entry.begin.samples - resumption.samples, resumption.samples));
            self.known_losses.push(Loss {
                thread: Some(ThreadId(entry.stream & !SIDE)),
                from_ns: resumption.from_ns,
                to_ns: resumption.to_ns,
                samples: Some(resumption.samples),
            });
        }
        progress.losses = *losses;
        for (total, added) in progress.children.iter_mut().zip(&walked.children[..=walked.low]) {
            *total = total.saturating_add(*added);
        }
        let mut depth = entry.begin.depth();
        for ended in &walked.ended {
            let children = progress.children[depth].saturating_add(ended.children);
            depth -= 1;
            if *all_calls || progress.earlier.is_some_and(|earlier| ended.row.start <= earlier) {
                tables.add_call(entry.stream, CallRow { children, ..ended.row });
            }
        }
        walked.inner.iter().for_each(|row| tables.add_call(entry.stream, *row));
        progress.children.truncate(walked.low + 1);
        progress.children.extend_from_slice(&walked.children[walked.low + 1..]);
        progress.earlier = Some(entry.begin.logical);
        progress.state.clone_from(&walked.end);
        progress.exit |= walked.exit;
        self.samples += entry.samples;
        Ok(())
    }

    /// Builds the result from all frames.
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
        // A writer that failed has ended the file, but not its streams.
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
            flags: self.flags,
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

    /// Checks that all objects that are referred to exist or are lost.
    fn check_references(&mut self) -> Merged<()> {
        let mut lost = false;
        for (place, objects) in self.objects.iter_mut().enumerate() {
            let needed = objects.highest.map_or(0, |highest| u64::from(highest) + 1);
            let missing_ids = needed.saturating_sub(objects.crcs.len() as u64);
            if missing_ids > objects.may_skip {
                return Err(match NEUTRAL_KINDS[place] {
                    Kind::Thread => "a block belongs to a missing thread",
                    Kind::Location => "an object refers to a missing location",
                    _ => "an object refers to a missing object",
                });
            }
            lost |= missing_ids > 0;
            objects.crcs.resize((objects.crcs.len() as u64 + missing_ids) as usize, 0);
        }
        if lost {
            self.known_losses.extend(self.pending_loss.take());
        }
        Ok(())
    }

    /// Returns the number of threads, including those that are only referred to.
    fn thread_count(&self) -> u32 {
        self.objects[neutral_kind_index(Kind::Thread).unwrap_or(0)].crcs.len() as u32
    }

    fn totals(&self) -> FileTotals {
        let (eof, samples, lost, losses) = (self.eof, self.samples, self.lost, self.losses);
        let (threads, objects) = (self.thread_count(), self.objects_ever);
        FileTotals { eof, samples, threads, objects, lost, losses }
    }

    fn thread_end(&self, id: u32) -> ThreadEnd {
        let streams = [self.streams.get(&id), self.streams.get(&(id | SIDE))];
        let streams = || streams.iter().flatten();
        let named = self.named.get(id as usize).copied().unwrap_or(0);
        let losses_before = streams().map(|progress| progress.losses).max().unwrap_or(0).max(named);
        ThreadEnd {
            id: ThreadId(id),
            last_ns: streams().map(|progress| progress.state.last_ns).max().unwrap_or(0),
            open: losses_before < self.losses && !streams().any(|progress| progress.exit),
        }
    }

    /// Adds the rows of the streams that have ended.
    fn complete_streams(&mut self, finished: bool) {
        for (stream, progress) in &self.streams {
            let main = self.streams.get(&(stream & !SIDE));
            let ended = finished || main.is_some_and(|progress| progress.exit);
            let end = progress.state.logical;
            if ended && end > 0 {
                let (children, samples) = (progress.children[0], progress.state.samples);
                let last_ns = progress.state.last_ns;
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

impl StreamProgress {
    /// Ends the calls after the first `survivors`, whose footers are lost.
    fn ended_in_loss(
        &mut self,
        survivors: usize,
        entry: &BlockEntry,
        tables: &mut IndexTables,
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
