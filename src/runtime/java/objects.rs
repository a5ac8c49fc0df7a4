//! Java objects: their classes, fields, and the texts of strings.
//!
//! The collector may move an object while it is read, and reuse its memory. So what is read counts
//! only if a second reading, of memory that is read anew, has the same result. With ZGC that is not
//! enough: references stay as they were for a while after the objects have moved.

use super::layout::{ClassFields, MachineLayout};
use super::method::MethodReader;
use super::numbers::{NumberFormat, NumberReader};
use super::tables::{Missing, Tables};
use crate::runtime::pages::TargetPages;
use crate::text::{LENGTH_MAX, printable};

/// Maximum number of classes between a class and one that it extends.
const PARENTS_MAX: usize = 64;
/// Maximum number of fields of a class.
const FIELDS_MAX: u64 = 4096;
/// Number of two-byte numbers of a field, the offsets of its name and its signature among them, and
/// of the two halves of its offset.
const FIELD_SHORTS: u64 = 6;
const FIELD_NAME: u64 = 1;
const FIELD_SIGNATURE: u64 = 2;
const FIELD_LOW: u64 = 4;
const FIELD_HIGH: u64 = 5;
/// Number of low bits of such an offset that are no part of it.
const FIELD_TAG_BITS: u32 = 2;
/// Flags of a field: further numbers follow it.
const HAS_INITIAL_VALUE: u32 = 1;
const HAS_GENERIC: u32 = 1 << 2;
const HAS_GROUP: u32 = 1 << 4;
/// Maximum number of characters of a string that are read.
const CHARACTERS_MAX: u32 = LENGTH_MAX as u32;

/// How a machine stores objects, by its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectShape {
    /// The base and the shift of references to objects of four bytes.
    pub(super) compressed: Option<(u64, u32)>,
    /// The base and the shift of references to classes of four bytes.
    pub(super) compressed_class: Option<(u64, u32)>,
    /// The shift of the class in the first word of an object that has no other word for it.
    pub(super) class_in_mark: Option<u32>,
    /// Whether references have colours in their lowest bits (generational ZGC).
    pub(super) is_coloured: bool,
    /// Whether references may be out of date until the program uses them (ZGC).
    pub(super) has_late_references: bool,
    /// Whether objects move only while threads wait that are in Java's or the machine's code.
    pub(super) stops_to_move: bool,
    /// Whether arrays of bytes start behind the length of an array, without padding.
    pub(super) has_tight_arrays: bool,
}

/// The options of a machine that decide how it stores objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ObjectOptions {
    pub(super) compressed: bool,
    pub(super) compressed_class: bool,
    pub(super) compact_headers: bool,
    pub(super) zgc: bool,
    pub(super) zgc_generational: bool,
    /// Whether a collector is in use that stops the threads to move objects.
    pub(super) stops_to_move: bool,
}

impl ObjectShape {
    /// Makes the shape of the objects of a machine.
    pub(super) fn of(
        tables: &Tables,
        version: u8,
        options: ObjectOptions,
        pages: &TargetPages<'_>,
    ) -> Result<Self, Missing> {
        let pair = |bases: &[&str], shifts: &[&str]| {
            let (base, shift) = (tables.address(bases)?, tables.address(shifts)?);
            let unreadable = || Missing(bases.join(" or "));
            let base = pages.word(base).ok_or_else(unreadable)?;
            let shift = pages.half(shift).filter(|shift| *shift < 32).ok_or_else(unreadable)?;
            Ok((base, shift))
        };
        let objects = || {
            pair(
                &[
                    "CompressedOops::_base",
                    "CompressedOops::_narrow_oop._base",
                    "Universe::_narrow_oop._base",
                ],
                &[
                    "CompressedOops::_shift",
                    "CompressedOops::_narrow_oop._shift",
                    "Universe::_narrow_oop._shift",
                ],
            )
        };
        let classes = || {
            pair(
                &[
                    "CompressedKlassPointers::_base",
                    "CompressedKlassPointers::_narrow_klass._base",
                    "Universe::_narrow_klass._base",
                ],
                &[
                    "CompressedKlassPointers::_shift",
                    "CompressedKlassPointers::_narrow_klass._shift",
                    "Universe::_narrow_klass._shift",
                ],
            )
        };
        let is_compact = options.compact_headers;
        let mark_shift = || tables.constant(&["markWord::klass_shift"]).map(|it| it as u32 & 63);
        let has_narrow_classes = options.compressed_class || is_compact;
        Ok(Self {
            compressed: options.compressed.then(objects).transpose()?,
            compressed_class: has_narrow_classes.then(classes).transpose()?,
            class_in_mark: is_compact.then(mark_shift).transpose()?,
            is_coloured: options.zgc && (version > 21 || options.zgc_generational),
            has_late_references: options.zgc,
            stops_to_move: options.stops_to_move && !options.zgc,
            has_tight_arrays: version > 21,
        })
    }

