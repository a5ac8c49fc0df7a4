//! The sections with call frame information.

use std::borrow::Cow;

use gimli::{BaseAddresses, DebugFrame, EhFrame, EhFrameHdr, LittleEndian, Pointer};

use super::architecture::Architecture;
use super::dwarf::Slice;
use traceprof_elf::Elf;

/// Maximum bytes of a section of call frame information: a program of a hundred megabytes has ten.
/// They stay unpacked only while a table is compiled.
pub(super) const LEN_MAX: u64 = 32 << 20;

/// The sections with call frame information.
#[derive(Debug)]
pub(super) struct Sections<'a> {
    pub(super) eh_frame: Option<EhFrame<Slice<'a>>>,
    pub(super) debug_frame: Option<DebugFrame<Slice<'a>>>,
    pub(super) bases: BaseAddresses,
    /// Length of `.eh_frame` in bytes.
    pub(super) eh_frame_len: usize,
}

impl<'a> Sections<'a> {
    /// Finds the sections of a module. The caller passes its `.debug_frame`, which may have to be
    /// unpacked.
    pub(super) fn find(elf: &Elf<'a>, debug_frame: Option<&'a [u8]>) -> Self {
        let mut bases = BaseAddresses::default();
        if let Some(text) = elf.section(".text") {
            bases = bases.set_text(text.svma);
        }
        if let Some(got) = elf.section(".got") {
            bases = bases.set_got(got.svma);
        }
        let found = elf
            .section(".eh_frame")
            .map(|section| (section.svma, section.data))
            .or_else(|| eh_frame_by_header(elf));
        if let Some((svma, _)) = found {
            bases = bases.set_eh_frame(svma);
        }
        let machine = Architecture::of(elf.machine()).unwrap_or(Architecture::HOST);
        let eh_frame = found.map(|(_, data)| eh_frame_of(data, machine));
        let debug_frame = debug_frame.map(|data| debug_frame_of(data, machine));
        let eh_frame_len = found.map_or(0, |(_, data)| data.len());
        Self { eh_frame, debug_frame, bases, eh_frame_len }
    }
}

/// Finds `.eh_frame` as the loaded module itself does, for images and files without section
/// headers. Its end is unknown, so its terminator ends the iteration.
fn eh_frame_by_header<'a>(elf: &Elf<'a>) -> Option<(u64, &'a [u8])> {
    let svma = elf.eh_frame_hdr()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(svma);
    let header = EhFrameHdr::new(elf.data(svma)?, LittleEndian).parse(&bases, 8).ok()?;
    match header.eh_frame_ptr() {
        Pointer::Direct(svma) => Some((svma, elf.data(svma)?)),
        Pointer::Indirect(_) => None,
    }
}

/// Returns `.debug_frame`, which is not loaded with the module.
pub(super) fn debug_frame<'a>(elf: &Elf<'a>) -> Option<Cow<'a, [u8]>> {
    elf.contents(".debug_frame", LEN_MAX).map(|(_, data)| data)
}

pub(super) fn eh_frame_of(data: &[u8], machine: Architecture) -> EhFrame<Slice<'_>> {
    let mut frames = EhFrame::new(data, LittleEndian);
    frames.set_vendor(machine.vendor());
    frames
}

pub(super) fn debug_frame_of(data: &[u8], machine: Architecture) -> DebugFrame<Slice<'_>> {
    let mut frames = DebugFrame::new(data, LittleEndian);
    frames.set_address_size(8);
    frames.set_vendor(machine.vendor());
    frames
}
