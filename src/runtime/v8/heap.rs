//! Reads of V8's objects, each given by its address.
//!
//! A field holds a reference, which is the address of an object plus 1 (plus 2 more if it is weak),
//! or a small integer in the upper half of the word.

use traceprof_abi::runtime::v8::object_of;

use super::layout::ObjectLayout;
use crate::runtime::pages::TargetPages;

/// From an array to the number of its elements, and to the first one.
const ARRAY_LEN: u64 = 8;
const ARRAY_DATA: u64 = 16;
/// The bit of references that do not keep an object alive.
const WEAK: u64 = 2;

/// Returns the small integer in a word. `None` if the word is none, or the number is negative.
pub(super) fn small(word: u64) -> Option<u32> {
    let is_small = word & 0xffff_ffff == 0 && word >> 63 == 0;
    is_small.then_some((word >> 32) as u32)
}

/// Reads objects of one process.
#[derive(Clone, Copy)]
pub(super) struct HeapReader<'m> {
    pub(super) layout: &'m ObjectLayout,
    pub(super) pages: &'m TargetPages<'m>,
}

impl HeapReader<'_> {
    /// Returns the word in a field.
    pub(super) fn word(&self, object: u64, offset: u64) -> Option<u64> {
        self.pages.word(object.checked_add(offset)?)
    }

    /// Returns the number of four bytes in a field.
    pub(super) fn half(&self, object: u64, offset: u64) -> Option<u32> {
        self.pages.half(object.checked_add(offset)?)
    }

    /// Returns the object that a field refers to.
    pub(super) fn object(&self, object: u64, offset: u64) -> Option<u64> {
        object_of(self.word(object, offset)?)
    }

    /// Returns the small integer in a field.
    pub(super) fn small(&self, object: u64, offset: u64) -> Option<u32> {
        small(self.word(object, offset)?)
    }

    /// Returns the instance type of an object. `None` if what describes the object is no map.
    pub(super) fn kind(&self, object: u64) -> Option<u16> {
        self.kind_of_map(self.object(object, 0)?)
    }

    /// Returns the instance type that a map gives its objects.
    pub(super) fn kind_of_map(&self, map: u64) -> Option<u16> {
        let kind = |map: u64| self.pages.short(map.checked_add(self.layout.instance_type)?);
        let is_map = kind(self.object(map, 0)?)? == self.layout.types.map;
        is_map.then(|| kind(map))?
    }

    /// Returns whether an object has this instance type.
    pub(super) fn is(&self, object: u64, kind: u16) -> bool {
        self.kind(object) == Some(kind)
    }

    /// Returns the number of elements of an array, if there are not too many.
    pub(super) fn array_len(&self, array: u64, max: usize) -> Option<usize> {
        let len = usize::try_from(self.small(array, ARRAY_LEN)?).ok()?;
        (len <= max).then_some(len)
    }

    /// Returns the bytes of the elements of an array, each of `width` bytes.
    pub(super) fn array(&self, array: u64, width: usize, max: usize) -> Option<Vec<u8>> {
        let len = self.array_len(array, max)?;
        self.pages.bytes(array.checked_add(ARRAY_DATA)?, len.checked_mul(width)?)
    }

    /// Returns an element of an array of words, which must have so many.
    pub(super) fn element(&self, array: u64, index: u64, len_max: usize) -> Option<u64> {
        let len = self.array_len(array, len_max)?;
        let offset = ARRAY_DATA.checked_add(index.checked_mul(8)?)?;
        (index < len as u64).then(|| self.word(array, offset))?
    }
}

/// Returns the object that a reference refers to, which may be weak.
pub(super) fn weak_object(word: u64) -> Option<u64> {
    object_of(word & !WEAK)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn words_are_references_or_small_integers() {
        assert_eq!([small(7 << 32), small(0), small(1 << 63)], [Some(7), Some(0), None]);
        assert_eq!([small(7 << 32 | 1), small(1 << 31)], [None; 2]);
        assert_eq!([weak_object(0x1001), weak_object(0x1003)], [Some(0x1000); 2]);
        assert_eq!([weak_object(0x1000), weak_object(0x1002), object_of(0x1003)], [None; 3]);
    }
}
