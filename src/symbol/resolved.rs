//! The names of an address, as owned values that outlive the parsers.

use blazesym::symbolize::{CodeInfo, InlinedFn, Sym};

use super::name::readable;
use crate::text::printable;

/// The names of an address.
///
/// `function`, `file` and `line` describe the physical function, which has a frame on the stack. If
/// calls are inlined at the address, `line` is the line of the outermost inlined call. The line of
/// each inlined call is the position inside it, so the last one is the line of the instruction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The physical function, if any symbol covers the address.
    pub function: Option<ResolvedFunction>,
    /// The source file of the position in the physical function.
    pub file: Option<String>,
    /// The line of the position in the physical function, 0 if unknown.
    pub line: u32,
    /// Calls inlined at this address, outermost first.
    pub inlined: Vec<Inlined>,
}

/// A function that has code of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedFunction {
    /// Demangled name.
    pub name: String,
    /// The start address in the file's address space.
    pub start_svma: u64,
}

/// A call whose callee was compiled into the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inlined {
    /// Demangled name of the callee.
    pub name: String,
    /// The source file of the position inside the callee.
    pub file: Option<String>,
    /// The line of the position inside the callee, 0 if unknown.
    pub line: u32,
}

impl Resolved {
    /// Converts a symbol of blazesym. It has no name if the debug information keeps the name in
    /// another file.
    ///
    /// Lines and inlined calls are right even then. blazesym has already moved each position up by
    /// one level: `code_info` of the symbol is the call site in the physical function, and
    /// `code_info` of an inlined function is the position inside it.
    pub(super) fn from_symbol(symbol: &Sym<'_>) -> Self {
        let (file, line) = position(symbol.code_info.as_deref());
        let function =
            || ResolvedFunction { name: readable(&symbol.name), start_svma: symbol.addr };
        // A call whose name is in a missing file is dropped.
        let named = symbol.inlined.iter().filter(|inlined| !inlined.name.is_empty());
        Self {
            function: (!symbol.name.is_empty()).then(function),
            file,
            line,
            inlined: named.map(Inlined::from_blazesym).collect(),
        }
    }

    /// Fills in names from another source, but keeps known positions.
    pub(super) fn complete_with(&mut self, other: Self) {
        self.function = self.function.take().or(other.function);
        if self.file.is_none() && self.inlined.is_empty() {
            (self.file, self.line, self.inlined) = (other.file, other.line, other.inlined);
        }
    }
}

impl Inlined {
    fn from_blazesym(inlined: &InlinedFn<'_>) -> Self {
        let (file, line) = position(inlined.code_info.as_ref());
        Self { name: readable(&inlined.name), file, line }
    }
}

fn position(code_info: Option<&CodeInfo<'_>>) -> (Option<String>, u32) {
    let Some(code_info) = code_info else { return (None, 0) };
    let path = code_info.to_path();
    let file = (!path.as_os_str().is_empty()).then(|| printable(&path.to_string_lossy()));
    (file, code_info.line.unwrap_or(0))
}
