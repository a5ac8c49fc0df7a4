//! One file of a series: which objects it has, under ids of its own.
//!
//! # Invariants
//! - An object is defined when it is first used in the file, after all that it refers to.

use std::collections::HashMap;

use super::book::Book;
use crate::trace::{
    LocationId, MappedModule, MethodId, ModuleId, NONE, SYMBOLS, TextId, ThreadId, TraceError,
    TraceWriter, Value,
};

/// Ids in the file by ids of the series.
#[derive(Debug, Default)]
struct Ids(Vec<u32>);

impl Ids {
    fn get(&self, id: u32) -> Option<u32> {
        self.0.get(id as usize).copied().filter(|id| *id != NONE)
    }

    fn set(&mut self, id: u32, own: u32) {
        if self.0.len() <= id as usize {
            self.0.resize(id as usize + 1, NONE);
        }
        // Just made long enough.
        if let Some(place) = self.0.get_mut(id as usize) {
            *place = own;
        }
    }
}

/// What the current file has.
#[derive(Debug, Default)]
pub(super) struct Part {
    texts: Ids,
    modules: Ids,
    methods: Ids,
    locations: Ids,
    threads: HashMap<u32, ThreadId>,
    /// A sample has been written to it.
    pub(super) has_samples: bool,
}

/// The key of a module's source of names.
pub(super) fn symbols_key(module: ModuleId) -> String {
    format!("{SYMBOLS}{}", module.0)
}

/// The key of what a thread is called by itself.
pub(super) fn inner_ids_key(thread: ThreadId) -> String {
    format!("{}{}", super::INNER_IDS, thread.0)
}

impl Part {
    pub(super) fn text(
        &mut self,
        (writer, book): (&mut TraceWriter, &Book),
        id: TextId,
    ) -> Result<TextId, TraceError> {
        if let Some(own) = self.texts.get(id.0) {
            return Ok(TextId(own));
        }
        let own = writer.text(book.text_of(id)?)?;
        self.texts.set(id.0, own.0);
        Ok(own)
    }

    pub(super) fn module(
        &mut self,
        (writer, book): (&mut TraceWriter, &Book),
        id: ModuleId,
    ) -> Result<ModuleId, TraceError> {
        if let Some(own) = self.modules.get(id.0) {
            return Ok(ModuleId(own));
        }
        let own = writer.module(book.module_of(id)?)?;
        self.modules.set(id.0, own.0);
        if let Some(source) = book.symbols.get(&id.0) {
            writer.set_metadata(&symbols_key(own), source.clone())?;
        }
        Ok(own)
    }

    /// The module if it is in the file.
    pub(super) fn known_module(&self, id: u32) -> Option<ModuleId> {
        self.modules.get(id).map(ModuleId)
    }

    fn method(
        &mut self,
        (writer, book): (&mut TraceWriter, &Book),
        id: MethodId,
    ) -> Result<MethodId, TraceError> {
        if let Some(own) = self.methods.get(id.0) {
            return Ok(MethodId(own));
        }
        let mut method = book.method_of(id)?;
        if let Some(module) = method.module {
            method.module = Some(self.module((&mut *writer, book), module)?);
        }
        let own = writer.method(&method)?;
        self.methods.set(id.0, own.0);
        Ok(own)
    }

    pub(super) fn location(
        &mut self,
        (writer, book): (&mut TraceWriter, &Book),
        id: LocationId,
    ) -> Result<LocationId, TraceError> {
        if let Some(own) = self.locations.get(id.0) {
            return Ok(LocationId(own));
        }
        // Those that it is inlined into come first; each has a smaller id, so that this ends.
        let mut chain = vec![id];
        let mut outer = book.parent_of(id)?;
        while let Some(parent) = outer.filter(|parent| self.locations.get(parent.0).is_none()) {
            chain.push(parent);
            outer = book.parent_of(parent)?;
        }
        let mut own = LocationId(NONE);
        for id in chain.into_iter().rev() {
            let mut location = book.location_of(id)?;
            location.method = self.method((&mut *writer, book), location.method)?;
            let parent = location.inline_parent.and_then(|it| self.locations.get(it.0));
            location.inline_parent = parent.map(LocationId);
            own = writer.location(&location)?;
            self.locations.set(id.0, own.0);
        }
        Ok(own)
    }

    pub(super) fn thread(
        &mut self,
        (writer, book): (&mut TraceWriter, &Book),
        id: ThreadId,
    ) -> Result<ThreadId, TraceError> {
        if let Some(own) = self.threads.get(&id.0) {
            return Ok(*own);
        }
        let own = writer.thread(book.thread_of(id)?)?;
        self.threads.insert(id.0, own);
        if let Some(ids) = book.inner_ids.get(&id.0) {
            writer.set_metadata(&inner_ids_key(own), ids.clone())?;
        }
        Ok(own)
    }

    /// The thread if it is in the file.
    pub(super) fn known_thread(&self, id: u32) -> Option<ThreadId> {
        self.threads.get(&id).copied()
    }

    /// A thread has ended.
    pub(super) fn end_thread(&mut self, id: ThreadId) {
        self.threads.remove(&id.0);
    }

    pub(super) fn map(
        &mut self,
        (writer, book): (&mut TraceWriter, &Book),
        mapped: &MappedModule,
    ) -> Result<(), TraceError> {
        let module = self.module((&mut *writer, book), mapped.module)?;
        writer.mapped_module(&MappedModule { module, ..mapped.clone() })
    }

    /// Begins a file: all that holds for each of them.
    pub(super) fn begin(
        &mut self,
        writer: &mut TraceWriter,
        book: &Book,
    ) -> Result<(), TraceError> {
        for (key, value) in &book.metadata {
            writer.set_metadata(key, Value::clone(value))?;
        }
        book.mapped().try_for_each(|mapped| self.map((&mut *writer, book), mapped))
    }
}
