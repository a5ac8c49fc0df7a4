//! The thread-neutral objects: modules, methods, locations, texts, stacks.

use crate::trace::intern::{InternTables, next_id};
use crate::trace::object::Neutral;
use crate::trace::{Location, LocationId, MappedModule, Method, TRUNCATED, TraceError};

/// The objects of a trace that were written, and those that are in no frame yet.
#[derive(Debug, Default)]
pub(super) struct WrittenObjects {
    /// The objects that are interned by content.
    pub(super) tables: InternTables,
    /// The number of recorded mappings.
    mapped: u32,
    /// The location of the calls of `[truncated]`, once there is one.
    truncated: Option<LocationId>,
}

impl WrittenObjects {
    /// Adds an object to the next frame.
    pub(super) fn push(&mut self, object: &Neutral) {
        self.tables.block.push(object);
    }

    /// Records the mapping of a module.
    pub(super) fn mapped_module(&mut self, m: &MappedModule) -> Result<(), TraceError> {
        self.tables.known_module(m.module)?;
        let id = next_id(self.mapped as usize)?;
        self.mapped += 1;
        let MappedModule { pid, start, end, file_offset, first_seen_ns: seen, .. } = *m;
        let module = m.module.0;
        self.push(&Neutral::Mapping { id, pid, start, end, file_offset, module, seen });
        Ok(())
    }

    /// Returns the location of the calls of `[truncated]`, the roots of stacks with unknown outer
    /// frames.
    pub(super) fn truncated_location(&mut self) -> Result<LocationId, TraceError> {
        if let Some(location) = self.truncated {
            return Ok(location);
        }
        let method = self.tables.method(&Method::named(TRUNCATED))?;
        let location = self.tables.location(&Location::at(method, 0))?;
        self.truncated = Some(location);
        Ok(location)
    }
}
