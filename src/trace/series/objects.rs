//! The objects and threads of all parts of a series, under ids of the series.
//!
//! # Invariants
//! - Ids are dense and valid for the life of the series, whatever happens to its files.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use crate::trace::intern::next_id;
use crate::trace::{
    FrameKind, Location, LocationId, MappedModule, Metadata, Method, MethodId, Module, ModuleId,
    TextId, Thread, ThreadId, TraceError, Value,
};

/// A table that assigns one id to each distinct value.
#[derive(Debug)]
pub(super) struct Interned<T> {
    list: Vec<T>,
    ids: HashMap<T, u32>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self { list: Vec::new(), ids: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Interned<T> {
    fn id(&mut self, value: T) -> Result<u32, TraceError> {
        if let Some(id) = self.ids.get(&value) {
            return Ok(*id);
        }
        let id = next_id(self.list.len())?;
        self.list.push(value.clone());
        self.ids.insert(value, id);
        Ok(id)
    }

    fn get(&self, kind: &'static str, id: u32) -> Result<&T, TraceError> {
        self.list.get(id as usize).ok_or(TraceError::UnknownId { kind, id })
    }
}

/// A method whose name is a text id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct MethodEntry {
    module: Option<ModuleId>,
    name: u32,
    start_svma: u64,
    line: u32,
    column: u32,
}

/// A location whose file is a text id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct LocationEntry {
    method: MethodId,
    svma: u64,
    file: Option<u32>,
    line: u32,
    column: u32,
    inline_parent: Option<LocationId>,
    kind: FrameKind,
}

/// All objects that were added to a series.
#[derive(Debug, Default)]
pub(super) struct SeriesObjects {
    texts: Interned<Arc<str>>,
    modules: Interned<Module>,
    methods: Interned<MethodEntry>,
    locations: Interned<LocationEntry>,
    /// The threads that have not exited.
    threads: BTreeMap<u32, Thread>,
    threads_ever: u32,
    /// The last value of each metadata key that applies to all parts.
    pub(super) metadata: Metadata,
    /// The sources of the modules' function names.
    pub(super) symbols: BTreeMap<u32, Value>,
    /// The ids of the processes and threads in their own pid namespace.
    pub(super) inner_ids: BTreeMap<u32, Value>,
    /// The current mappings, by process and first address.
    mapped: BTreeMap<(u32, u64), MappedModule>,
}

impl SeriesObjects {
    pub(super) fn text(&mut self, text: &str) -> Result<TextId, TraceError> {
        match self.texts.ids.get(text) {
            Some(id) => Ok(TextId(*id)),
            None => self.texts.id(text.into()).map(TextId),
        }
    }

    pub(super) fn module(&mut self, module: &Module) -> Result<ModuleId, TraceError> {
        self.modules.id(module.clone()).map(ModuleId)
    }

    pub(super) fn method(&mut self, method: &Method) -> Result<MethodId, TraceError> {
        method.module.map_or(Ok(()), |id| self.module_of(id).map(drop))?;
        let name = self.text(&method.name)?.0;
        let Method { module, start_svma, line, column, .. } = *method;
        let entry = MethodEntry { module, name, start_svma, line, column };
        self.methods.id(entry).map(MethodId)
    }

    pub(super) fn location(&mut self, location: &Location) -> Result<LocationId, TraceError> {
        let Location { method, svma, line, column, inline_parent, kind, .. } = *location;
        self.methods.get("method", method.0)?;
        inline_parent.map_or(Ok(()), |id| self.locations.get("location", id.0).map(drop))?;
        let file = location.file.as_deref().map(|file| self.text(file)).transpose()?;
        let file = file.map(|text| text.0);
        let entry = LocationEntry { method, svma, file, line, column, inline_parent, kind };
        self.locations.id(entry).map(LocationId)
    }

    pub(super) fn text_of(&self, id: TextId) -> Result<&Arc<str>, TraceError> {
        self.texts.get("text", id.0)
    }

    pub(super) fn module_of(&self, id: ModuleId) -> Result<&Module, TraceError> {
        self.modules.get("module", id.0)
    }

    pub(super) fn method_of(&self, id: MethodId) -> Result<Method, TraceError> {
        let entry = *self.methods.get("method", id.0)?;
        let MethodEntry { module, name, start_svma, line, column } = entry;
        let name = self.texts.get("text", name)?.to_string();
        Ok(Method { module, name, start_svma, line, column })
    }

    /// Returns the location with the same content but for its kind and its inline parent.
    pub(super) fn location_as(
        &mut self,
        id: LocationId,
        kind: FrameKind,
        inline_parent: Option<LocationId>,
    ) -> Result<LocationId, TraceError> {
        inline_parent.map_or(Ok(()), |id| self.locations.get("location", id.0).map(drop))?;
        let entry = *self.locations.get("location", id.0)?;
        self.locations.id(LocationEntry { kind, inline_parent, ..entry }).map(LocationId)
    }

    pub(super) fn location_of(&self, id: LocationId) -> Result<Location, TraceError> {
        let entry = *self.locations.get("location", id.0)?;
        let LocationEntry { method, svma, file, line, column, inline_parent, kind } = entry;
        let file = file.map(|file| self.texts.get("text", file)).transpose()?;
        let file = file.map(|file| file.to_string());
        Ok(Location { method, svma, file, line, column, inline_parent, kind })
    }

    /// Returns the location that this one is inlined into.
    pub(super) fn parent_of(&self, id: LocationId) -> Result<Option<LocationId>, TraceError> {
        Ok(self.locations.get("location", id.0)?.inline_parent)
    }

    pub(super) fn thread(&mut self, thread: &Thread) -> Result<ThreadId, TraceError> {
        let id = next_id(self.threads_ever as usize)?;
        self.threads_ever += 1;
        self.threads.insert(id, thread.clone());
        Ok(ThreadId(id))
    }

    pub(super) fn thread_of(&self, id: ThreadId) -> Result<&Thread, TraceError> {
        self.threads.get(&id.0).ok_or(TraceError::UnknownId { kind: "thread", id: id.0 })
    }

    pub(super) fn rename(&mut self, id: ThreadId, name: &str) -> Result<(), TraceError> {
        let unknown = TraceError::UnknownId { kind: "thread", id: id.0 };
        let thread = self.threads.get_mut(&id.0).ok_or(unknown)?;
        name.clone_into(&mut thread.name);
        Ok(())
    }

    pub(super) fn set_runtime_name(&mut self, id: ThreadId, name: &str) -> Result<(), TraceError> {
        let unknown = TraceError::UnknownId { kind: "thread", id: id.0 };
        let thread = self.threads.get_mut(&id.0).ok_or(unknown)?;
        thread.runtime_name = Some(name.to_owned());
        Ok(())
    }

    /// Removes a thread that exited: no later part has it.
    pub(super) fn end_thread(&mut self, id: ThreadId) {
        self.threads.remove(&id.0);
        self.inner_ids.remove(&id.0);
    }

    /// Adds a mapping, and removes those that it overlaps.
    pub(super) fn map(&mut self, mapped: &MappedModule) {
        let MappedModule { pid, start, end, .. } = *mapped;
        let before = self.mapped.range((pid, 0)..(pid, end));
        let overlapping = before.filter(|(_, it)| it.end > start).map(|(key, _)| *key);
        for key in overlapping.collect::<Vec<_>>() {
            self.mapped.remove(&key);
        }
        self.mapped.insert((pid, start), mapped.clone());
    }

    pub(super) fn mapped(&self) -> impl Iterator<Item = &MappedModule> {
        self.mapped.values()
    }
}
