//! Call frame information that is not in a module itself: that of its debug file.
//!
//! Compilers that are told to leave unwind tables out of a program put call frame information beside
//! its debug information, and `strip` moves both to the debug file.

use std::borrow::Cow;

use gimli::{BaseAddresses, DebugFrame, EhFrame, LittleEndian};

use super::entries::{Sections, Slice};
use super::machine::Machine;
use crate::elf::Elf;

/// Bytes of a section of call frame information: that of a program of a hundred megabytes has ten. They
/// are unpacked while a table is made, and no longer.
const LEN_MAX: u64 = 32 << 20;

/// The sections of a debug file that tell of frames.
#[derive(Debug)]
pub struct CallFrames<'a> {
    /// With its address, where the file has the whole program.
    eh_frame: Option<(u64, Cow<'a, [u8]>)>,
    debug_frame: Option<Cow<'a, [u8]>>,
}

impl<'a> CallFrames<'a> {
    /// Those of a debug file; `None` if it has none, or is no ELF file.
    pub fn read(debug_file: &'a [u8]) -> Option<Self> {
        let elf = Elf::parse(debug_file).ok()?;
        // Not by program headers: those of a debug file lead to what it does not have.
        let eh_frame = elf.contents(".eh_frame", LEN_MAX).filter(|(_, data)| !data.is_empty());
        let debug_frame = debug_frame(&elf).filter(|data| !data.is_empty());
        (eh_frame.is_some() || debug_frame.is_some()).then_some(Self { eh_frame, debug_frame })
    }

    /// As sections of a module of a machine.
    pub(super) fn sections(&self, machine: Machine) -> Sections<'_> {
        let mut bases = BaseAddresses::default();
        if let Some((svma, _)) = &self.eh_frame {
            bases = bases.set_eh_frame(*svma);
        }
        let eh_frame = self.eh_frame.as_ref().map(|(_, data)| eh_frame_of(data, machine));
        let debug_frame = self.debug_frame.as_ref().map(|data| debug_frame_of(data, machine));
        Sections { eh_frame, debug_frame, bases, eh_frame_len: 0 }
    }
}

/// The section of a module that is not loaded with it.
pub(super) fn debug_frame<'a>(elf: &Elf<'a>) -> Option<Cow<'a, [u8]>> {
    elf.contents(".debug_frame", LEN_MAX).map(|(_, data)| data)
}

pub(super) fn eh_frame_of(data: &[u8], machine: Machine) -> EhFrame<Slice<'_>> {
    let mut frames = EhFrame::new(data, LittleEndian);
    frames.set_vendor(machine.vendor());
    frames
}

pub(super) fn debug_frame_of(data: &[u8], machine: Machine) -> DebugFrame<Slice<'_>> {
    let mut frames = DebugFrame::new(data, LittleEndian);
    frames.set_address_size(8);
    frames.set_vendor(machine.vendor());
    frames
}
