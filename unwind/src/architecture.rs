//! The machine architectures that tables can be compiled for.

use gimli::{UnwindSection, Vendor};
use traceprof_abi::unwind::Rule;

use super::cfi;
use super::dwarf::{Fde, Slice, UnwindRow};

const EM_X86_64: u16 = 62;
const EM_AARCH64: u16 = 183;

/// A machine architecture whose code can be unwound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    /// The architecture that this program runs on. Its targets have the same.
    pub(super) const HOST: Self =
        if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    /// Returns the architecture with this ELF machine number (`EM_*`).
    pub(super) fn of(number: u16) -> Option<Self> {
        match number {
            EM_X86_64 => Some(Self::X86_64),
            EM_AARCH64 => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// Returns the vendor whose extensions the call frame information may use.
    pub(super) fn vendor(self) -> Vendor {
        match self {
            Self::X86_64 => Vendor::Default,
            Self::Aarch64 => Vendor::AArch64,
        }
    }

    /// Returns the rule for a row of `fde`.
    pub(super) fn rule<'a>(
        self,
        row: &UnwindRow,
        fde: &Fde<'a>,
        section: &impl UnwindSection<Slice<'a>>,
    ) -> Rule {
        match self {
            Self::X86_64 => cfi::x86_64::rule(row, fde, section),
            Self::Aarch64 => cfi::aarch64::rule(row, fde),
        }
    }
}
