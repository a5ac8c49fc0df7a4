//! Objects as they are shown: as they were written, or with other names, files and lines.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use super::all_objects::Objects;
use super::{LazyTrace, locked};
use crate::trace::{Location, LocationId, Method, MethodId, Module, ModuleId, TraceError, memory};

/// Gives modules, methods and locations other contents.
pub trait Relabel: Debug + Send + Sync {
    /// Changes all objects of a trace. Ids stay; modules may be added at the end. Returns the bytes
    /// of the texts that were added, and messages for the user.
    fn relabel(&self, objects: &mut Objects) -> (u64, Vec<String>);
}

/// What changes objects, and all objects after it, once they were read.
#[derive(Debug)]
pub(super) struct Relabelled {
    relabel: Box<dyn Relabel>,
    objects: Mutex<Option<Arc<Objects>>>,
    /// Messages that were shown.
    told: Mutex<Vec<String>>,
}

impl Relabelled {
    /// Forgets the objects, because others were added to the trace.
    pub(super) fn forget(&mut self) {
        *locked(&self.objects) = None;
    }
}

impl LazyTrace {
    /// Changes all modules, methods and locations from now on. They stay in memory.
    pub fn relabel(&mut self, relabel: Box<dyn Relabel>) {
        let (objects, told) = (Mutex::default(), Mutex::default());
        self.relabelled = Some(Relabelled { relabel, objects, told });
    }

    /// Returns all objects as they are shown, if they are changed.
    fn relabelled(&self) -> Result<Option<Arc<Objects>>, TraceError> {
        let Some(relabelled) = &self.relabelled else { return Ok(None) };
        let mut known = locked(&relabelled.objects);
        if known.is_none() {
            let mut objects = self.look_up(Objects::read)?;
            let (bytes, messages) = relabelled.relabel.relabel(&mut objects);
            memory::note(bytes)?;
            // Once, however often the trace grows.
            let mut told = locked(&relabelled.told);
            let new = messages.into_iter().filter(|it| !told.contains(it)).collect::<Vec<_>>();
            told.extend(new.iter().cloned());
            locked(&self.notices).extend(new);
            *known = Some(Arc::new(objects));
        }
        Ok(known.clone())
    }

    /// Returns the module with this id.
    pub fn module(&self, id: ModuleId) -> Result<Module, TraceError> {
        let known = self.relabelled()?;
        match known.and_then(|objects| objects.modules.get(id.0 as usize).cloned()) {
            Some(module) => Ok(module),
            None => self.look_up(|objects| objects.module(id)),
        }
    }

    /// Returns the method with this id.
    pub fn method(&self, id: MethodId) -> Result<Method, TraceError> {
        let known = self.relabelled()?;
        match known.and_then(|objects| objects.methods.get(id.0 as usize).cloned()) {
            Some(method) => Ok(method),
            None => self.look_up(|objects| objects.method(id)),
        }
    }

    /// Returns the location with this id.
    pub fn location(&self, id: LocationId) -> Result<Location, TraceError> {
        let known = self.relabelled()?;
        match known.and_then(|objects| objects.locations.get(id.0 as usize).cloned()) {
            Some(location) => Ok(location),
            None => self.look_up(|objects| objects.location(id)),
        }
    }

    /// Returns all modules, methods and locations; lost ones are named `[lost]`.
    pub fn load_objects(&self) -> Result<Objects, TraceError> {
        match self.relabelled()? {
            Some(objects) => Ok(Objects::clone(&objects)),
            None => self.look_up(Objects::read),
        }
    }
}
