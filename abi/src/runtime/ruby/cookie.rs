//! What tells the objects of frames apart.
//!
//! Each definition of a method has a number of its own. Several classes may share it: each class of
//! Ruby 3.1 has a number, too, and later ones have the digest of their name. Code of other kinds
//! has the digests of its name and path, and its place in the source code.

use super::{
    ARRAY, BODY_KIND, CLASS, DEFINITION_NUMBER, EMBEDDING, Lost, METHOD_CLASS, METHOD_DEFINITION,
    MODULE, Reader, RubyLayout, SINGLETON, TYPE_MASK, text,
};
use crate::runtime::WordReader;
use crate::runtime::cookie::CookieParts;

/// The type of objects that the interpreter has for itself, and the kinds of two of them: what
/// stands for a method's entry and more, and the entry.
const INTERNAL: u64 = 0x1a;
const INTERNAL_SHIFT: u32 = 12;
const INTERNAL_MASK: u64 = 0xf;
const WITH_VARIABLES: u64 = 2;
const ENTRY: u64 = 6;
/// Offset of the method's entry in the former.
const VARIABLES_ENTRY: u16 = 8;
/// Offset of the first element of an array that has its elements in itself.
const FIRST_ELEMENT: u16 = 16;
/// Maximum number of words with a place in the source code.
const PLACE_WORDS_MAX: u16 = 4;
/// The largest number of a kind of code.
const KIND_MAX: u32 = 8;

/// The object of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RubyObject {
    /// The body of a sequence of instructions.
    Body,
    /// The entry of a method in its class.
    Method,
}

impl RubyObject {
    /// Returns the object whose first word this is.
    pub fn of(word: u64) -> Option<Self> {
        match internal(word) {
            Some(ENTRY) => Some(Self::Method),
            _ if word as u32 <= KIND_MAX => Some(Self::Body),
            _ => None,
        }
    }
}

/// Returns the kind of an internal object whose first word this is.
fn internal(word: u64) -> Option<u64> {
    (word & TYPE_MASK == INTERNAL).then_some(word >> INTERNAL_SHIFT & INTERNAL_MASK)
}

/// Returns the entry of the method to which an environment's word leads. `None` if it has none.
pub(super) fn method(
    reader: &mut Reader<'_, impl WordReader>,
    object: u64,
) -> Result<Option<u64>, Lost> {
    if object == 0 {
        return Ok(None);
    }
    let found = match internal(reader.word(object)?) {
        Some(WITH_VARIABLES) => reader.field(object, VARIABLES_ENTRY)?,
        Some(ENTRY) => return Ok(Some(object)),
        _ => return Ok(None),
    };
    if found == 0 {
        return Ok(None);
    }
    let is_entry = internal(reader.word(found)?) == Some(ENTRY);
    Ok(is_entry.then_some(found))
}

/// Returns the cookie of a frame's object. `None` if it is none, or unreadable.
///
/// The recorder compares the cookie at the capture with that of the object that it reads later.
pub fn cookie(layout: &RubyLayout, object: u64, memory: &mut impl WordReader) -> Option<u32> {
    let mut reader = Reader { layout, memory };
    let parts = match RubyObject::of(reader.word(object).ok()?)? {
        RubyObject::Method => of_method(&mut reader, object),
        RubyObject::Body => of_body(&mut reader, object),
    };
    parts.ok().map(CookieParts::finish)
}

fn of_method(reader: &mut Reader<'_, impl WordReader>, method: u64) -> Result<CookieParts, Lost> {
    let definition = reader.field(method, METHOD_DEFINITION)?;
    let class = reader.field(method, METHOD_CLASS)?;
    let number = reader.field(definition, DEFINITION_NUMBER)?;
    let parts = CookieParts::NONE.with(number);
    match reader.layout.class_number {
        0 => with_class_name(reader, parts, class),
        at => Ok(parts.with(class).with(reader.field(class, at)?)),
    }
}

/// Returns the parts with what is named of a class: a class of one object, or not, and the name.
fn with_class_name(
    reader: &mut Reader<'_, impl WordReader>,
    parts: CookieParts,
    class: u64,
) -> Result<CookieParts, Lost> {
    let flags = reader.word(class)?;
    let is_of_one = flags & TYPE_MASK == CLASS && flags & SINGLETON != 0;
    let class_object = reader.layout.class_object;
    let named = if is_of_one { reader.field(class, class_object)? } else { class };
    let parts = parts.with(u64::from(is_of_one));
    let name = match reader.word(named)? & TYPE_MASK {
        CLASS | MODULE => reader.field(named, reader.layout.class_name)?,
        // Other objects have no name.
        _ => 0,
    };
    // A name that is too long is not shown.
    Ok(if name == 0 { parts } else { parts.with(text::digest(reader, name).unwrap_or(name)) })
}

fn of_body(reader: &mut Reader<'_, impl WordReader>, body: u64) -> Result<CookieParts, Lost> {
    let RubyLayout { body_path, body_name, body_place, body_lines_len, .. } = *reader.layout;
    let mut parts = CookieParts::NONE.with(reader.field(body, BODY_KIND)?);
    for index in 0..reader.layout.body_place_words.min(PLACE_WORDS_MAX) {
        let at = body_place.wrapping_add(index.wrapping_mul(8));
        parts = parts.with(reader.field(body, at)?);
    }
    parts = parts.with(u64::from(reader.half(body, body_lines_len)?));
    let name = reader.field(body, body_name)?;
    let path = reader.field(body, body_path)?;
    let path = first_of(reader, path)?;
    Ok(parts.with(text::digest(reader, name)?).with(text::digest(reader, path)?))
}

/// Returns the first element of an array, or what is no array.
fn first_of(reader: &mut Reader<'_, impl WordReader>, object: u64) -> Result<u64, Lost> {
    let flags = reader.word(object)?;
    if flags & TYPE_MASK != ARRAY {
        return Ok(object);
    }
    // Pairs of paths have room in the array itself.
    if flags & EMBEDDING == 0 { Err(Lost) } else { reader.field(object, FIRST_ELEMENT) }
}
