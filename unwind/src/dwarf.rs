//! Short names for gimli's types.

use gimli::{
    DebugFrame, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindTableRow,
};

/// Maximum number of registers of which a row says where they are. Functions save a dozen.
const REGISTERS_MAX: usize = 48;
/// Maximum number of rows that an entry remembers at a time, as in gimli's own storage.
const REMEMBERED_MAX: usize = 4;

/// The bytes of a section.
pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;
/// A frame description entry.
pub(super) type Fde<'a> = FrameDescriptionEntry<Slice<'a>>;

/// A row of an entry.
pub(super) type UnwindRow = UnwindTableRow<usize, SmallRows>;
/// What is needed to evaluate entries, one after the other.
pub(super) type RowContext = UnwindContext<usize, SmallRows>;

/// Storage for rows. Several are copied for each entry, and gimli's own have room for 192
/// registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SmallRows;

impl UnwindContextStorage<usize> for SmallRows {
    type Rules = [(Register, RegisterRule<usize>); REGISTERS_MAX];
    type Stack = Box<[UnwindTableRow<usize, Self>; REMEMBERED_MAX]>;
}

/// Access to the raw bytes of a call frame information section.
pub(super) trait Bytes<'a> {
    fn bytes(&self) -> &'a [u8];
}

impl<'a> Bytes<'a> for EhFrame<Slice<'a>> {
    fn bytes(&self) -> &'a [u8] {
        gimli::Section::reader(self).slice()
    }
}

impl<'a> Bytes<'a> for DebugFrame<Slice<'a>> {
    fn bytes(&self) -> &'a [u8] {
        gimli::Section::reader(self).slice()
    }
}
