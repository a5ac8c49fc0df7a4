//! Interns thread-neutral objects by content, and collects new ones in a block.

use std::borrow::Cow;
use std::collections::HashMap;

use super::infer::Site;
use super::kind::Kind;
use super::object::Neutral;
use super::recent::Recent;
use super::{
    FrameKind, Location, LocationId, MAX_TEXT_BYTES, Method, MethodId, Module, ModuleId, NONE,
    TextId, TraceError,
};

/// The new thread-neutral objects that are not in a frame yet.
#[derive(Debug, Default)]
pub(super) struct NeutralBlock {
    bytes: Vec<u8>,
    cells: Vec<(Kind, u32, usize)>,
}

impl NeutralBlock {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Removes and returns complete objects from the front, `bytes` bytes or a little more.
    pub(super) fn split_to(&mut self, bytes: usize) -> NeutralBlock {
        let count = self.cells.partition_point(|(_, _, at)| *at < bytes);
        let end = self.cells.get(count).map_or(self.bytes.len(), |(_, _, at)| *at);
        let mut rest = self.cells.split_off(count);
        rest.iter_mut().for_each(|(_, _, at)| *at -= end);
        let cells = std::mem::replace(&mut self.cells, rest);
        let rest = self.bytes.split_off(end);
        NeutralBlock { bytes: std::mem::replace(&mut self.bytes, rest), cells }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the kind, id and offset of each object, if the first is at `base`.
    pub(super) fn cells(&self, base: usize) -> Vec<(Kind, u32, usize)> {
        self.cells.iter().map(|(kind, id, at)| (*kind, *id, base + at)).collect()
    }

    pub(super) fn push(&mut self, object: &Neutral) {
        self.cells.push((object.kind(), object.id(), self.bytes.len()));
        object.encode(&mut self.bytes);
    }
}

/// The written objects by content.
#[derive(Debug, Default)]
pub(super) struct InternTables {
    strings: HashMap<Box<str>, u32>,
    modules: HashMap<(u32, Vec<u8>), u32>,
    methods: HashMap<(u32, u64, u32, (u32, u32)), u32>,
    locations: HashMap<InternedLocation, u32>,
    /// The contents of locations by id.
    contents: Vec<InternedLocation>,
    sites: Vec<Site>,
    nodes: HashMap<(u32, LocationId), u32>,
    traces: Recent,
    traces_ever: u32,
    pub(super) block: NeutralBlock,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct InternedLocation {
    method: u32,
    svma: u64,
    file: u32,
    line: u32,
    column: u32,
    inline_parent: u32,
    kind: FrameKind,
}

/// The longest build id in bytes, given its length field.
const MAX_BUILD_ID_BYTES: usize = u16::MAX as usize;

/// Returns the id, or [`NONE`].
fn optional(id: Option<u32>) -> u32 {
    id.unwrap_or(NONE)
}

/// Returns the next id of a table with `len` objects.
pub(super) fn next_id(len: usize) -> Result<u32, TraceError> {
    const LIMIT: u32 = (1 << 31) - 2;
    match u32::try_from(len) {
        Ok(id) if id <= LIMIT => Ok(id),
        _ => Err(TraceError::LimitExceeded { what: "the number of objects", limit: LIMIT.into() }),
    }
}

impl InternTables {
    /// Returns the properties of each location that inference needs.
    pub(super) fn sites(&self) -> &[Site] {
        &self.sites
    }

    pub(super) fn string(&mut self, text: &str) -> Result<u32, TraceError> {
        let text = cut(text);
        if let Some(id) = self.strings.get(text.as_ref()) {
            return Ok(*id);
        }
        let id = next_id(self.strings.len())?;
        self.block.push(&Neutral::String { id, text: text.clone().into_owned() });
        self.strings.insert(text.into_owned().into_boxed_str(), id);
        Ok(id)
    }

    pub(super) fn module(&mut self, module: &Module) -> Result<ModuleId, TraceError> {
        let path = self.string(&module.path)?;
        // A real build id has 8 to 64 bytes; a longer one that a hostile file claims is cut to
        // this.
        let build_id = &module.build_id[..module.build_id.len().min(MAX_BUILD_ID_BYTES)];
        let key = (path, build_id.to_vec());
        if let Some(id) = self.modules.get(&key) {
            return Ok(ModuleId(*id));
        }
        let id = next_id(self.modules.len())?;
        self.block.push(&Neutral::Module { id, path, build_id: build_id.to_vec() });
        self.modules.insert(key, id);
        Ok(ModuleId(id))
    }

