//! Call frame information in a module's debug file.
//!
//! A compiler that leaves unwind tables out of a program puts call frame information next to the
//! debug information. `strip` moves both to the debug file.

use std::borrow::Cow;

use gimli::BaseAddresses;

use super::architecture::Architecture;
use super::sections::{LEN_MAX, Sections, debug_frame, debug_frame_of, eh_frame_of};
use traceprof_elf::Elf;

/// The sections of a debug file that contain call frame information.
#[derive(Debug)]
pub struct CallFrames<'a> {
    /// The address and contents of `.eh_frame`, if the debug file contains the complete program.
    eh_frame: Option<(u64, Cow<'a, [u8]>)>,
    debug_frame: Option<Cow<'a, [u8]>>,
}

impl<'a> CallFrames<'a> {
    /// Reads the sections of a debug file. Returns `None` if it has none or is not an ELF file.
    pub fn read(debug_file: &'a [u8]) -> Option<Self> {
        let elf = Elf::parse(debug_file).ok()?;
        // Program headers cannot be used: those of a debug file refer to contents it does not have.
        let eh_frame = elf.contents(".eh_frame", LEN_MAX).filter(|(_, data)| !data.is_empty());
        let debug_frame = debug_frame(&elf).filter(|data| !data.is_empty());
        (eh_frame.is_some() || debug_frame.is_some()).then_some(Self { eh_frame, debug_frame })
    }

    /// Returns them as sections of a module for this architecture.
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
