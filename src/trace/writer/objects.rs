//! What belongs to no thread: modules, methods, places, texts, stacks.

use crate::trace::object::Neutral;
use crate::trace::tables::{Tables, next_id};
use crate::trace::{Location, LocationId, MappedModule, Method, TRUNCATED, TraceError};

/// The objects of a trace that were written, and those that are in no frame yet.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// Those that are known by their content.
    pub(super) tables: Tables,
    /// How many places of modules were noted.
    mapped: u32,
    /// The location of the calls of `[truncated]`, once there was one.
    truncated: Option<LocationId>,
}

impl Objects {
    /// Adds an object to the next frame.
    pub(super) fn push(&mut self, object: &Neutral) {
        self.tables.block.push(object);
    }

    /// Notes where a module is mapped.
    pub(super) fn mapped_module(&mut self, m: &MappedModule) -> Result<(), TraceError> {
        self.tables.known_module(m.module)?;
        let id = next_id(self.mapped as usize)?;
        self.mapped += 1;
        let MappedModule { pid, start, end, file_offset, first_seen_ns: seen, .. } = *m;
        let module = m.module.0;
        self.push(&Neutral::Mapping { id, pid, start, end, file_offset, module, seen });
        Ok(())
    }

    /// The location of the calls that stacks hang under whose outer frames are unknown.
    pub(super) fn truncated_location(&mut self) -> Result<LocationId, TraceError> {
        if let Some(location) = self.truncated {
            return Ok(location);
        }
        let method = Method { module: None, name: TRUNCATED.into(), start_svma: 0 };
        let method = self.tables.method(&method)?;
        let location = Location { method, svma: 0, file: None, line: 0, inline_parent: None };
        let location = self.tables.location(&location)?;
        self.truncated = Some(location);
        Ok(location)
    }
}
