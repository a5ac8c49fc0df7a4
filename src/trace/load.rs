//! The eager reader: loads a complete trace into memory, from the data file alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::Path;

use super::budget::Budget;
use super::bytes::{Cursor, Malformed};
use super::checkpoint::BlockEntry;
use super::forest::{Forest, ForestEnd};
use super::frame::{Frame, FrameHeader};
use super::frames::Frames;
use super::loss::{self, EofCounts, FileTotals, Loss, PendingLoss, ThreadEnd};
use super::notice::notices;
use super::object::Record;
use super::resolve::{Neutrals, Referred};
use super::scanned::after_blocks;
use super::tags::TextTags;
use super::walk::{begin_block, end_block};
use super::{
    CallTraces, HEADER_BYTES, LoadLimits, Location, MappedModule, Metadata, Method, Module,
    NO_THREAD, SIDE, TextId, ThreadId, ThreadTrace, TraceError,
};

/// A trace in memory. Ids are indices of its vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedTrace {
    /// The last value of each key.
    pub metadata: Metadata,
    /// The modules by [`ModuleId`](super::ModuleId).
    pub modules: Vec<Module>,
    /// The methods by [`MethodId`](super::MethodId).
    pub methods: Vec<Method>,
    /// The locations by [`LocationId`](super::LocationId).
    pub locations: Vec<Location>,
    /// The texts that samples refer to: what they wait on, and tags.
    pub texts: BTreeMap<TextId, String>,
    /// The mappings of modules, in the order of recording.
    pub mapped: Vec<MappedModule>,
    /// The call traces that were written as objects.
    pub call_traces: CallTraces,
    /// The threads by [`ThreadId`].
    pub threads: Vec<ThreadTrace>,
    /// Whether the recording was finished; otherwise it is still running or was killed.
    pub closed: bool,
    /// The losses of a damaged file.
    pub losses: Vec<Loss>,
    /// Notices for the user about the state of the file.
    pub notices: Vec<String>,
}

/// Loads the data file at `path`.
///
/// A file without its end, or with a torn or foreign tail, is loaded up to its last complete frame.
/// Damage in between is skipped: [`LoadedTrace::losses`] and [`Node::Lost`](super::Node::Lost)
/// state what is lost, and lost thread-neutral objects are named `[lost]`. [`LoadedTrace::notices`]
/// has a summary.
///
/// # Errors
/// [`TraceError::NotATrace`], [`TraceError::NewerVersion`], [`TraceError::Io`],
/// [`TraceError::Corrupt`] for a complete frame with impossible content, and
/// [`TraceError::LimitExceeded`] for a trace that would take more memory than
/// [`LoadLimits::default`] allows.
pub fn load(path: &Path) -> Result<LoadedTrace, TraceError> {
    load_frames(Frames::open(path)?, LoadLimits::default())
}

/// Loads a data file from any input, for example a pipe. `name` is for messages.
///
/// # Errors
/// Those of [`load`](fn@load).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("out.trace");
/// # traceprof::trace::TraceWriter::create(&path, Default::default())?.finish()?;
/// let bytes = std::fs::read(&path)?;
/// let trace = traceprof::trace::load_from(&bytes[..], "bytes in memory".as_ref())?;
/// assert!(trace.closed && trace.losses.is_empty());
/// # Ok(())
/// # }
/// ```
pub fn load_from(input: impl Read, name: &Path) -> Result<LoadedTrace, TraceError> {
    load_within(input, name, LoadLimits::default())
}

/// Like [`load_from`], with other limits.
pub fn load_within(
    input: impl Read,
    name: &Path,
    limits: LoadLimits,
) -> Result<LoadedTrace, TraceError> {
    load_frames(Frames::new(input, name)?, limits)
}

/// Loads all frames of `frames`.
fn load_frames<R: Read>(
    mut frames: Frames<R>,
    limits: LoadLimits,
) -> Result<LoadedTrace, TraceError> {
    let mut loading = Loading::new(limits);
    while let Some(frame) = frames.next_frame()? {
        if frames.after_loss() {
            loading.note_loss(&frame.header);
        }
        loading.frame(&frame)?;
    }
    loading.finish(&frames)
}

/// The number of objects between two checks of the memory use.
const OBJECTS_UNCHECKED: u32 = 1024;

#[derive(Debug)]
struct Loading {
    neutrals: Neutrals,
    forests: HashMap<u32, Forest>,
    budget: Budget,
    last_offset: u64,
    last_end: u64,
    /// The time of the last sample so far.
    seen_ns: u64,
    /// The number of times that frames were lost.
    losses: u64,
    known_losses: Vec<Loss>,
    pending_loss: PendingLoss,
    lost: u64,
    /// The number of losses before each thread was named.
    named: Vec<u64>,
    eof: Option<EofCounts>,
}

