//! The names that gimli's types go by here.

use gimli::{DebugFrame, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian};

/// The bytes of a section.
pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;
/// A frame description entry.
pub(super) type Fde<'a> = FrameDescriptionEntry<Slice<'a>>;

/// The bytes behind a section of call frame information.
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
