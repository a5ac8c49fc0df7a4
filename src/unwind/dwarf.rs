//! Short names for gimli's types.

use gimli::{DebugFrame, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian};

/// The bytes of a section.
pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;
/// A frame description entry.
pub(super) type Fde<'a> = FrameDescriptionEntry<Slice<'a>>;

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
