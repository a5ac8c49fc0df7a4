//! Subs, their names, and their statements.

use super::text::digest;
use super::{Lost, NAME_BYTES, Reader, STATEMENT_FILE, STATEMENT_LINE};
use crate::runtime::WordReader;

/// Offsets in a value: of its body, and its flags, in whose lowest byte the type is.
const BODY: u16 = 0;
const FLAGS: u16 = 12;
/// Types of values: globs, packages, subs and formats.
const GLOB: u8 = 9;
const PACKAGE: u8 = 12;
const SUB: u8 = 13;
const FORMAT: u8 = 14;
/// Offsets in a sub's body: of its package, its first operation, its glob or its name, its path,
/// its flags, and the number of its calls that run.
const SUB_PACKAGE: u16 = 32;
const SUB_START: u16 = 40;
const SUB_GLOB: u16 = 56;
const SUB_FILE: u16 = 64;
const SUB_FLAGS: u16 = 92;
const SUB_DEPTH: u16 = 96;
/// The flag of a sub that has a name instead of a glob.
const NAMED: u32 = 0x8000;
/// Offsets in a glob's body: of its name and its package.
const GLOB_NAME: u16 = 32;
const GLOB_PACKAGE: u16 = 40;
/// The flag of a package with a name, and offsets in its body: of the name, or an array of names,
/// and the number of these.
const WITH_NAME: u32 = 0x0200_0000;
const PACKAGE_NAME: u16 = 32;
const PACKAGE_NAMES: u16 = 60;
/// The name of subs that have none.
const ANONYMOUS: &[u8; 8] = b"__ANON__";
/// Offset in an operation of its type.
const TYPE: u16 = 32;
const TYPE_MASK: u32 = 0x1ff;
/// The flag of an operation that is in a slab.
const IN_SLAB: u32 = 0x400;
/// Distance before an operation of its place in its slab, and from the slab to its operations.
const PLACE_BEFORE: u64 = 8;
const SLAB_START: u64 = 40;
/// Offset in a slab of the first slab of the same code.
const FIRST_SLAB: u16 = 8;

/// The name of a sub, as addresses of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubName {
    /// The name of its package, or 0.
    pub package: u64,
    /// Its own name.
    pub name: u64,
    /// The address of its path.
    pub file: u64,
    /// The line of its first statement, or 0.
    pub line: u32,
}

/// Reads where the name of a sub is. `None` if the address is not that of a sub, or unreadable.
pub fn sub_name(
    layout: &super::PerlLayout,
    sub: u64,
    memory: &mut impl WordReader,
) -> Option<SubName> {
    Sub::of(&mut Reader { layout, memory }, sub).ok()?.name
}

/// A sub.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sub {
    /// The address of its body.
    body: u64,
    /// Its name, unless it has none.
    pub(super) name: Option<SubName>,
    /// Its first operation.
    pub(super) start: u64,
}

impl Sub {
    /// Reads a sub.
    pub(super) fn of(reader: &mut Reader<'_, impl WordReader>, avma: u64) -> Result<Self, Lost> {
        if !matches!(kind(reader, avma)?, SUB | FORMAT) {
            return Err(Lost);
        }
        let body = reader.field(avma, BODY)?;
        let start = reader.field(body, SUB_START)?;
        let mut sub = Self { body, name: None, start };
        sub.name = sub.read_name(reader).ok();
        Ok(sub)
    }

    fn read_name(&self, reader: &mut Reader<'_, impl WordReader>) -> Result<SubName, Lost> {
        let flags = reader.half(self.body, SUB_FLAGS)?;
        let glob = reader.field(self.body, SUB_GLOB)?;
        let (name, package) = if flags & NAMED != 0 {
            (glob, reader.field(self.body, SUB_PACKAGE)?)
        } else if kind(reader, glob)? == GLOB {
            let body = reader.field(glob, BODY)?;
            (reader.field(body, GLOB_NAME)?, reader.field(body, GLOB_PACKAGE)?)
        } else {
            return Err(Lost);
        };
        let line = match is_statement(reader, self.start) {
            Ok(true) => reader.half(self.start, STATEMENT_LINE)?,
            _ => 0,
        };
        let file = reader.field(self.body, SUB_FILE)?;
        Ok(SubName { package: package_name(reader, package)?, name, file, line })
    }

