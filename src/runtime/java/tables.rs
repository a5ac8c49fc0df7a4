//! The tables in which a HotSpot machine describes itself: fields, types and constants.
//!
//! # Invariants
//! - Offsets in structures and sizes are small, and the widths of fields are those of their types.

use std::collections::HashMap;

use super::exports::{JavaExports, TableSymbols};
use crate::runtime::pages::TargetPages;
use crate::runtime::witness::Witness;

/// Maximum number of entries of a table. The largest has about 2000.
const ENTRIES_MAX: u64 = 1 << 14;
/// Maximum length of an entry.
const STRIDE_MAX: u64 = 256;
/// Maximum length of a name.
const NAME_MAX: usize = 512;
/// Maximum offset of a field in a structure, and maximum size of one.
const SIZE_MAX: u64 = 1 << 16;

/// A field in a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    /// The offset from the start of the structure.
    pub(super) at: u64,
    width: u8,
    is_signed: bool,
}

impl Field {
    /// Makes a field by the name of its C++ type.
    pub(super) fn new(at: u64, kind: &str) -> Self {
        let kind = kind.trim_start_matches("const ").trim_start_matches("volatile ");
        let (width, is_signed) = match kind {
            // An enumeration of four bytes in some versions. Its first byte has the level.
            "u1" | "bool" | "unsigned char" | "CodeBlobKind" | "CompLevel" => (1, false),
            "jbyte" | "signed char" => (1, true),
            "u2" | "unsigned short" | "uint16_t" | "jushort" => (2, false),
            "short" | "jshort" | "int16_t" => (2, true),
            "u4" | "uint" | "uint32_t" | "juint" | "unsigned int" | "pid_t" => (4, false),
            "OSThread::thread_id_t" => (4, false),
            "int" | "jint" | "JavaThreadState" => (4, true),
            _ => (8, false),
        };
        Self { at, width, is_signed }
    }

    /// Makes a field of one byte.
    pub(super) const fn byte(at: u64) -> Self {
        Self { at, width: 1, is_signed: false }
    }

    /// Returns the field in a larger structure, which has its structure at this offset.
    pub(super) fn behind(self, at: u64) -> Self {
        Self { at: self.at + at, ..self }
    }

    /// Returns the offset of the first byte behind the field.
    pub(super) fn end(self) -> u64 {
        self.at + u64::from(self.width)
    }

    /// Returns the value in a structure that starts at this address.
    pub(super) fn read(self, pages: &TargetPages<'_>, start: u64) -> Option<u64> {
        let at = start.checked_add(self.at)?;
        Some(match (self.width, self.is_signed) {
            (1, false) => u64::from(pages.byte(at)?),
            (1, true) => i64::from(pages.byte(at)? as i8) as u64,
            (2, false) => u64::from(pages.short(at)?),
            (2, true) => i64::from(pages.short(at)? as i16) as u64,
            (4, false) => u64::from(pages.half(at)?),
            (4, true) => i64::from(pages.half(at)? as i32) as u64,
            _ => pages.word(at)?,
        })
    }

    /// Returns the value as a number that is not negative.
    pub(super) fn count(self, pages: &TargetPages<'_>, start: u64) -> Option<u64> {
        self.read(pages, start).filter(|value| *value as i64 >= 0)
    }

    /// Returns the value as a pointer that is neither null nor misaligned.
    pub(super) fn pointer(self, pages: &TargetPages<'_>, start: u64) -> Option<u64> {
        self.read(pages, start).filter(|it| *it != 0 && it.is_multiple_of(8))
    }
}

impl Witness {
    /// Adds the bytes of a field of a structure that starts at this address.
    pub(super) fn add(&mut self, pages: &TargetPages<'_>, start: u64, field: Field) -> Option<()> {
        let len = field.end().checked_sub(field.at)?;
        self.add_bytes(pages, start.checked_add(field.at)?, len as usize)
    }
}

/// What a machine does not describe, or describes impossibly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing(pub(super) String);

/// The tables of one machine.
#[derive(Debug, Default)]
pub(super) struct Tables {
    fields: HashMap<String, Field>,
    /// The addresses (AVMAs) of static fields.
    statics: HashMap<String, u64>,
    sizes: HashMap<String, u64>,
    constants: HashMap<String, i64>,
}

