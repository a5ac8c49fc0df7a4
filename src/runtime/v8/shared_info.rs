//! What all functions from one piece of source code share: their script, their scope and their
//! bytecodes.

use super::heap::HeapReader;
use super::positions::{SourcePosition, source_positions};
use super::scope_info::scope_facts;
use super::strings::is_text;

/// Bits of the flags that tell the kind of a function, and kinds of functions that run the
/// initializers of a class, with what the engine calls them.
const KIND_MASK: u32 = 0x1f;
const INITIALIZERS: [(u32, &str); 2] =
    [(24, "<instance_members_initializer>"), (25, "<static_initializer>")];
/// Maximum number of bytes of a table of source positions, and of bytecodes.
const TABLE_MAX: usize = 1 << 20;
/// Where uncompiled functions have their inferred name, and their start in the source.
const UNCOMPILED_NAME: u64 = 8;
const UNCOMPILED_START: u64 = 16;
/// Where an object with debug information has the script, in every version.
const DEBUG_SCRIPT: u64 = 24;
/// Where what the interpreter needs has the bytecodes.
const INTERPRETER_BYTECODES: u64 = 8;

/// What is read of a function before its name and its lines.
pub(super) struct SharedFacts {
    /// The name by the kind of the function.
    pub(super) initializer: Option<&'static str>,
    /// The name, or 0.
    pub(super) name: u64,
    /// The name that the engine has made up, or 0.
    pub(super) inferred: u64,
    /// The start in the source.
    pub(super) start: Option<u32>,
    pub(super) script: Option<u64>,
    /// The number in the script.
    pub(super) literal: u32,
}

impl HeapReader<'_> {
    /// Returns the script of what functions share. `None` for the engine's own functions.
    pub(super) fn script_of(&self, shared: u64) -> Option<u64> {
        let types = &self.layout.types;
        let object = self.object(shared, self.layout.shared.script)?;
        match self.kind(object)? {
            kind if kind == types.script => Some(object),
            kind if kind == types.debug_info => {
                self.object(object, DEBUG_SCRIPT).filter(|it| self.is(*it, types.script))
            }
            _ => None,
        }
    }

    /// Returns the bytecodes of what functions share. `None` if there are none.
    pub(super) fn bytecodes_of(&self, shared: u64) -> Option<u64> {
        let types = &self.layout.types;
        let mut data = self.object(shared, self.layout.shared.data)?;
        // Baseline code has what the interpreter needs.
        if self.kind(data)? == types.code {
            data = self.object(data, self.layout.code.deopt)?;
        }
        self.bytecodes_in(data)
    }

    /// Returns the bytecodes in what the interpreter needs.
    pub(super) fn bytecodes_in(&self, mut data: u64) -> Option<u64> {
        let types = &self.layout.types;
        if self.kind(data)? == types.interpreter_data {
            data = self.object(data, INTERPRETER_BYTECODES)?;
        }
        self.is(data, types.bytecodes).then_some(data)
    }

    /// Returns the bytecodes themselves.
    pub(super) fn bytecode_bytes(&self, bytecodes: u64) -> Option<Vec<u8>> {
        let len = self.array_len(bytecodes, TABLE_MAX)?;
        self.pages.bytes(bytecodes.checked_add(self.layout.bytecodes.data)?, len)
    }

    /// Returns the source positions of bytecodes, by their offsets from the first one.
    pub(super) fn bytecode_positions(&self, bytecodes: u64) -> Option<Vec<(u32, SourcePosition)>> {
        let table = self.object(bytecodes, self.layout.bytecodes.positions)?;
        // While the engine has not needed them, they are not there.
        source_positions(&self.table(table)?)
    }

    /// Returns the bytes of a table.
    pub(super) fn table(&self, table: u64) -> Option<Vec<u8>> {
        self.array(table, 1, TABLE_MAX)
    }

    pub(super) fn shared_facts(&self, shared: u64) -> Option<SharedFacts> {
        let (fields, types) = (self.layout.shared, &self.layout.types);
        let flags = fields.kind.map(|offset| self.half(shared, offset));
        let kind = flags.flatten().map(|flags| flags & KIND_MASK);
        let initializer = INITIALIZERS.iter().find(|(known, _)| kind == Some(*known));
        let mut facts = SharedFacts {
            initializer: initializer.map(|(_, name)| *name),
            name: 0,
            inferred: 0,
            start: None,
            script: self.script_of(shared),
            literal: self.half(shared, fields.literal)?,
        };
        let name = self.word(shared, fields.name)?;
        let scope = self.object(shared, fields.name);
        if is_text(self, name) {
            facts.name = name;
        } else if let Some(scope) = scope.filter(|it| self.is(*it, types.scope_info)) {
            let scope = scope_facts(self, scope)?;
            (facts.name, facts.inferred) = (scope.name, scope.inferred);
            facts.start = scope.source.map(|(start, _)| start);
        }
        let data = self.object(shared, fields.data);
        let is_uncompiled =
            |it: &u64| self.kind(*it).is_some_and(|kind| types.uncompiled.contains(&kind));
        if let Some(data) = data.filter(is_uncompiled) {
            let inferred = self.word(data, UNCOMPILED_NAME)?;
            facts.inferred = if is_text(self, inferred) { inferred } else { 0 };
            facts.start = self.half(data, UNCOMPILED_START);
        }
        Some(facts)
    }
}