impl Loading {
    fn new(limits: LoadLimits) -> Self {
        Self {
            neutrals: Neutrals::default(),
            forests: HashMap::new(),
            budget: Budget::new(limits),
            last_offset: HEADER_BYTES as u64,
            last_end: HEADER_BYTES as u64,
            seen_ns: 0,
            losses: 0,
            known_losses: Vec::new(),
            pending_loss: PendingLoss::default(),
            lost: 0,
            named: Vec::new(),
            eof: None,
        }
    }

    fn note_loss(&mut self, header: &FrameHeader) {
        self.losses += 1;
        self.pending_loss.add(self.seen_ns, header.first_ns);
        self.neutrals.note_loss(loss::ids_in(header.offset - self.last_end));
    }

    fn frame(&mut self, frame: &Frame) -> Result<(), TraceError> {
        let header = &frame.header;
        let offset = header.offset;
        let mut end = 0;
        let placeholders = self.neutrals.placeholders();
        let blocks =
            frame.blocks().map_err(|bad| TraceError::Corrupt { offset, what: bad.what })?;
        if blocks.iter().map(|(_, entry)| u128::from(entry.samples)).sum::<u128>()
            != u128::from(header.samples)
        {
            let what = "the number of samples in a frame differs from its header";
            return Err(TraceError::Corrupt { offset, what });
        }
        for (at, entry) in blocks {
            end = at + entry.bytes as usize;
            let taken = self.block(&entry, &frame.payload[at..end]);
            taken.map_err(|bad| self.budget.error(header.position(at + bad.at), bad.what))?;
        }
        self.eof = after_blocks(header, &frame.payload[end..]).map_err(|bad| {
            let offset = header.position(end + bad.at);
            TraceError::Corrupt { offset, what: bad.what }
        })?;
        for id in self.named.len() as u32..self.neutrals.thread_count() {
            let lost = self.neutrals.is_thread_lost(id);
            self.named.push(if lost { 0 } else { self.losses });
        }
        if self.neutrals.placeholders() > placeholders {
            self.known_losses.extend(self.pending_loss.take());
        }
        self.seen_ns = self.seen_ns.max(header.last_ns);
        self.last_offset = offset;
        self.last_end = offset + header.total_bytes();
        Ok(())
    }

    fn block(&mut self, entry: &BlockEntry, bytes: &[u8]) -> Result<(), Malformed> {
        let mut cursor = Cursor::new(bytes);
        begin_block(&mut cursor, entry)?;
        let Some(data_end) = bytes.len().checked_sub(usize::from(entry.ends.last)) else {
            return cursor.fail("a block is too short for its end");
        };
        let at = |at| move |what| Malformed { at, what };
        if entry.stream == NO_THREAD {
            while cursor.at() < data_end {
                let start = cursor.at();
                match Record::decode(&mut cursor)? {
                    Record::Neutral(object) => self.neutrals.add(object, &mut self.budget),
                    Record::Unknown { .. } => Ok(()),
                    _ => Err("an object is in a block that may not contain it"),
                }
                .map_err(at(start))?;
            }
            return end_block(&mut cursor, entry);
        }
        let forest = self.forests.entry(entry.stream & !SIDE).or_default();
        let held = forest.memory();
        if let Some(resumption) = forest.begin(entry, self.losses).map_err(at(0))? {
            self.lost = self.lost.saturating_add(resumption.samples);
            self.known_losses.push(Loss {
                thread: Some(ThreadId(entry.stream & !SIDE)),
                from_ns: resumption.from_ns,
                to_ns: resumption.to_ns,
                samples: Some(resumption.samples),
            });
        }
        let mut unchecked = 0;
        while cursor.at() < data_end {
            let start = cursor.at();
            let record = Record::decode(&mut cursor)?;
            forest.advance(entry.stream, cursor.at() - start).map_err(at(start))?;
            match record {
                Record::Neutral(object) => self.neutrals.add(object, &mut self.budget),
                Record::Point(point) => forest.apply(entry.stream, point),
                Record::Unknown { .. } => Ok(()),
                _ => Err("an object is in a block that may not contain it"),
            }
            .map_err(at(start))?;
            unchecked += 1;
            if unchecked % OBJECTS_UNCHECKED == 0 {
                self.budget.check(forest.memory() - held).map_err(at(start))?;
            }
        }
        end_block(&mut cursor, entry)?;
        forest.end(entry).map_err(at(0))?;
        // A new forest counts completely.
        let before = if held == Forest::default().memory() { 0 } else { held };
        self.budget.take(forest.memory() - before).map_err(at(0))
    }

