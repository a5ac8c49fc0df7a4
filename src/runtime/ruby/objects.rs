//! The interpreter's strings and arrays.

use traceprof_abi::runtime::ruby::{ARRAY, EMBEDDING, STRING, TEXT_MAX, TYPE_MASK};

use super::offsets::RubyStructures;
use crate::runtime::memory::{self, TargetMemory};
use crate::text::printable;

/// Offsets in a string or array whose contents are elsewhere: of their number, and the addresses
/// of those of a string and of an array.
const LENGTH: u64 = 16;
const BYTES: u64 = 24;
const ELEMENTS: u64 = 32;
/// Offset of the elements that are in an array.
const EMBEDDED: u64 = 16;
/// The places in the flags of the number of bytes and of elements in the object.
const BYTES_SHIFT: u32 = 14;
const BYTES_MASK: u64 = 0x1f;
const ELEMENTS_SHIFT: u32 = 15;

/// The objects of one process.
#[derive(Clone, Copy)]
pub(super) struct RubyMemory<'m> {
    pub(super) memory: &'m dyn TargetMemory,
    pub(super) offsets: &'m RubyStructures,
}

impl RubyMemory<'_> {
    /// Reads a word of an object or of another structure.
    pub(super) fn field(&self, base: u64, at: u64) -> Option<u64> {
        memory::word(self.memory, base.wrapping_add(at))
    }

    /// Reads a string as it can be printed. `None` if there is none.
    pub(super) fn text(&self, string: u64) -> Option<String> {
        let flags = self.flags(string, STRING)?;
        let text_start = u64::from(self.offsets.layout.text_start);
        let start = match flags & EMBEDDING {
            0 => string.checked_add(text_start)?,
            _ => self.field(string, BYTES)?,
        };
        let len = match flags & EMBEDDING {
            0 if text_start == LENGTH => flags >> BYTES_SHIFT & BYTES_MASK,
            _ => self.field(string, LENGTH)?,
        };
        if len > TEXT_MAX {
            return None;
        }
        let mut bytes = vec![0; len as usize];
        let got = self.memory.read(start, &mut bytes);
        (got == bytes.len()).then(|| printable(&String::from_utf8_lossy(&bytes)))
    }

    /// Reads an element of an array. `None` if there is none.
    pub(super) fn element(&self, array: u64, index: u64) -> Option<u64> {
        let flags = self.flags(array, ARRAY)?;
        let (start, len) = match flags & EMBEDDING {
            0 => (self.field(array, ELEMENTS)?, self.field(array, LENGTH)?),
            _ => {
                let len = flags >> ELEMENTS_SHIFT & self.offsets.elements_mask;
                (array.checked_add(EMBEDDED)?, len)
            }
        };
        if index >= len {
            return None;
        }
        memory::word(self.memory, start.checked_add(index.checked_mul(8)?)?)
    }

    /// Reads a string, or the first element of an array, which is one.
    pub(super) fn path(&self, object: u64) -> Option<String> {
        self.text(object).or_else(|| self.text(self.element(object, 0)?))
    }

    /// Reads the flags of an object of this type.
    fn flags(&self, object: u64, of: u64) -> Option<u64> {
        self.field(object, 0).filter(|flags| flags & TYPE_MASK == of && object != 0)
    }
}
