//! The file that has an interpreter: what it says, whatever the language.

use std::ops::Range;

use super::carriers::Carriers;
use super::loops::loops;
use super::{ManagedLanguage, Names, Runtime, Unsupported};
use crate::elf::{Definition, Elf};
use traceprof_abi::runtime::RuntimeBlock;

/// An interpreter in a file. Addresses are SVMAs.
#[derive(Debug, Clone)]
pub(super) struct InterpreterFile {
    path: String,
    /// The interpreter with its version, such as `Python 3.11.2`.
    label: String,
    known: &'static Interpreter,
    loops: Vec<Range<u64>>,
    code: Range<u64>,
}

/// What all versions of an interpreter have in common.
#[derive(Debug)]
pub(super) struct Interpreter {
    pub(super) language: ManagedLanguage,
    /// The function that interprets code, and the beginning of the names of its parts.
    pub(super) interpret: &'static str,
    /// Its own functions.
    pub(super) carriers: Carriers,
}

impl InterpreterFile {
    /// Reads the file at a path. `interpret` is the function that interprets code, if the file
    /// exports it. `None` if the file has no code.
    pub(super) fn of(
        (elf, path): (&Elf<'_>, &str),
        label: String,
        known: &'static Interpreter,
        interpret: Option<Definition>,
    ) -> Option<Self> {
        Some(Self {
            path: path.to_owned(),
            label,
            known,
            loops: interpret.map(|it| loops(elf, known.interpret, it)).unwrap_or_default(),
            code: elf.code_range()?,
        })
    }

    /// Returns the file with this code as the loop. Hand-written code has no parts elsewhere.
    pub(super) fn with_loop(self, code: Option<Range<u64>>) -> Self {
        Self { loops: code.into_iter().collect(), ..self }
    }

    /// Returns the language of its functions.
    pub(super) fn language(&self) -> ManagedLanguage {
        self.known.language
    }

    /// Returns the parts of the loop that interprets code, first that in which it starts. Empty if
    /// it was not found.
    pub(super) fn loops(&self) -> &[Range<u64>] {
        &self.loops
    }

    /// Returns whether a function of this file only carries managed frames: it has this name, or
    /// none.
    pub(super) fn is_carrier(&self, function: Option<&str>) -> bool {
        self.known.carriers.has(&self.path, function)
    }

    /// Returns why the interpreter's frames are not read.
    pub(super) fn refused(&self, reason: &str) -> Unsupported {
        let (path, label, language) = (&self.path, &self.label, self.language().name());
        let text = format!(
            "{path}: {label} {reason}, so its functions have no names: see {language} in \
             traceprof-runtimes(7)"
        );
        Unsupported { text, may_be_starting: false }
    }

    /// Returns the interpreter in a process that has loaded the file with this bias.
    pub(super) fn runtime(&self, bias: u64, block: RuntimeBlock, names: Names) -> Runtime {
        Runtime {
            block,
            label: self.label.clone(),
            language: self.language(),
            loops: self.loops.iter().map(|part| biased(part, bias)).collect(),
            code: biased(&self.code, bias),
            locks: Vec::new(),
            names,
        }
    }
}

#[cfg(any(test, fuzzing))]
impl InterpreterFile {
    /// Makes a file whose addresses are small.
    pub(super) fn for_test(
        label: String,
        known: &'static Interpreter,
        loops: Vec<Range<u64>>,
    ) -> Self {
        let library = known.carriers.files.last().copied().unwrap_or_default();
        Self { path: library.to_owned(), label, known, loops, code: 0..0x1000 }
    }
}

/// Returns a range of SVMAs as one of AVMAs.
pub(super) fn biased(range: &Range<u64>, bias: u64) -> Range<u64> {
    range.start.wrapping_add(bias)..range.end.wrapping_add(bias)
}