    /// Returns the offsets of the length and of the first byte of an array of bytes.
    pub(super) fn array(&self) -> (u64, u64) {
        if self.class_in_mark.is_some() {
            return (8, 12);
        }
        if self.compressed_class.is_some() {
            return (12, 16);
        }
        (16, if self.has_tight_arrays { 20 } else { 24 })
    }

    /// Returns the address of the object that a full reference refers to.
    pub(super) fn object(&self, reference: u64) -> Option<u64> {
        let mut object = reference;
        if self.is_coloured && reference != 0 {
            // One of four bits tells how far the address is shifted: to just above that bit.
            let colour = (reference >> 12) & 0xf;
            if colour.count_ones() != 1 {
                return None;
            }
            object = reference >> (13 + colour.trailing_zeros());
        }
        (object != 0 && object.is_multiple_of(8)).then_some(object)
    }
}

/// Reads objects of one machine.
#[derive(Clone, Copy)]
pub(super) struct JavaObjectReader<'a> {
    pub(super) shape: &'a ObjectShape,
    pub(super) layout: &'a MachineLayout,
    pub(super) pages: &'a TargetPages<'a>,
    pub(super) format: NumberFormat,
}

impl JavaObjectReader<'_> {
    fn names(&self) -> MethodReader<'_> {
        MethodReader { layout: self.layout, pages: self.pages, format: self.format }
    }

    /// Returns the object that a structure of the machine refers to by this word.
    pub(super) fn referred(&self, stored: u64) -> Option<u64> {
        if !self.layout.thread.has_handles {
            return self.shape.object(stored);
        }
        if stored == 0 || !stored.is_multiple_of(8) {
            return None;
        }
        self.shape.object(self.pages.word(stored)?)
    }

    /// Returns the class of an object.
    pub(super) fn class_of(&self, object: u64) -> Option<u64> {
        let widen = |narrow: u64| {
            let (base, shift) = self.shape.compressed_class?;
            base.checked_add(narrow << shift)
        };
        let class = match (self.shape.class_in_mark, self.shape.compressed_class) {
            (Some(shift), _) => widen(self.pages.word(object)? >> shift)?,
            (None, Some(_)) => widen(u64::from(self.pages.half(object.checked_add(8)?)?))?,
            (None, None) => self.pages.word(object.checked_add(8)?)?,
        };
        (class != 0 && class.is_multiple_of(8)).then_some(class)
    }

    /// Returns the machine's name of the class of an object.
    pub(super) fn class_name_of(&self, object: u64) -> Option<String> {
        self.names().internal_name(self.class_of(object)?)
    }

    /// Returns the reference in a field of an object.
    pub(super) fn reference(&self, object: u64, offset: u64) -> Option<u64> {
        let at = object.checked_add(offset)?;
        match self.shape.compressed {
            Some((base, shift)) => match u64::from(self.pages.half(at)?) {
                0 => None,
                narrow => base.checked_add(narrow << shift).filter(|it| it.is_multiple_of(8)),
            },
            None => self.shape.object(self.pages.word(at)?),
        }
    }

    /// Returns the offset of a field, declared by the class of this name, in objects of a class
    /// that is or extends it.
    pub(super) fn field(&self, class: u64, declared_by: &str, field: (&str, &str)) -> Option<u64> {
        self.own_field(self.parent_named(class, declared_by)?, field)
    }

    /// Returns the class of this name, which a class is or extends.
    pub(super) fn parent_named(&self, class: u64, name: &str) -> Option<u64> {
        let mut class = class;
        for _ in 0..PARENTS_MAX {
            if self.names().internal_name(class)? == name {
                return Some(class);
            }
            class = self.layout.class.parent.pointer(self.pages, class)?;
        }
        None
    }

    /// Returns whether a class is another one or extends it.
    pub(super) fn extends(&self, class: u64, other: u64) -> bool {
        let mut class = Some(class);
        for _ in 0..PARENTS_MAX {
            match class {
                Some(it) if it == other => return true,
                Some(it) => class = self.layout.class.parent.pointer(self.pages, it),
                None => return false,
            }
        }
        false
    }

    /// Returns the offset of a field that a class declares.
    pub(super) fn own_field(&self, class: u64, (name, signature): (&str, &str)) -> Option<u64> {
        let pool = self.layout.class.pool.pointer(self.pages, class)?;
        let is_it = |name_slot: u64, signature_slot: u64| {
            let text = |slot| self.names().symbol_in(pool, slot);
            text(name_slot).as_deref() == Some(name)
                && text(signature_slot).as_deref() == Some(signature)
        };
        match self.layout.class.fields {
            ClassFields::Array { array, count } => {
                let array = array.pointer(self.pages, class)?;
                let count = count.count(self.pages, class).filter(|it| *it <= FIELDS_MAX)?;
                let start = array.checked_add(self.layout.class.shorts)?;
                (0..count).find_map(|index| {
                    let short = |at| {
                        let at = start.checked_add((index * FIELD_SHORTS + at) * 2)?;
                        self.pages.short(at).map(u32::from)
                    };
                    let slot = |at| Some(u64::from(short(at)?));
                    let is_found = is_it(slot(FIELD_NAME)?, slot(FIELD_SIGNATURE)?);
                    let packed = short(FIELD_HIGH)? << 16 | short(FIELD_LOW)?;
                    is_found.then_some(u64::from(packed >> FIELD_TAG_BITS))
                })
            }
            ClassFields::Stream(stream) => {
                let array = stream.pointer(self.pages, class)?;
                let len = self.layout.class.array_len.count(self.pages, array)?;
                let start = array.checked_add(self.layout.class.bytes)?;
                let bytes = self.pages.bytes(start, usize::try_from(len).ok()?)?;
                let mut numbers = NumberReader::of(&bytes, self.format);
                let count = numbers.number().filter(|it| u64::from(*it) <= FIELDS_MAX)?;
                // The number of fields that the machine has added, which come last.
                numbers.number()?;
                for _ in 0..count {
                    let (name, signature) = (numbers.number()?, numbers.number()?);
                    let (offset, _, flags) =
                        (numbers.number()?, numbers.number()?, numbers.number()?);
                    for further in [HAS_INITIAL_VALUE, HAS_GENERIC, HAS_GROUP] {
                        if flags & further != 0 {
                            numbers.number()?;
                        }
                    }
                    if is_it(u64::from(name), u64::from(signature)) {
                        return Some(u64::from(offset));
                    }
                }
                None
            }
        }
    }

    /// Returns the text of a string, as it can be printed.
    pub(super) fn string(&self, object: u64) -> Option<String> {
        const STRING: &str = "java/lang/String";
        let class = self.class_of(object)?;
        if self.names().internal_name(class)? != STRING {
            return None;
        }
        // The field with the characters, whether each has two bytes, and the elements' length.
        let (characters, is_wide, element) = match self.field(class, STRING, ("value", "[B")) {
            Some(value) => {
                let coder = self.field(class, STRING, ("coder", "B"))?;
                (value, self.pages.byte(object.checked_add(coder)?)? == 1, 1)
            }
            // Up to Java 8, all strings consist of characters of two bytes.
            None => (self.field(class, STRING, ("value", "[C"))?, true, 2),
        };
        let array = self.reference(object, characters)?;
        if !matches!(self.class_name_of(array).as_deref(), Some("[B" | "[C")) {
            return None;
        }
        let (len_at, start) = self.shape.array();
        let len = self.pages.half(array.checked_add(len_at)?)?.checked_mul(element)?;
        let read = len.min(CHARACTERS_MAX * 2) as usize;
        let bytes = self.pages.bytes(array.checked_add(start)?, read)?;
        if !is_wide {
            let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
            return Some(printable(&text));
        }
        let (units, _) = bytes.as_chunks::<2>();
        let units = units.iter().map(|unit| u16::from_le_bytes(*unit));
        let text: String =
            char::decode_utf16(units).map(|it| it.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        Some(printable(&text))
    }
}
