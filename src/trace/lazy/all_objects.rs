//! All modules, methods and locations of a lazily read trace.
//!
//! # Invariants
//! - Texts are limited with every copy that a view may make of them: a file states a text once and
//!   refers to it as often as it likes.

use super::fault::{LazyError, LazyResult};
use super::objects::{LOST, StoredObjects, present};
use crate::trace::budget::Budget;
use crate::trace::kind::Kind;
use crate::trace::object::Neutral;
use crate::trace::{FrameKind, Location, LocationId, Method, MethodId, Module, ModuleId};

/// All modules, methods and locations of a trace. Ids are indices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Objects {
    /// The modules by [`ModuleId`].
    pub modules: Vec<Module>,
    /// The methods by [`MethodId`].
    pub methods: Vec<Method>,
    /// The locations by [`LocationId`].
    pub locations: Vec<Location>,
}

/// Collects the objects.
struct ObjectCollector<'a> {
    stored: StoredObjects<'a>,
    strings: Vec<String>,
    all: Objects,
    budget: Budget,
}

impl Objects {
    /// Reads all objects in one pass.
    pub(super) fn read(stored: StoredObjects<'_>) -> LazyResult<Self> {
        let (strings, all) = (Vec::new(), Self::default());
        let mut collector = ObjectCollector { stored, strings, all, budget: Budget::for_objects() };
        for id in 0..stored.count(Kind::String)? {
            let text = stored.string(id)?;
            collector.take::<String>(text.len())?;
            collector.strings.push(text);
        }
        for id in 0..stored.count(Kind::Module)? {
            collector.module(id)?;
        }
        for id in 0..stored.count(Kind::Method)? {
            collector.method(id)?;
        }
        let lost = MethodId(collector.all.methods.len() as u32);
        for id in 0..stored.count(Kind::Location)? {
            collector.location(id, lost)?;
        }
        let mut all = collector.all;
        if all.locations.iter().any(|location| location.method == lost) {
            all.methods.push(Method::named(LOST));
        }
        Ok(all)
    }

    /// Returns the bytes of a method's name with that of its module.
    fn name_bytes(&self, method: &Method) -> usize {
        let module = method.module.and_then(|id| self.modules.get(id.0 as usize));
        method.name.len().saturating_add(module.map_or(0, |module| module.path.len()))
    }
}

impl ObjectCollector<'_> {
    /// Takes an object and its texts from the budget.
    fn take<T>(&mut self, text_bytes: usize) -> LazyResult<()> {
        let bytes = size_of::<T>().saturating_add(text_bytes) as u64;
        let taken = self.budget.take(bytes);
        taken.map_err(|what| LazyError::Trace(self.budget.error(0, what)))
    }

    fn string(&self, id: u32) -> String {
        self.strings.get(id as usize).cloned().unwrap_or_else(|| LOST.to_owned())
    }

    fn module(&mut self, id: u32) -> LazyResult<()> {
        let module = match self.stored.object(Kind::Module, id)? {
            Some(Neutral::Module { path, build_id, .. }) => {
                Module { path: self.string(path), build_id }
            }
            _ => Module { path: LOST.to_owned(), build_id: Vec::new() },
        };
        self.take::<Module>(module.path.len())?;
        self.all.modules.push(module);
        Ok(())
    }

    fn method(&mut self, id: u32) -> LazyResult<()> {
        let method = match self.stored.object(Kind::Method, id)? {
            Some(Neutral::Method { module, start_svma, name, line, column, .. }) => {
                let module = present(module).map(ModuleId);
                Method { module, name: self.string(name), start_svma, line, column }
            }
            _ => Method::named(LOST),
        };
        self.take::<Method>(self.all.name_bytes(&method))?;
        self.all.methods.push(method);
        Ok(())
    }

    /// Adds a location; `lost` is the method of those whose method is lost.
    fn location(&mut self, id: u32, lost: MethodId) -> LazyResult<()> {
        let location = match self.stored.object(Kind::Location, id)? {
            Some(Neutral::Location {
                method,
                svma,
                file,
                line,
                column,
                inline_parent,
                frame_kind,
                ..
            }) => Location {
                method: if method < lost.0 { MethodId(method) } else { lost },
                svma,
                file: present(file).map(|file| self.string(file)),
                line,
                column,
                inline_parent: present(inline_parent).filter(|it| *it < id).map(LocationId),
                kind: FrameKind::from_number(frame_kind),
            },
            _ => Location::at(lost, 0),
        };
        // A view may name each location by its function and its file.
        let method = self.all.methods.get(location.method.0 as usize);
        let name = method.map_or(0, |method| self.all.name_bytes(method));
        let file = location.file.as_ref().map_or(0, String::len);
        self.take::<Location>(name.saturating_add(file))?;
        self.all.locations.push(location);
        Ok(())
    }
}
