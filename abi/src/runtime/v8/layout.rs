//! The offsets that a handler needs in the objects of V8.
//!
//! A tagged word is a small integer in its upper half, or the address of an object plus 1.

use crate::runtime::WordReader;

/// Stands for a field that this version does not have.
pub const ABSENT: u16 = u16::MAX;
/// From the frame pointer to the context of a function, or the type of another frame.
pub const CONTEXT_SLOT: i64 = -8;
/// From the frame pointer to the function.
pub const FUNCTION_SLOT: i64 = -16;
/// From the frame pointer to the bytecodes of an interpreted function.
pub const BYTECODES_SLOT: i64 = -32;
/// From the frame pointer to the offset of the bytecode.
pub const OFFSET_SLOT: i64 = -40;

/// The offsets in one version's objects, in bytes from the address of the object.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct V8Layout {
    /// The least instance type of functions.
    pub function_first: u16,
    /// The greatest instance type of functions.
    pub function_last: u16,
    /// The instance type of what all functions made from one piece of source code share.
    pub shared_type: u16,
    /// The instance type of arrays of bytecodes.
    pub bytecodes_type: u16,
    /// From a map to its instance type, a number of two bytes.
    pub map_instance_type: u16,
    /// From a function to what it shares.
    pub function_shared: u16,
    /// From what functions share to its script.
    pub shared_script: u16,
    /// From what functions share to its number in the script, of four bytes.
    pub shared_literal: u16,
    /// From what functions share to its unique number, of four bytes, or [`ABSENT`].
    pub shared_unique: u16,
    /// From a script to its number, a small integer that no other script of the same engine gets.
    pub script_id: u16,
    /// Zero.
    pub reserved: [u16; 2],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<V8Layout>() == 3 * 8);

impl V8Layout {
    /// Loads a word of an object.
    pub fn field(&self, object: u64, offset: u16, memory: &mut impl WordReader) -> Option<u64> {
        let at = object.wrapping_add(u64::from(offset));
        (at & 7 == 0).then(|| memory.load(at))?
    }

    /// Loads a number of four bytes of an object.
    fn half(&self, object: u64, offset: u16, memory: &mut impl WordReader) -> Option<u32> {
        let word = self.field(object, offset & !7, memory)?;
        Some((word >> (u32::from(offset & 4) * 8)) as u32)
    }

    /// Returns the instance type of the object that a tagged word refers to. `None` if it refers to
    /// none, or the type is unreadable.
    pub fn instance_type(&self, tagged: u64, memory: &mut impl WordReader) -> Option<u16> {
        let map = self.field(object_of(tagged)?, 0, memory)?;
        let at = self.map_instance_type;
        let word = self.field(object_of(map)?, at & !7, memory)?;
        Some((word >> (u32::from(at & 7) * 8)) as u16)
    }

    /// Returns the cookie of what functions share, given by its address. `None` if it is
    /// unreadable.
    ///
    /// The recorder compares the cookie at the capture with that of the object that it reads later.
    pub fn cookie(&self, shared: u64, memory: &mut impl WordReader) -> Option<u32> {
        const K: u64 = 0x9E37_79B9_7F4A_7C15;
        if self.shared_unique != ABSENT {
            return self.half(shared, self.shared_unique, memory);
        }
        // A script's number and a number in it are one function's only. Addresses are used again.
        let script = object_of(self.field(shared, self.shared_script, memory)?)?;
        let id = self.field(script, self.script_id, memory)?;
        let literal = self.half(shared, self.shared_literal, memory)?;
        let folded = (id ^ u64::from(literal)).wrapping_mul(K);
        Some((folded ^ folded >> 32) as u32)
    }
}

/// Returns the address of the object that a tagged word refers to. `None` if it is no reference.
pub fn object_of(tagged: u64) -> Option<u64> {
    (tagged & 3 == 1).then_some(tagged & !1)
}