    /// Whether it has no name, but a statement.
    pub(super) fn is_anonymous(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
    ) -> Result<bool, Lost> {
        let Some(SubName { name, line, .. }) = self.name else { return Ok(false) };
        let len = reader.word(name)? >> 32;
        if line == 0 || len != ANONYMOUS.len() as u64 {
            return Ok(false);
        }
        Ok(reader.word(name.wrapping_add(NAME_BYTES))? == u64::from_le_bytes(*ANONYMOUS))
    }

    /// Returns the number of its calls that run.
    pub(super) fn depth(&self, reader: &mut Reader<'_, impl WordReader>) -> Result<u32, Lost> {
        reader.half(self.body, SUB_DEPTH)
    }

    /// Returns the line of a statement, or 0 if the statement is not one of the sub and its file.
    pub(super) fn line_of(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
        statement: u64,
    ) -> Result<u32, Lost> {
        let Some(line) = line_in(reader, statement, self.start)? else { return Ok(0) };
        let Some(name) = self.name else { return Ok(0) };
        // `#line` may give a part of a sub another file.
        let file = reader.field(statement, STATEMENT_FILE)?;
        let is_same = file == name.file || digest(reader, file)? == digest(reader, name.file)?;
        Ok(if is_same { line } else { 0 })
    }
}

/// Returns the line of a statement in the same code as another operation. `None` if it is in other
/// code, or no statement.
pub(super) fn line_in(
    reader: &mut Reader<'_, impl WordReader>,
    statement: u64,
    operation: u64,
) -> Result<Option<u32>, Lost> {
    if statement == 0 || operation == 0 || !is_statement(reader, statement)? {
        return Ok(None);
    }
    let slabs = [first_slab(reader, statement)?, first_slab(reader, operation)?];
    let is_same = slabs[0].is_some() && slabs[0] == slabs[1];
    is_same.then(|| reader.half(statement, STATEMENT_LINE)).transpose()
}

/// Returns the first slab of the code that has an operation, if the operation is in a slab.
fn first_slab(
    reader: &mut Reader<'_, impl WordReader>,
    operation: u64,
) -> Result<Option<u64>, Lost> {
    if reader.half(operation, TYPE)? & IN_SLAB == 0 {
        return Ok(None);
    }
    let start = operation.wrapping_sub(PLACE_BEFORE);
    // The size of the operation, and its distance from the first one of the slab, in words.
    let words = reader.word(start)? >> 16 & 0xffff;
    let slab = start.wrapping_sub(words.wrapping_mul(8)).wrapping_sub(SLAB_START);
    reader.field(slab, FIRST_SLAB).map(Some)
}

fn is_statement(reader: &mut Reader<'_, impl WordReader>, operation: u64) -> Result<bool, Lost> {
    let found = reader.half(operation, TYPE)? & TYPE_MASK;
    let statement = u32::from(reader.layout.statement_type);
    Ok(found.wrapping_sub(statement) < 2)
}

/// Returns the type of a value.
pub(super) fn kind(reader: &mut Reader<'_, impl WordReader>, avma: u64) -> Result<u8, Lost> {
    if avma == 0 { Err(Lost) } else { reader.byte(avma, FLAGS) }
}

/// Returns the address of a package's name, or 0 if it has none.
fn package_name(reader: &mut Reader<'_, impl WordReader>, package: u64) -> Result<u64, Lost> {
    // A package that was deleted is another type, or has no name.
    if package == 0 || kind(reader, package)? != PACKAGE {
        return Ok(0);
    }
    if reader.half(package, FLAGS)? & WITH_NAME == 0 {
        return Ok(0);
    }
    let body = reader.field(package, BODY)?;
    let name = reader.field(body, PACKAGE_NAME)?;
    match reader.half(body, PACKAGE_NAMES)? {
        0 => Ok(name),
        _ => reader.word(name),
    }
}