impl Tables {
    /// Reads the tables. `None` if they are not readable, or not filled yet.
    pub(super) fn read(exports: &JavaExports, bias: u64, pages: &TargetPages<'_>) -> Option<Self> {
        let mut tables = Self::default();
        let text = |avma| pages.text(avma, NAME_MAX);
        entries(&exports.fields, bias, pages, |entry, offsets| {
            let [kind, name, field_kind, is_static, offset, address] = offsets;
            let kind = text(pages.word(entry + kind)?)?;
            let name = format!("{kind}::{}", text(pages.word(entry + name)?)?);
            if pages.half(entry + is_static)? != 0 {
                tables.statics.insert(name, pages.word(entry + address)?);
                return Some(());
            }
            let field_kind = match pages.word(entry + field_kind)? {
                0 => String::new(),
                kind => text(kind)?,
            };
            let offset = pages.word(entry + offset)?;
            if offset < SIZE_MAX {
                tables.fields.insert(name, Field::new(offset, &field_kind));
            }
            Some(())
        })?;
        entries(&exports.types, bias, pages, |entry, [name, size]| {
            let size = pages.word(entry + size)?;
            if size < SIZE_MAX {
                tables.sizes.insert(text(pages.word(entry + name)?)?, size);
            }
            Some(())
        })?;
        entries(&exports.ints, bias, pages, |entry, [name, value]| {
            let value = i64::from(pages.half(entry + value)? as i32);
            tables.constants.insert(text(pages.word(entry + name)?)?, value);
            Some(())
        })?;
        entries(&exports.longs, bias, pages, |entry, [name, value]| {
            let value = pages.word(entry + value)? as i64;
            tables.constants.insert(text(pages.word(entry + name)?)?, value);
            Some(())
        })?;
        Some(tables)
    }

    /// Returns a field that may be absent.
    pub(super) fn optional(&self, name: &str) -> Option<Field> {
        self.fields.get(name).copied()
    }

    /// Returns a field that has one of these names.
    pub(super) fn field(&self, names: &[&str]) -> Result<Field, Missing> {
        let found = names.iter().find_map(|name| self.optional(name));
        found.ok_or_else(|| Missing(joined(names)))
    }

    /// Returns the address of a static field that has one of these names.
    pub(super) fn address(&self, names: &[&str]) -> Result<u64, Missing> {
        let found = names.iter().find_map(|name| self.statics.get(*name));
        found.copied().filter(|it| *it != 0).ok_or_else(|| Missing(joined(names)))
    }

    /// Returns the names and addresses of the static fields whose names begin so.
    pub(super) fn addresses(&self, prefix: &str) -> impl Iterator<Item = (&str, u64)> {
        let all = self.statics.iter().map(|(name, address)| (name.as_str(), *address));
        all.filter(move |(name, address)| name.starts_with(prefix) && *address != 0)
    }

    /// Returns the size of a type.
    pub(super) fn size(&self, name: &str) -> Result<u64, Missing> {
        let size = self.sizes.get(name).copied().filter(|size| *size > 0);
        size.ok_or_else(|| Missing(name.to_owned()))
    }

    /// Returns a constant that has one of these names.
    pub(super) fn constant(&self, names: &[&str]) -> Result<i64, Missing> {
        let found = names.iter().find_map(|name| self.constants.get(*name));
        found.copied().ok_or_else(|| Missing(joined(names)))
    }
}

fn joined(names: &[&str]) -> String {
    names.join(" or ")
}

/// Calls `each` for each entry of a table: with its address, and the offsets of what it has.
fn entries<const N: usize>(
    symbols: &TableSymbols<N>,
    bias: u64,
    pages: &TargetPages<'_>,
    mut each: impl FnMut(u64, [u64; N]) -> Option<()>,
) -> Option<()> {
    let word = |svma: u64| pages.word(svma.wrapping_add(bias));
    let stride = word(symbols.stride).filter(|it| (8..=STRIDE_MAX).contains(it))?;
    let mut offsets = [0; N];
    for (offset, svma) in offsets.iter_mut().zip(symbols.offsets) {
        *offset = word(svma).filter(|it| *it < stride)?;
    }
    let first = word(symbols.entries).filter(|it| *it != 0)?;
    for number in 0..ENTRIES_MAX {
        let entry = first.checked_add(number * stride)?;
        entry.checked_add(stride)?;
        // The last entry has no name.
        if pages.word(entry + offsets[0])? == 0 {
            return Some(());
        }
        each(entry, offsets)?;
    }
    None
}
