//! The thread-neutral objects of a lazily read trace, located by the index.

use std::collections::{BTreeSet, HashMap};

use super::fault::{LazyError, LazyResult};
use super::open_trace::OpenTrace;
use crate::trace::bytes::Cursor;
use crate::trace::kind::Kind;
use crate::trace::object::{Neutral, Record};
use crate::trace::resolve::object_bytes;
use crate::trace::{
    CallTrace, FrameKind, Location, LocationId, MAX_DEPTH, MappedModule, Metadata, Method,
    MethodId, Module, ModuleId, NONE, SIDE, TextId, Thread, TraceError, memory,
};

/// The name of objects that a damaged file has lost.
pub(super) const LOST: &str = "[lost]";

/// The objects, each read on request.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredObjects<'a> {
    trace: &'a OpenTrace,
}

impl<'a> StoredObjects<'a> {
    /// Creates the reader of this trace's objects.
    pub(super) fn of(trace: &'a OpenTrace) -> Self {
        Self { trace }
    }

    /// Returns the object with this kind and id; `None` if it is lost.
    pub(super) fn object(self, kind: Kind, id: u32) -> LazyResult<Option<Neutral>> {
        match self.trace.index.neutral(kind, id)? {
            Some((kind, position)) => {
                let object = self.object_at(kind, id, position)?;
                memory::note(OBJECT_BYTES + object_bytes(&object))?;
                Ok(Some(object))
            }
            None if self.trace.losses.any() => Ok(None),
            None => Err(LazyError::Index("an object refers to a missing object")),
        }
    }

    fn object_at(self, kind: Kind, id: u32, position: u64) -> LazyResult<Neutral> {
        const ELSEWHERE: LazyError = LazyError::Index("an object is not where the index says");
        let (frame, at) = self.trace.locate(position)?;
        let directory = self.trace.source.directory(frame)?;
        if at >= directory.header.payload_bytes() {
            return Err(ELSEWHERE);
        }
        let (bytes, base) = self.trace.source.payload(&directory, at)?;
        let mut cursor = Cursor::new(&bytes);
        cursor.skip_to(at - base);
        match Record::decode(&mut cursor) {
            Ok(Record::Neutral(object)) if object.kind() == kind && object.id() == id => Ok(object),
            _ => Err(ELSEWHERE),
        }
    }

    pub(super) fn string(self, id: u32) -> LazyResult<String> {
        match self.object(Kind::String, id)? {
            Some(Neutral::String { text, .. }) => Ok(text),
            _ => Ok(LOST.to_owned()),
        }
    }

    pub(super) fn string_if_there(self, id: u32) -> LazyResult<String> {
        match self.trace.index.neutral(Kind::String, id)? {
            Some(_) => self.string(id),
            None => Ok(LOST.to_owned()),
        }
    }

    pub(super) fn find_text(self, text: &str) -> LazyResult<BTreeSet<TextId>> {
        let mut found = BTreeSet::new();
        for id in 0..self.count(Kind::String)? {
            if self.string(id)? == text {
                found.insert(TextId(id));
            }
        }
        Ok(found)
    }

    pub(super) fn module(self, id: ModuleId) -> LazyResult<Module> {
        Ok(match self.object(Kind::Module, id.0)? {
            Some(Neutral::Module { path, build_id, .. }) => {
                Module { path: self.string(path)?, build_id }
            }
            _ => Module { path: LOST.to_owned(), build_id: Vec::new() },
        })
    }

    pub(super) fn method(self, id: MethodId) -> LazyResult<Method> {
        Ok(match self.object(Kind::Method, id.0)? {
            Some(Neutral::Method { module, start_svma, name, line, column, .. }) => Method {
                module: present(module).map(ModuleId),
                name: self.string(name)?,
                start_svma,
                line,
                column,
            },
            _ => Method::named(LOST),
        })
    }

    pub(super) fn location(self, id: LocationId) -> LazyResult<Location> {
        let object = self.object(Kind::Location, id.0)?;
        let Some(Neutral::Location {
            method,
            svma,
            file,
            line,
            column,
            inline_parent,
            frame_kind,
            ..
        }) = object
        else {
            let method = MethodId(self.trace.index.neutral_count(Kind::Method)?);
            return Ok(Location::at(method, 0));
        };
        let inline_parent = present(inline_parent);
        if inline_parent.is_some_and(|parent| parent >= id.0) {
            return Err(LazyError::Index("a location is inlined into a later one"));
        }
        Ok(Location {
            method: MethodId(method),
            svma,
            file: present(file).map(|file| self.string(file)).transpose()?,
            line,
            column,
            inline_parent: inline_parent.map(LocationId),
            kind: FrameKind::from_number(frame_kind),
        })
    }

    /// Returns all call traces, in the order of writing.
    pub(super) fn call_traces(self) -> LazyResult<Vec<CallTrace>> {
        let mut traces = Vec::new();
        for number in 0..self.trace.index.neutral_count(Kind::CallTrace)? {
            let object = self.object(Kind::CallTrace, number)?;
            if let Some(Neutral::CallTrace { trace_id, node, end_reason, .. }) = object {
                traces.push(CallTrace { trace_id, stack: self.stack(node)?, end_reason });
            }
        }
        Ok(traces)
    }