    fn finish<R>(mut self, frames: &Frames<R>) -> Result<LoadedTrace, TraceError>
    where
        R: Read,
    {
        let end = frames.end();
        let closed = end.is_some_and(|end| end.closed);
        let missing = self.settle().map_err(|what| self.budget.error(self.last_offset, what))?;
        let ends = (0..self.neutrals.thread_count()).map(|id| self.thread_end(id));
        let tail = loss::at_end(ends, missing);
        self.known_losses.extend_from_slice(&tail);
        loss::sort(&mut self.known_losses);
        let notices = notices(frames.bad(), &self.known_losses, end);
        let losses = std::mem::take(&mut self.known_losses);
        let offset = self.last_offset;
        let end = ForestEnd { closed, losses: self.losses, lost: None };
        self.resolve(end, &tail)
            .map(|trace| LoadedTrace { notices, losses, ..trace })
            .map_err(|(budget, what)| budget.error(offset, what))
    }

    /// Makes the checks that need the end of the file. Returns the number of missing samples.
    fn settle(&mut self) -> Result<Option<u64>, &'static str> {
        let highest = self.forests.values().filter_map(Forest::highest_location).max();
        let last_thread = self.forests.keys().max().copied();
        let placeholders = self.neutrals.placeholders();
        let after = |id: u32| u64::from(id) + 1;
        let text = self.forests.values().filter_map(|forest| forest.texts().last()).max();
        let referred = Referred {
            locations: highest.map_or(0, |id| after(id.0)),
            threads: last_thread.map_or(0, after),
            texts: text.map_or(0, |id| after(id.0)),
        };
        self.neutrals.settle(referred, &mut self.budget)?;
        self.named.resize(self.neutrals.thread_count() as usize, 0);
        if self.neutrals.placeholders() > placeholders {
            self.known_losses.extend(self.pending_loss.take());
        }
        let samples = self.forests.values().map(Forest::sample_count).sum();
        let (eof, lost, losses) = (self.eof, self.lost, self.losses);
        let (threads, objects) = (self.neutrals.thread_count(), self.neutrals.added());
        FileTotals { eof, samples, threads, objects, lost, losses }.missing()
    }

    fn thread_end(&self, id: u32) -> ThreadEnd {
        let forest = self.forests.get(&id);
        let losses_before = forest.map_or(0, Forest::losses).max(self.named[id as usize]);
        ThreadEnd {
            id: ThreadId(id),
            last_ns: forest.map_or(0, Forest::last_ns),
            open: losses_before < self.losses && !forest.is_some_and(Forest::exit),
        }
    }

    /// Resolves all references and ends the open calls.
    fn resolve(
        mut self,
        end: ForestEnd,
        tail: &[Loss],
    ) -> Result<LoadedTrace, (Budget, &'static str)> {
        let mut lost: HashMap<_, _> = tail.iter().map(|loss| (loss.thread, *loss)).collect();
        let Self { neutrals, forests, budget, .. } = &mut self;
        let resolved = (|| {
            let mut texts: BTreeSet<_> =
                forests.values().flat_map(Forest::texts).copied().collect();
            let tags = TextTags::of(neutrals.metadata());
            if !tags.is_empty() {
                // Nothing guarantees that the values of tags refer to existing texts.
                let text_end = TextId(u32::try_from(neutrals.texts().count()).unwrap_or(u32::MAX));
                let of_tags = forests.values().flat_map(|forest| forest.tag_texts(tags));
                texts.extend(of_tags.filter(|text| *text < text_end));
            }
            let mut threads = Vec::new();
            for thread in neutrals.threads(budget)? {
                let id = ThreadId(threads.len() as u32);
                let forest = forests.remove(&id.0).unwrap_or_default();
                let lost = lost.remove(&Some(id));
                threads.push(forest.finish(id, thread, ForestEnd { lost, ..end }));
            }
            Ok(LoadedTrace {
                modules: neutrals.modules(budget)?,
                methods: neutrals.methods(budget)?,
                locations: neutrals.locations(budget)?,
                texts: neutrals.texts_of(texts, budget)?,
                mapped: neutrals.mapped()?,
                call_traces: neutrals.call_traces()?,
                metadata: neutrals.take_metadata(),
                threads,
                closed: end.closed,
                losses: Vec::new(),
                notices: Vec::new(),
            })
        })();
        resolved.map_err(|what| (self.budget, what))
    }
}
