//! Writing what belongs to no thread: modules, methods, places, texts, stacks.

use crate::trace::object::Neutral;
use crate::trace::tables::next_id;
use crate::trace::{
    CallTrace, Location, LocationId, MappedModule, Method, MethodId, Module, ModuleId, TextId,
    TraceError, TraceWriter,
};

impl TraceWriter {
    /// The id of a module; equal content gives an equal id.
    pub fn module(&mut self, m: &Module) -> Result<ModuleId, TraceError> {
        let id = self.tables.module(m)?;
        self.write_full_frame()?;
        Ok(id)
    }

    /// The id of a method; equal content gives an equal id.
    pub fn method(&mut self, m: &Method) -> Result<MethodId, TraceError> {
        let id = self.tables.method(m)?;
        self.write_full_frame()?;
        Ok(id)
    }

    /// The id of a location; equal content gives an equal id.
    pub fn location(&mut self, l: &Location) -> Result<LocationId, TraceError> {
        let id = self.tables.location(l)?;
        self.write_full_frame()?;
        Ok(id)
    }

    /// The id of a text, for [`Sample::waits_on`](crate::trace::Sample::waits_on); equal content
    /// gives an equal id. One that is too long for the format is cut.
    pub fn text(&mut self, text: &str) -> Result<TextId, TraceError> {
        let id = self.tables.string(text)?;
        self.write_full_frame()?;
        Ok(TextId(id))
    }

    /// Notes where a module is mapped.
    pub fn mapped_module(&mut self, m: &MappedModule) -> Result<(), TraceError> {
        self.tables.known_module(m.module)?;
        let id = next_id(self.mapped as usize)?;
        self.mapped += 1;
        let MappedModule { pid, start, end, file_offset, first_seen_ns: seen, .. } = *m;
        let module = m.module.0;
        let mapping = Neutral::Mapping { id, pid, start, end, file_offset, module, seen };
        self.tables.block.push(&mapping);
        self.write_full_frame()
    }

    /// Writes a call trace as an object of its own.
    pub fn call_trace(&mut self, trace: &CallTrace) -> Result<(), TraceError> {
        self.tables.call_trace((trace.trace_id, trace.end_reason), &trace.stack)?;
        self.write_full_frame()
    }
}