    /// Returns the call trace with an id, if call traces were written.
    pub(super) fn call_trace(self, trace_id: u64) -> LazyResult<Option<CallTrace>> {
        for number in 0..self.trace.index.neutral_count(Kind::CallTrace)? {
            let object = self.object(Kind::CallTrace, number)?;
            if let Some(Neutral::CallTrace { trace_id: found, node, end_reason, .. }) = object
                && found == trace_id
            {
                return Ok(Some(CallTrace { trace_id, stack: self.stack(node)?, end_reason }));
            }
        }
        Ok(None)
    }

    fn stack(self, mut node: u32) -> LazyResult<Vec<LocationId>> {
        let mut stack = Vec::new();
        while node != NONE && stack.len() < MAX_DEPTH {
            let Some(Neutral::StackNode { parent, location, .. }) =
                self.object(Kind::StackNode, node)?
            else {
                break;
            };
            if parent != NONE && parent >= node {
                return Err(LazyError::Index("a stack node is the child of a later one"));
            }
            stack.push(LocationId(location));
            node = parent;
        }
        stack.reverse();
        Ok(stack)
    }

    /// Returns all threads by id.
    pub(super) fn threads(self) -> LazyResult<Vec<Thread>> {
        let mut names = HashMap::new();
        let mut threads = Vec::new();
        for id in 0..self.thread_count()? {
            let object = self.object(Kind::Thread, id)?;
            let Some(Neutral::Thread { tid, pid, name, first_seen, ended, runtime_name, .. }) =
                object
            else {
                threads.push(Thread { name: LOST.to_owned(), ..Thread::default() });
                continue;
            };
            let mut named = |id: u32| -> LazyResult<String> {
                let known = match names.get(&id) {
                    Some(known) => String::clone(known),
                    None => names.entry(id).or_insert(self.string(id)?).clone(),
                };
                memory::note(known.len() as u64)?;
                Ok(known)
            };
            let name = named(name)?;
            let runtime_name = runtime_name.checked_sub(1).map(named).transpose()?;
            let (first_seen_ns, ended_ns) = (first_seen, (ended != u64::MAX).then_some(ended));
            threads.push(Thread { pid, tid, name, runtime_name, first_seen_ns, ended_ns });
        }
        Ok(threads)
    }

    /// Returns the number of threads, including those of which only the samples are left.
    fn thread_count(self) -> LazyResult<u32> {
        let count = self.count(Kind::Thread)?;
        if !self.trace.losses.any() {
            return Ok(count);
        }
        let streams = self.trace.index.streams()?;
        let sampled = streams.into_iter().map(|stream| (stream & !SIDE).saturating_add(1));
        Ok(count.max(sampled.max().unwrap_or(0)))
    }

    /// Returns the last value of each key.
    pub(super) fn metadata(self) -> LazyResult<Metadata> {
        let mut metadata = Metadata::new();
        for id in 0..self.count(Kind::Metadata)? {
            if let Some(Neutral::Metadata { key, value, .. }) = self.object(Kind::Metadata, id)? {
                metadata.insert(key, value);
            }
        }
        Ok(metadata)
    }

    /// Returns the mappings of modules.
    pub(super) fn mapped(self) -> LazyResult<Vec<MappedModule>> {
        let mut mapped = Vec::new();
        for id in 0..self.count(Kind::Mapping)? {
            let object = self.object(Kind::Mapping, id)?;
            let Some(Neutral::Mapping { pid, start, end, file_offset, module, seen, .. }) = object
            else {
                continue;
            };
            let module = ModuleId(module);
            mapped.push(MappedModule { pid, start, end, file_offset, module, first_seen_ns: seen });
        }
        Ok(mapped)
    }

    /// Returns the number of objects of a kind. A caller searches for each id, including lost ones,
    /// so the number may exceed the cells of the index only by as many objects as losses explain.
    pub(super) fn count(self, kind: Kind) -> LazyResult<u32> {
        let (count, rows) =
            (self.trace.index.neutral_count(kind)?, self.trace.index.neutral_rows(kind));
        if u64::from(count) > rows && !self.trace.losses.any() {
            return Err(LazyError::Index("an object skips an id"));
        }
        if u64::from(count) > rows.saturating_add(MAX_LOST) {
            let what = "the number of lost objects";
            return Err(LazyError::Trace(TraceError::LimitExceeded { what, limit: MAX_LOST }));
        }
        Ok(count)
    }
}

/// What an object takes without its texts.
const OBJECT_BYTES: u64 = 64;

/// The most objects of a kind that may be missing.
const MAX_LOST: u64 = 1 << 24;

/// Returns the id, unless it stands for none.
pub(super) fn present(id: u32) -> Option<u32> {
    (id != NONE).then_some(id)
}
