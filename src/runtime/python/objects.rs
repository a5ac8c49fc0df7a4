//! The interpreter's dictionaries and numbers, and the attributes of its objects.
//!
//! # Invariants
//! - The process runs meanwhile, so what is read may be torn. Types are checked where they are
//!   known, and lengths always. The caller reads again what must not be wrong.

use std::cell::Cell;

use super::offsets::{InstanceDict, KeyTable, ObjectOffsets};
use super::text::Texts;
use crate::runtime::memory::{self, MemoryPiece, TargetMemory};

/// Offsets of an object's type, of the value of a number, and of a module's dictionary.
const TYPE: u64 = 8;
const NUMBER: u64 = 16;
const MODULE_DICT: u64 = 16;
/// Offsets in a type: the size of its objects, flags, and the place of the dictionary in them.
const TYPE_SIZE: u64 = 32;
const TYPE_FLAGS: u64 = 168;
const TYPE_DICT: u64 = 288;
/// Flags of types: objects have their attributes behind their head, and in front of it.
const INLINE: u64 = 1 << 2;
const MANAGED: u64 = 1 << 4;
/// From an object to the pointer to its attributes in front of it.
const BEFORE: u64 = 24;
/// Offsets in a dictionary: of the pointers to its keys, and to values apart from them.
const KEYS: u64 = 32;
const VALUES: u64 = 40;
/// Maximum number of entries of a dictionary that is read.
const ENTRIES_MAX: u64 = 1 << 16;
/// Maximum number of values apart from their keys.
const VALUES_MAX: usize = 1024;
/// Maximum size of an object with its attributes behind it.
const OBJECT_MAX: u64 = 1 << 12;

/// An entry of a dictionary, or an attribute of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The hash of the key, or 0 if the table does not have it.
    pub(super) hash: u64,
    /// The address of the key.
    pub(super) key: u64,
    /// The address of the value.
    pub(super) value: u64,
}

/// What is known of the objects of one interpreter.
#[derive(Debug, Clone, Copy)]
pub(super) struct PythonObjects {
    pub(super) offsets: ObjectOffsets,
    pub(super) texts: Texts,
    /// The addresses of the types of dictionaries and of numbers, or 0 if they are unknown.
    pub(super) dict_type: u64,
    pub(super) number_type: u64,
}

/// Reads objects of a process.
#[derive(Clone, Copy)]
pub(super) struct ObjectReader<'a> {
    pub(super) objects: &'a PythonObjects,
    pub(super) memory: &'a dyn TargetMemory,
    /// The number of reads after which nothing is read any more.
    pub(super) reads_left: &'a Cell<u32>,
}

