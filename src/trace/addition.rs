//! Additions: what objects of later kinds say about the object directly before them.
//!
//! The kinds below 128 have fixed fields. What was added to them since stands in a sized object of
//! its own, which readers of earlier versions skip. It belongs to its object: both are in one frame
//! and in one block, have one index cell, and are written again together.

use super::bytes::{Cursor, Malformed, ParseResult, put_varint};

/// The kind of the frames at a CODE_LOCATION.
pub(super) const FRAME_KIND: u8 = 130;
/// The line at which a METHOD begins in its file.
pub(super) const FIRST_LINE: u8 = 131;
/// The id plus 1 of the name that a THREAD has in its language's runtime.
pub(super) const RUNTIME_NAME: u8 = 132;

/// The column that belongs to the line of a CODE_LOCATION or to the first line of a METHOD. Comes
/// behind the other addition.
pub(super) const COLUMN: u8 = 133;

/// Writes an addition, unless its number is 0, which is the value without one.
pub(super) fn put(out: &mut Vec<u8>, kind: u8, number: u32) {
    if number == 0 {
        return;
    }
    let mut content = Vec::with_capacity(5);
    put_varint(&mut content, number.into());
    out.push(kind);
    put_varint(out, content.len() as u64);
    out.extend_from_slice(&content);
}

/// Reads the addition to the object that was just read. Returns 0 if there is none. Ignores what
/// later versions may append to its number.
pub(super) fn read(cursor: &mut Cursor<'_>, kind: u8) -> ParseResult<u32> {
    if cursor.peek() != Some(kind) {
        return Ok(0);
    }
    cursor.u8()?;
    let len = cursor.varint32()? as usize;
    let start = cursor.at();
    let mut content = Cursor::new(cursor.take(len)?);
    content.varint32().map_err(|bad| Malformed { at: start + bad.at, ..bad })
}

/// Like [`read`], for an id plus 1. Returns the id, or [`NONE`](super::NONE).
pub(super) fn read_id(cursor: &mut Cursor<'_>, kind: u8) -> ParseResult<u32> {
    Ok(read(cursor, kind)?.wrapping_sub(1))
}

/// Refuses an addition that is not where [`read`] finds it.
pub(super) fn refuse_stray(kind: u8) -> Result<(), &'static str> {
    match kind {
        FRAME_KIND => Err("a FRAME_KIND does not follow a CODE_LOCATION"),
        FIRST_LINE => Err("a FIRST_LINE does not follow a METHOD"),
        RUNTIME_NAME => Err("a RUNTIME_NAME does not follow a THREAD"),
        COLUMN => Err("a COLUMN does not follow a CODE_LOCATION or a METHOD"),
        _ => Ok(()),
    }
}