    pub(super) fn method(&mut self, method: &Method) -> Result<MethodId, TraceError> {
        if let Some(module) = method.module {
            self.known_module(module)?;
        }
        let name = self.string(&method.name)?;
        let (module, start_svma) = (optional(method.module.map(|id| id.0)), method.start_svma);
        let (line, column) = (method.line, method.column);
        let key = (module, start_svma, name, (line, column));
        if let Some(id) = self.methods.get(&key) {
            return Ok(MethodId(*id));
        }
        let id = next_id(self.methods.len())?;
        self.block.push(&Neutral::Method { id, module, start_svma, name, line, column });
        self.methods.insert(key, id);
        Ok(MethodId(id))
    }

    pub(super) fn location(&mut self, location: &Location) -> Result<LocationId, TraceError> {
        known("method", location.method.0, self.methods.len())?;
        if let Some(parent) = location.inline_parent {
            known("location", parent.0, self.sites.len())?;
        }
        let file = location.file.as_deref().map(|file| self.string(file)).transpose()?;
        let key = InternedLocation {
            method: location.method.0,
            svma: location.svma,
            file: optional(file),
            line: location.line,
            column: location.column,
            inline_parent: optional(location.inline_parent.map(|id| id.0)),
            kind: location.kind,
        };
        self.interned_location(key)
    }

    /// Returns the location with the same content but for its kind and its inline parent.
    pub(super) fn location_as(
        &mut self,
        id: LocationId,
        kind: FrameKind,
        inline_parent: Option<LocationId>,
    ) -> Result<LocationId, TraceError> {
        known("location", id.0, self.contents.len())?;
        if let Some(parent) = inline_parent {
            known("location", parent.0, self.contents.len())?;
        }
        let inline_parent = optional(inline_parent.map(|id| id.0));
        let content = self.contents[id.0 as usize];
        self.interned_location(InternedLocation { kind, inline_parent, ..content })
    }

    fn interned_location(&mut self, key: InternedLocation) -> Result<LocationId, TraceError> {
        if let Some(id) = self.locations.get(&key) {
            return Ok(LocationId(*id));
        }
        let id = next_id(self.locations.len())?;
        let InternedLocation { method, svma, file, line, column, inline_parent, kind } = key;
        let frame_kind = kind as u32;
        self.block.push(&Neutral::Location {
            id,
            method,
            svma,
            file,
            line,
            column,
            inline_parent,
            frame_kind,
        });
        let (inlined, carries) = (inline_parent != NONE, kind == FrameKind::Interpreter);
        self.sites.push(Site { method: MethodId(method), inlined, carries, file, line });
        self.contents.push(key);
        self.locations.insert(key, id);
        Ok(LocationId(id))
    }

    /// Writes a call trace and its nodes, unless it was written recently.
    pub(super) fn call_trace(
        &mut self,
        (trace_id, end_reason): (u64, u16),
        stack: &[LocationId],
    ) -> Result<(), TraceError> {
        self.known_stack(stack)?;
        if !self.traces.insert(trace_id) {
            return Ok(());
        }
        let mut node = NONE;
        for location in stack {
            let key = (node, *location);
            node = match self.nodes.get(&key) {
                Some(known) => *known,
                None => {
                    let id = next_id(self.nodes.len())?;
                    let location = location.0;
                    self.block.push(&Neutral::StackNode { id, parent: node, location });
                    self.nodes.insert(key, id);
                    id
                }
            };
        }
        let id = next_id(self.traces_ever as usize)?;
        self.traces_ever += 1;
        self.block.push(&Neutral::CallTrace { id, trace_id, node, end_reason });
        Ok(())
    }

    pub(super) fn known_module(&self, module: ModuleId) -> Result<(), TraceError> {
        known("module", module.0, self.modules.len())
    }

    pub(super) fn known_text(&self, text: TextId) -> Result<(), TraceError> {
        known("text", text.0, self.strings.len())
    }

    pub(super) fn known_stack(&self, stack: &[LocationId]) -> Result<(), TraceError> {
        stack.iter().try_for_each(|location| known("location", location.0, self.sites.len()))
    }
}

/// Refuses an id that was never returned.
fn known(kind: &'static str, id: u32, count: usize) -> Result<(), TraceError> {
    if (id as usize) < count { Ok(()) } else { Err(TraceError::UnknownId { kind, id }) }
}

/// Returns text that the format can hold: text that is too long is cut and ends with its checksum,
/// so that two long texts stay distinct.
fn cut(text: &str) -> Cow<'_, str> {
    // Modified UTF-8 is at most twice as long as UTF-8.
    const LIMIT: usize = MAX_TEXT_BYTES / 2;
    if text.len() <= LIMIT {
        return Cow::Borrowed(text);
    }
    let mut end = LIMIT - 16;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}...#{:08x}", &text[..end], crc32fast::hash(text.as_bytes())))
}