impl ObjectReader<'_> {
    /// Returns the word at an offset from an address.
    pub(super) fn word(&self, base: u64, offset: u64) -> Option<u64> {
        let avma = base.checked_add(offset)?;
        self.count(8)?;
        (base != 0 && avma.is_multiple_of(8)).then(|| memory::word(self.memory, avma))?
    }

    /// Returns a string.
    pub(super) fn text(&self, avma: u64) -> Option<String> {
        self.count(8)?;
        self.objects.texts.read(self.memory, avma)
    }

    /// Counts a read of this many bytes; a long one counts as several.
    fn count(&self, bytes: usize) -> Option<()> {
        const ONE: usize = 256;
        let reads = u32::try_from(1 + bytes / ONE).ok()?;
        self.reads_left.set(self.reads_left.get().checked_sub(reads)?);
        Some(())
    }

    /// Returns a number that fits into 32 bits and is not negative.
    pub(super) fn number(&self, avma: u64) -> Option<u32> {
        const DIGIT: u32 = 30;
        let PythonObjects { offsets, number_type, .. } = *self.objects;
        if number_type != 0 && self.word(avma, TYPE)? != number_type {
            return None;
        }
        let head = self.word(avma, NUMBER)?;
        // A tag with the sign in two bits and another flag, or the number of digits with the sign.
        let digits = match offsets.has_tagged_numbers {
            true if head & 3 == 0 => head >> 3,
            true => return None,
            false => head,
        };
        let low = self.word(avma, NUMBER + 8)?;
        let (first, second) = (low & ((1 << DIGIT) - 1), low >> 32);
        match digits {
            1 => Some(first as u32),
            2 => u32::try_from(second << DIGIT | first).ok(),
            _ => None,
        }
    }

    /// Returns the entries of a module's dictionary.
    pub(super) fn module_entries(&self, module: u64) -> Option<Vec<Entry>> {
        self.entries(self.word(module, MODULE_DICT)?)
    }

    /// Returns the entries of a dictionary.
    pub(super) fn entries(&self, dict: u64) -> Option<Vec<Entry>> {
        let kind = self.objects.dict_type;
        if kind != 0 && self.word(dict, TYPE)? != kind {
            return None;
        }
        let (keys, values) = (self.word(dict, KEYS)?, self.word(dict, VALUES)?);
        let mut entries = self.keys(keys)?;
        if values != 0 {
            self.set_values(&mut entries, values)?;
        }
        entries.retain(|entry| entry.key != 0 && entry.value != 0);
        Some(entries)
    }

    /// Returns the attributes of an object.
    pub(super) fn attributes(&self, object: u64) -> Option<Vec<Entry>> {
        let kind = self.word(object, TYPE)?;
        let flags = self.word(kind, TYPE_FLAGS)?;
        let before = || self.word(object.checked_sub(BEFORE)?, 0);
        let (dict, values) = match self.objects.offsets.instance {
            InstanceDict::Values if flags & MANAGED != 0 => {
                (before()?, self.word(object.checked_sub(BEFORE + 8)?, 0)?)
            }
            InstanceDict::Tagged if flags & MANAGED != 0 => match before()? {
                // A pointer to values is one less.
                odd if odd & 1 != 0 => (0, odd.wrapping_add(1)),
                dict => (dict, 0),
            },
            InstanceDict::Inline if flags & MANAGED != 0 => match before()? {
                0 if flags & INLINE != 0 => (0, self.inline_values(object, kind)?),
                dict => (dict, 0),
            },
            _ => {
                let offset = self.word(kind, TYPE_DICT).filter(|it| *it <= OBJECT_MAX)?;
                (self.word(object, offset)?, 0)
            }
        };
        if values == 0 {
            return self.entries(dict);
        }
        let mut attributes = self.keys(self.word(kind, self.objects.offsets.cached_keys)?)?;
        self.set_values(&mut attributes, values)?;
        attributes.retain(|entry| entry.key != 0 && entry.value != 0);
        Some(attributes)
    }

    /// Returns the address of the values behind an object, if they are in use.
    fn inline_values(&self, object: u64, kind: u64) -> Option<u64> {
        let size = self.word(kind, TYPE_SIZE).filter(|size| *size <= OBJECT_MAX)?;
        let values = object.checked_add(size)?;
        let [_, _, _, is_valid, ..] = self.word(values, 0)?.to_le_bytes();
        (is_valid == 1).then_some(values)
    }

    /// Returns the entries of a table of keys.
    fn keys(&self, keys: u64) -> Option<Vec<Entry>> {
        let shape = self.word(keys, 8)?;
        let (start, count, has_hashes) = match self.objects.offsets.keys {
            KeyTable::Sized => {
                let width: u64 = match shape {
                    0..=0xff => 1,
                    0x100..=0xffff => 2,
                    _ => 4,
                };
                let indices = if shape <= 4 * ENTRIES_MAX { shape * width } else { return None };
                (40 + indices, self.word(keys, 32)?, true)
            }
            KeyTable::Logarithmic => {
                let [_, indices, kind, ..] = shape.to_le_bytes();
                let indices = 1u64.checked_shl(indices.into()).filter(|_| indices < 24)?;
                (32 + indices, self.word(keys, 24)?, kind == 0)
            }
        };
        let words = if has_hashes { 3 } else { 2 };
        if count > ENTRIES_MAX {
            return None;
        }
        let mut bytes = vec![0; count as usize * words * 8];
        self.count(bytes.len())?;
        let avma = keys.checked_add(start)?;
        if self.memory.read(avma, &mut bytes) != bytes.len() {
            return None;
        }
        let piece = MemoryPiece { avma, bytes: &bytes };
        let entry = |at: usize| {
            let word = |index: usize| piece.word((at * words + index) * 8);
            let hash = if has_hashes { word(0)? } else { 0 };
            Some(Entry { hash, key: word(words - 2)?, value: word(words - 1)? })
        };
        (0..count as usize).map(entry).collect()
    }

    /// Sets the values that are apart from their keys.
    fn set_values(&self, entries: &mut [Entry], values: u64) -> Option<()> {
        if entries.len() > VALUES_MAX {
            return None;
        }
        let start = self.objects.offsets.values;
        for (index, entry) in entries.iter_mut().enumerate() {
            entry.value = self.word(values, start + index as u64 * 8)?;
        }
        Some(())
    }
}
