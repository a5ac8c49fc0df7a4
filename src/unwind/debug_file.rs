//! Call frame information that is in a module's debug file.
//!
//! A compiler that leaves unwind tables out of a program puts call frame information beside the
//! debug information. `strip` moves both to the debug file.

use std::borrow::Cow;

use gimli::BaseAddresses;

use super::architecture::Architecture;
use super::sections::{LEN_MAX, Sections, debug_frame, debug_frame_of, eh_frame_of};
use crate::elf::Elf;

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
    pub(super) fn sections(&self, machine: Architecture) -> Sections<'_> {
        let mut bases = BaseAddresses::default();
        if let Some((svma, _)) = &self.eh_frame {
            bases = bases.set_eh_frame(*svma);
        }
        let eh_frame = self.eh_frame.as_ref().map(|(_, data)| eh_frame_of(data, machine));
        let debug_frame = self.debug_frame.as_ref().map(|data| debug_frame_of(data, machine));
        Sections { eh_frame, debug_frame, bases, eh_frame_len: 0 }
    }
}
