//! The eager reader: a whole trace in memory, from the data file alone.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use super::bytes::{Cursor, Malformed};
use super::checkpoint::BlockEntry;
use super::forest::Forest;
use super::frame::{Frame, LAST};
use super::frames::Frames;
use super::object::Record;
use super::resolve::Neutrals;
use super::{
    CallTraces, Location, MappedModule, Metadata, Method, Module, NO_THREAD, SIDE, ThreadId,
    ThreadTrace, TraceError,
};

/// A trace in memory. Ids are indices of its vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedTrace {
    /// The last value of each key.
    pub metadata: Metadata,
    /// By [`ModuleId`](super::ModuleId).
    pub modules: Vec<Module>,
    /// By [`MethodId`](super::MethodId).
    pub methods: Vec<Method>,
    /// By [`LocationId`](super::LocationId).
    pub locations: Vec<Location>,
    /// In the order in which they were written.
    pub mapped: Vec<MappedModule>,
    /// Call traces that were written as objects.
    pub call_traces: CallTraces,
    /// By [`ThreadId`].
    pub threads: Vec<ThreadTrace>,
    /// The recording was finished; otherwise it is still running or was killed.
    pub closed: bool,
    /// What a user should know of the file's state.
    pub notices: Vec<String>,
}

/// Loads the data file at `path`.
///
/// A file without its end, or with a torn or foreign tail, is loaded up to its last whole frame;
/// [`LoadedTrace::notices`] says so.
///
/// # Errors
/// [`TraceError::NotATrace`], [`TraceError::NewerVersion`], [`TraceError::Io`], and
/// [`TraceError::Corrupt`] for a frame that is whole but says something impossible.
pub fn load(path: &Path) -> Result<LoadedTrace, TraceError> {
    load_frames(Frames::open(path)?)
}

/// Loads what `frames` has.
pub(super) fn load_frames<R: Read>(mut frames: Frames<R>) -> Result<LoadedTrace, TraceError> {
    let mut loading = Loading::default();
    while let Some(frame) = frames.next_frame()? {
        loading.last_offset = frame.header.offset;
        loading.frame(&frame)?;
    }
    let end = frames.end();
    let closed = end.is_some_and(|end| end.closed);
    let notices = end.and_then(|end| end.notice()).into_iter().collect();
    loading.finish(closed, notices)
}

#[derive(Debug, Default)]
struct Loading {
    neutrals: Neutrals,
    forests: HashMap<u32, Forest>,
    last_offset: u64,
}

impl Loading {
    fn frame(&mut self, frame: &Frame) -> Result<(), TraceError> {
        let directory =
            |bad: Malformed| TraceError::Corrupt { offset: frame.header.offset, what: bad.what };
        let mut end = 0;
        let blocks = frame.blocks().map_err(directory)?;
        if blocks.iter().map(|(_, entry)| u128::from(entry.samples)).sum::<u128>()
            != u128::from(frame.header.samples)
        {
            let what = "a frame has other samples than its header says";
            return Err(TraceError::Corrupt { offset: frame.header.offset, what });
        }
        for (at, entry) in blocks {
            end = at + entry.bytes as usize;
            self.block(&entry, &frame.payload[at..end]).map_err(|bad| TraceError::Corrupt {
                offset: frame.header.position(at + bad.at),
                what: bad.what,
            })?;
        }
        self.after_blocks(frame, end).map_err(|bad| TraceError::Corrupt {
            offset: frame.header.position(end + bad.at),
            what: bad.what,
        })
    }

    /// What follows the blocks: nothing, or in the last frame the EOF object.
    fn after_blocks(&self, frame: &Frame, end: usize) -> Result<(), Malformed> {
        let mut cursor = Cursor::new(&frame.payload[end..]);
        if frame.header.flags & LAST != 0 {
            let Record::Eof { samples, threads } = Record::decode(&mut cursor)? else {
                return cursor.fail("the last frame does not end with EOF");
            };
            let loaded: u64 = self.forests.values().map(Forest::sample_count).sum();
            if samples != loaded || (threads as usize) < self.forests.len() {
                return cursor.fail("the trace has other samples than its end says");
            }
        }
        if !cursor.is_at_end() {
            return cursor.fail("a frame has bytes left over");
        }
        Ok(())
    }

    fn block(&mut self, entry: &BlockEntry, bytes: &[u8]) -> Result<(), Malformed> {
        let mut cursor = Cursor::new(bytes);
        let begin = Record::BlockStart { stream: entry.stream };
        if entry.ends.first && Record::decode(&mut cursor)? != begin {
            return cursor.fail("a block does not begin as its directory says");
        }
        let neutral_only = entry.stream == NO_THREAD;
        let mut forest = match neutral_only {
            true => None,
            false => Some(self.forests.entry(entry.stream & !SIDE).or_default()),
        };
        let at = |at, what| Malformed { at, what };
        if let Some(forest) = &mut forest {
            forest.begin(entry).map_err(|what| at(0, what))?;
        }
        let Some(data_end) = bytes.len().checked_sub(usize::from(entry.ends.last)) else {
            return cursor.fail("a block has no room for its end");
        };
        while cursor.at() < data_end {
            let start = cursor.at();
            let record = Record::decode(&mut cursor)?;
            if let Some(forest) = &mut forest {
                let bytes = cursor.at() - start;
                forest.advance(entry.stream, bytes).map_err(|what| at(start, what))?;
            }
            let taken = match (record, &mut forest) {
                (Record::Neutral(object), _) => self.neutrals.add(object),
                (Record::Point(point), Some(forest)) => forest.apply(entry.stream, point),
                (Record::Unknown { .. }, _) => Ok(()),
                _ => Err("an object lies where it may not"),
            };
            taken.map_err(|what| at(start, what))?;
        }
        if entry.ends.last && Record::decode(&mut cursor)? != Record::BlockEnd {
            return cursor.fail("a block does not end where its directory says");
        }
        match forest {
            Some(forest) => forest.end(entry).map_err(|what| at(0, what)),
            None => Ok(()),
        }
    }

    fn finish(mut self, closed: bool, notices: Vec<String>) -> Result<LoadedTrace, TraceError> {
        let offset = self.last_offset;
        let corrupt = |what| TraceError::Corrupt { offset, what };
        let locations = self.neutrals.locations().map_err(corrupt)?;
        let highest = self.forests.values().filter_map(Forest::highest_location).max();
        if highest.is_some_and(|id| id.0 as usize >= locations.len()) {
            return Err(corrupt("a trace point refers to a location that does not exist"));
        }
        let mut threads = Vec::new();
        for thread in self.neutrals.threads().map_err(corrupt)? {
            let id = ThreadId(threads.len() as u32);
            let forest = self.forests.remove(&id.0).unwrap_or_default();
            threads.push(forest.finish(id, thread));
        }
        if !self.forests.is_empty() {
            return Err(corrupt("a block belongs to a thread that does not exist"));
        }
        Ok(LoadedTrace {
            modules: self.neutrals.modules().map_err(corrupt)?,
            methods: self.neutrals.methods().map_err(corrupt)?,
            mapped: self.neutrals.mapped().map_err(corrupt)?,
            call_traces: self.neutrals.call_traces().map_err(corrupt)?,
            metadata: self.neutrals.metadata(),
            locations,
            threads,
            closed,
            notices,
        })
    }
}
