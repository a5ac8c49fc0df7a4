//! One file of a series: the objects in it, under ids of its own.
//!
//! # Invariants
//! - An object is written when it is first used in the file, after all objects that it refers to.

use std::collections::HashMap;

use super::objects::SeriesObjects;
use crate::trace::{
    LocationId, MappedModule, MethodId, ModuleId, NONE, SYMBOLS, TextId, ThreadId, TraceError,
    TraceWriter, Value,
};

/// The ids in the file by ids of the series.
#[derive(Debug, Default)]
struct PartIds(Vec<u32>);

impl PartIds {
    fn get(&self, id: u32) -> Option<u32> {
        self.0.get(id as usize).copied().filter(|id| *id != NONE)
    }

    fn set(&mut self, id: u32, own: u32) {
        if self.0.len() <= id as usize {
            self.0.resize(id as usize + 1, NONE);
        }
        // The vector was just extended.
        if let Some(place) = self.0.get_mut(id as usize) {
            *place = own;
        }
    }
}

/// The objects in the current file.
#[derive(Debug, Default)]
pub(super) struct SeriesPart {
    texts: PartIds,
    modules: PartIds,
    methods: PartIds,
    locations: PartIds,
    threads: HashMap<u32, ThreadId>,
    /// Whether a sample was written to the file.
    pub(super) has_samples: bool,
}

/// Returns the metadata key of the source of a module's function names.
pub(super) fn symbols_key(module: ModuleId) -> String {
    format!("{SYMBOLS}{}", module.0)
}

/// Returns the metadata key of a thread's ids in its own pid namespace.
pub(super) fn inner_ids_key(thread: ThreadId) -> String {
    format!("{}{}", super::INNER_IDS, thread.0)
}

impl SeriesPart {
    pub(super) fn text(
        &mut self,
        (writer, objects): (&mut TraceWriter, &SeriesObjects),
        id: TextId,
    ) -> Result<TextId, TraceError> {
        if let Some(own) = self.texts.get(id.0) {
            return Ok(TextId(own));
        }
        let own = writer.text(objects.text_of(id)?)?;
        self.texts.set(id.0, own.0);
        Ok(own)
    }

    pub(super) fn module(
        &mut self,
        (writer, objects): (&mut TraceWriter, &SeriesObjects),
        id: ModuleId,
    ) -> Result<ModuleId, TraceError> {
        if let Some(own) = self.modules.get(id.0) {
            return Ok(ModuleId(own));
        }
        let own = writer.module(objects.module_of(id)?)?;
        self.modules.set(id.0, own.0);
        if let Some(source) = objects.symbols.get(&id.0) {
            writer.set_metadata(&symbols_key(own), source.clone())?;
        }
        Ok(own)
    }

    /// Returns the module if it is in the file.
    pub(super) fn known_module(&self, id: u32) -> Option<ModuleId> {
        self.modules.get(id).map(ModuleId)
    }

    fn method(
        &mut self,
        (writer, objects): (&mut TraceWriter, &SeriesObjects),
        id: MethodId,
    ) -> Result<MethodId, TraceError> {
        if let Some(own) = self.methods.get(id.0) {
            return Ok(MethodId(own));
        }
        let mut method = objects.method_of(id)?;
        if let Some(module) = method.module {
            method.module = Some(self.module((&mut *writer, objects), module)?);
        }
        let own = writer.method(&method)?;
        self.methods.set(id.0, own.0);
        Ok(own)
    }

    pub(super) fn location(
        &mut self,
        (writer, objects): (&mut TraceWriter, &SeriesObjects),
        id: LocationId,
    ) -> Result<LocationId, TraceError> {
        if let Some(own) = self.locations.get(id.0) {
            return Ok(LocationId(own));
        }
        // The locations that it is inlined into come first; each has a smaller id, so the loop
        // ends.
        let mut chain = vec![id];
        let mut outer = objects.parent_of(id)?;
        while let Some(parent) = outer.filter(|parent| self.locations.get(parent.0).is_none()) {
            chain.push(parent);
            outer = objects.parent_of(parent)?;
        }
        let mut own = LocationId(NONE);
        for id in chain.into_iter().rev() {
            let mut location = objects.location_of(id)?;
            location.method = self.method((&mut *writer, objects), location.method)?;
            let parent = location.inline_parent.and_then(|it| self.locations.get(it.0));
            location.inline_parent = parent.map(LocationId);
            own = writer.location(&location)?;
            self.locations.set(id.0, own.0);
        }
        Ok(own)
    }

    pub(super) fn thread(
        &mut self,
        (writer, objects): (&mut TraceWriter, &SeriesObjects),
        id: ThreadId,
    ) -> Result<ThreadId, TraceError> {
        if let Some(own) = self.threads.get(&id.0) {
            return Ok(*own);
        }
        let own = writer.thread(objects.thread_of(id)?)?;
        self.threads.insert(id.0, own);
        if let Some(ids) = objects.inner_ids.get(&id.0) {
            writer.set_metadata(&inner_ids_key(own), ids.clone())?;
        }
        Ok(own)
    }

    /// Returns the thread if it is in the file.
    pub(super) fn known_thread(&self, id: u32) -> Option<ThreadId> {
        self.threads.get(&id).copied()
    }

    /// Removes a thread that exited.
    pub(super) fn end_thread(&mut self, id: ThreadId) {
        self.threads.remove(&id.0);
    }

    pub(super) fn map(
        &mut self,
        (writer, objects): (&mut TraceWriter, &SeriesObjects),
        mapped: &MappedModule,
    ) -> Result<(), TraceError> {
        let module = self.module((&mut *writer, objects), mapped.module)?;
        writer.mapped_module(&MappedModule { module, ..mapped.clone() })
    }

    /// Starts a file with everything that applies to each file.
    pub(super) fn begin(
        &mut self,
        writer: &mut TraceWriter,
        objects: &SeriesObjects,
    ) -> Result<(), TraceError> {
        for (key, value) in &objects.metadata {
            writer.set_metadata(key, Value::clone(value))?;
        }
        objects.mapped().try_for_each(|mapped| self.map((&mut *writer, objects), mapped))
    }
}
