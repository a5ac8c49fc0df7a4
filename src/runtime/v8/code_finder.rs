//! Finds compiled code by an address in it.
//!
//! In front of the instructions is an object that says so, or the code itself. The way there leads
//! over the instructions, which may hold any words.

use std::ops::Range;

use traceprof_abi::runtime::v8::object_of;

use super::layout::CodeStart;
use super::machine::V8Reader;
use crate::runtime::Gone;

/// Number of bytes that are read at once, on the way from an address to the start.
const CHUNK: u64 = 4096;
/// Maximum number of bytes on that way.
const BACK_MAX: u64 = 2 << 20;
/// Maximum number of objects that look like the start.
const STARTS_MAX: usize = 8;
/// Maximum number of bytes of one piece of code.
const CODE_MAX: u64 = 8 << 20;
/// Where the object in front of instructions may have a reference to the code.
const CODE_REFERENCES: [u64; 3] = [8, 16, 24];
/// The upper end of the addresses of a program.
const ADDRESSES_END: u64 = 1 << 47;

/// Compiled code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CodeObject {
    /// The address (AVMA) of the object in front of the instructions.
    pub(super) stream: u64,
    /// The address (AVMA) of the object that describes it. The same in some versions.
    pub(super) code: u64,
    /// The instructions (AVMAs).
    pub(super) instructions: Range<u64>,
    /// The number of the kind.
    pub(super) kind: u32,
}

/// Finds the code that contains an address.
pub(super) fn find_code(reader: &V8Reader<'_>, avma: u64) -> Result<CodeObject, Gone> {
    let (mut end, mut starts) = (avma & !7, 0);
    let first = end.saturating_sub(BACK_MAX);
    let mut is_read = false;
    while end > first {
        let start = (end - 1) / CHUNK * CHUNK;
        let bytes = reader.pages.bytes(start, (end - start) as usize);
        let Some(bytes) = bytes else { break };
        is_read = true;
        let (words, _) = bytes.as_chunks::<8>();
        for (index, word) in words.iter().enumerate().rev() {
            if !is_stream_map(reader, u64::from_le_bytes(*word)) {
                continue;
            }
            let stream = start + index as u64 * 8;
            let code = code_behind(reader, stream);
            if let Some(found) = code.filter(|it| it.instructions.contains(&avma)) {
                return Ok(found);
            }
            starts += 1;
            if starts >= STARTS_MAX {
                return Err(Gone::OtherType);
            }
        }
        end = start;
    }
    Err(if is_read { Gone::OtherType } else { Gone::Unreadable })
}

/// Returns whether a word refers to the map of what is in front of instructions.
fn is_stream_map(reader: &V8Reader<'_>, word: u64) -> bool {
    let Some(map) = object_of(word).filter(|map| *map < ADDRESSES_END) else { return false };
    let mut known = reader.stream_maps.borrow_mut();
    *known.entry(map).or_insert_with(|| {
        let heap = reader.heap();
        heap.kind_of_map(map) == Some(heap.layout.types.stream)
    })
}

/// Returns the code that the object at this address is in front of.
fn code_behind(reader: &V8Reader<'_>, stream: u64) -> Option<CodeObject> {
    let heap = reader.heap();
    let types = &heap.layout.types;
    if types.stream == types.code {
        return described(reader, stream, stream);
    }
    let codes = CODE_REFERENCES.into_iter().filter_map(|at| heap.object(stream, at));
    let mut codes = codes.filter(|code| heap.is(*code, types.code));
    codes.find_map(|code| described(reader, stream, code))
}

/// Reads what a code object says about its instructions.
fn described(reader: &V8Reader<'_>, stream: u64, code: u64) -> Option<CodeObject> {
    let (heap, fields) = (reader.heap(), reader.heap().layout.code);
    let start = match fields.start {
        CodeStart::Inside(offset) => code.checked_add(offset)?,
        CodeStart::Field(offset) => heap.word(code, offset)?,
    };
    let size = u64::from(heap.half(code, fields.size)?);
    let kind = heap.half(code, fields.flags)? & heap.layout.kinds.mask;
    let is_behind = start > stream && (1..=CODE_MAX).contains(&size);
    let instructions = start..start.checked_add(size)?;
    is_behind.then_some(CodeObject { stream, code, instructions, kind })
}

/// Returns some code in these addresses that is wanted: at most `count` pieces. `bytes` is how much
/// may be looked at, of which what was looked at is taken.
pub(super) fn some_code(
    reader: &V8Reader<'_>,
    range: &Range<u64>,
    is_wanted: impl Fn(&CodeObject) -> bool,
    count: usize,
    bytes: &mut u64,
) -> Vec<CodeObject> {
    let mut found = Vec::new();
    let end = range.end.min(range.start.saturating_add(*bytes));
    let mut start = range.start;
    while start < end && found.len() < count {
        let next = end.min(start.saturating_add(CHUNK));
        if let Some(bytes) = reader.pages.bytes(start, (next - start) as usize) {
            let (words, _) = bytes.as_chunks::<8>();
            for (index, word) in words.iter().enumerate() {
                let stream = start + index as u64 * 8;
                if is_stream_map(reader, u64::from_le_bytes(*word)) && found.len() < count {
                    found.extend(code_behind(reader, stream).filter(&is_wanted));
                }
            }
        }
        *bytes = bytes.saturating_sub(next - start);
        start = next;
    }
    found
}
