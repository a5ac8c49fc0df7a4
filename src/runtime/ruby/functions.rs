//! Names methods and other code.
//!
//! # Invariants
//! - A function is returned only if its object had the cookie of the capture before and after its
//!   strings were read, and if two reads agree.

use traceprof_abi::runtime::ruby::{
    BODY_LEN, DEFINITION_NAME, DEFINITION_SEQUENCE, METHOD_CLASS, METHOD_DEFINITION, RubyLayout,
    RubyObject, SEQUENCE_BODY, cookie,
};

use super::classes::ClassNames;
use super::lines::InstructionLines;
use super::objects::RubyMemory;
use super::offsets::RubyStructures;
use super::symbols::SymbolNames;
use crate::runtime::function::{PositionKind, read_unchanged};
use crate::runtime::memory::{self, TargetMemory, TargetWords};
use crate::runtime::{Function, Gone};

/// The kinds of definitions in their first word: with instructions, and in C.
const KIND_BITS: u64 = 0xf;
const WITH_SEQUENCE: u64 = 0;
const WITH_FUNCTION: u64 = 1;

/// Reads the functions of one interpreter.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct RubyReader {
    pub(super) offsets: RubyStructures,
    pub(super) symbols: SymbolNames,
    pub(super) classes: ClassNames,
}

impl RubyReader {
    /// Reads a method or other code that had this cookie when it was captured.
    pub(in crate::runtime) fn function(
        &self,
        memory: &dyn TargetMemory,
        object: u64,
        captured: u32,
    ) -> Result<Function, Gone> {
        let cookie = || {
            memory::word(memory, object).filter(|_| object != 0).ok_or(Gone::Unreadable)?;
            Ok(cookie(&self.offsets.layout, object, &mut TargetWords(memory)))
        };
        read_unchanged(captured, cookie, || self.read_twice(memory, object))
    }

    /// Reads a function. The collector may move a string that is about to be read, and other bytes
    /// take its place, while the object itself stays as it was.
    fn read_twice(&self, memory: &dyn TargetMemory, object: u64) -> Result<Function, Gone> {
        let function = self.read(memory, object)?;
        let is_same = self.read(memory, object).as_ref() == Ok(&function);
        if is_same { Ok(function) } else { Err(Gone::Changing) }
    }

    fn objects<'m>(&'m self, memory: &'m dyn TargetMemory) -> RubyMemory<'m> {
        RubyMemory { memory, offsets: &self.offsets }
    }

    fn read(&self, memory: &dyn TargetMemory, object: u64) -> Result<Function, Gone> {
        let word = |base: u64, at: u16| field(memory, base, at);
        match RubyObject::of(word(object, 0)?).ok_or(Gone::OtherType)? {
            RubyObject::Body => self.code(memory, object, String::new()),
            RubyObject::Method => {
                let definition = word(object, METHOD_DEFINITION)?;
                let objects = self.objects(memory);
                let prefix = self.classes.prefix(objects, word(object, METHOD_CLASS)?);
                match word(definition, 0)? & KIND_BITS {
                    WITH_SEQUENCE => {
                        let sequence = word(definition, DEFINITION_SEQUENCE)?;
                        self.code(memory, word(sequence, SEQUENCE_BODY)?, prefix)
                    }
                    WITH_FUNCTION => {
                        let number = word(definition, DEFINITION_NAME)?;
                        let name = self.symbols.name(objects, number).ok_or(Gone::Name)?;
                        Ok(in_c(prefix + &name))
                    }
                    _ => Err(Gone::OtherType),
                }
            }
        }
    }

    /// Reads the code with this body. `prefix` goes before its name.
    fn code(&self, memory: &dyn TargetMemory, body: u64, prefix: String) -> Result<Function, Gone> {
        let RubyLayout { body_name, body_path, body_place, body_lines_len, .. } =
            self.offsets.layout;
        let objects = self.objects(memory);
        let name = objects.text(field(memory, body, body_name)?).ok_or(Gone::Name)?;
        let file = objects.path(field(memory, body, body_path)?).ok_or(Gone::File)?;
        let line = (field(memory, body, body_place)? >> self.offsets.first_line_shift) as u32;
        let sizes = [BODY_LEN, body_lines_len].map(|at| half(memory, body, at));
        let [len, entries] = sizes;
        let lines = InstructionLines::read(memory, &self.offsets, (body, len?, entries?));
        let lines = PositionKind::Instructions(lines.ok_or(Gone::LineTable)?);
        Ok(Function { name: prefix + &name, file, line, is_pseudo: false, lines })
    }
}

/// Returns a method that is written in C.
fn in_c(name: String) -> Function {
    let lines = PositionKind::Positions;
    Function { name, file: String::new(), line: 0, is_pseudo: false, lines }
}

fn field(memory: &dyn TargetMemory, base: u64, at: u16) -> Result<u64, Gone> {
    memory::word(memory, base.wrapping_add(u64::from(at))).ok_or(Gone::Unreadable)
}

fn half(memory: &dyn TargetMemory, base: u64, at: u16) -> Result<u32, Gone> {
    let bytes = memory::array(memory, base.wrapping_add(u64::from(at)));
    bytes.map(u32::from_le_bytes).ok_or(Gone::Unreadable)
}
