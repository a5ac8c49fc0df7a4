//! What the file with the interpreter says about it.
//!
//! Extensions need the names that are used here, so stripped files have them as well.

use std::fmt;

use super::structures::{PerlStructures, structures};
use crate::elf::{Definitions, Elf, ThreadLocals, TlsAccess};
use crate::runtime::ManagedLanguage;
use crate::runtime::carriers::Carriers;
use crate::runtime::interpreter_file::{Interpreter, InterpreterFile};

/// The variable with a thread's interpreter, which only builds with threads have.
const CONTEXT: &str = "PL_current_context";

static PERL: Interpreter = Interpreter {
    language: ManagedLanguage::Perl,
    interpret: "Perl_runops_standard",
    carriers: Carriers {
        files: &["perl", "libperl"],
        prefixes: &["Perl_", "perl_", "PerlIO", "S_", "XS_"],
        others: &["boot_*", "xs_init", "main"],
    },
};

/// The version of an interpreter: the last two of its three numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PerlVersion(pub(super) u8, pub(super) u8);

impl fmt::Display for PerlVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Perl 5.{}.{}", self.0, self.1)
    }
}

/// An interpreter in a file. Addresses are SVMAs.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct PerlExports {
    pub(in crate::runtime) file: InterpreterFile,
    pub(super) version: PerlVersion,
    /// The length of an interpreter.
    pub(super) interpreter_len: u16,
    /// The ways to the variable with a thread's interpreter. Empty if there is no such variable.
    pub(super) context: Vec<TlsAccess>,
    /// The variable with the first interpreter.
    pub(super) first: Option<u64>,
}

impl PerlExports {
    /// Returns whether the structures of this version are known.
    pub(in crate::runtime) fn is_supported(&self) -> bool {
        self.structures().is_ok()
    }

    /// Reads a file. `None` if it has no interpreter of Perl 5.
    pub(in crate::runtime) fn of(elf: &Elf<'_>, path: &str) -> Option<Self> {
        let names = Definitions::of(elf);
        let constant = |name: &str| Some(*elf.data(names.exported(name)?.svma)?.first()?);
        // Few files have the loop, and a look at all symbols takes long.
        let interpret = names.exported(PERL.interpret)?;
        let version = PerlVersion(constant("PL_version")?, constant("PL_subversion")?);
        if constant("PL_revision")? != 5 {
            return None;
        }
        let len = names.exported("PL_interp_size").and_then(|it| elf.data(it.svma));
        let len = len.and_then(|data| data.first_chunk());
        Some(Self {
            file: InterpreterFile::of((elf, path), version.to_string(), &PERL, Some(interpret))?,
            version,
            interpreter_len: len.map_or(0, |bytes| u16::from_le_bytes(*bytes)),
            context: ThreadLocals::of(elf).ways_to(CONTEXT),
            first: names.exported("PL_curinterp").map(|it| it.svma),
        })
    }

    /// Returns the structures of this version and the variable with the first interpreter, or why
    /// they are not known.
    pub(super) fn structures(&self) -> Result<(PerlStructures, u64), &'static str> {
        let known = structures(self.version.0).ok_or("is not supported (releases of 5.36 are)")?;
        let first =
            self.first.filter(|_| !self.context.is_empty() && !self.file.loops().is_empty());
        let first = first.ok_or("is built without threads, which is not supported")?;
        if self.interpreter_len != known.interpreter_len {
            return Err("is built with other structures than its release");
        }
        Ok((known, first))
    }
}

#[cfg(any(test, fuzzing))]
impl PerlExports {
    /// Makes an interpreter of this version whose addresses are small.
    pub(in crate::runtime) fn for_test(minor: u8) -> Self {
        let version = PerlVersion(minor, 0);
        let loops = std::iter::once(0..0x10).collect();
        Self {
            file: InterpreterFile::for_test(version.to_string(), &PERL, loops),
            version,
            interpreter_len: 3768,
            context: vec![TlsAccess::Offset(8u64.wrapping_neg())],
            first: Some(0),
        }
    }
}
