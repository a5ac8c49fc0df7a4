//! The names of an address, in owned values that outlive the parsers.

use blazesym::symbolize::{CodeInfo, InlinedFn, Sym};

use super::name::{printable, readable};

/// The names of an address.
///
/// `function`, `file` and `line` describe the physical function, the one with a frame on the stack.
/// If calls are inlined there, `line` is the line of the outermost inlined call. The line of each
/// inlined call is the place reached inside it, so the last one is the line of the instruction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The physical function, if any symbol covers the address.
    pub function: Option<Function>,
    /// Source file of the place in the physical function.
    pub file: Option<String>,
    /// Line of the place in the physical function, 0 if unknown.
    pub line: u32,
    /// Calls inlined at this address, outermost first.
    pub inlined: Vec<Inlined>,
}

/// A function with code of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Demangled name.
    pub name: String,
    /// Where it starts in the file's address space.
    pub start_svma: u64,
}

/// A call whose callee was compiled into the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inlined {
    /// Demangled name of the callee.
    pub name: String,
    /// Source file of the place reached inside the callee.
    pub file: Option<String>,
    /// Line of the place reached inside the callee, 0 if unknown.
    pub line: u32,
}

impl Resolved {
    /// Converts a symbol of blazesym, which has no name if debug information keeps the name
    /// elsewhere.
    ///
    /// Its lines and inlined calls are right even then. It has already moved each place up by one
    /// layer: `code_info` of the symbol is the call site in the physical function, that of an
    /// inlined function the place inside it.
    pub(super) fn from_symbol(symbol: &Sym<'_>) -> Self {
        let (file, line) = place(symbol.code_info.as_deref());
        let function = || Function { name: readable(&symbol.name), start_svma: symbol.addr };
        // A call whose name is in a file that is missing is none.
        let named = symbol.inlined.iter().filter(|inlined| !inlined.name.is_empty());
        Self {
            function: (!symbol.name.is_empty()).then(function),
            file,
            line,
            inlined: named.map(Inlined::from_blazesym).collect(),
        }
    }

    /// Takes what another source says, but for places that are known.
    pub(super) fn complete_with(&mut self, other: Self) {
        self.function = self.function.take().or(other.function);
        if self.file.is_none() && self.inlined.is_empty() {
            (self.file, self.line, self.inlined) = (other.file, other.line, other.inlined);
        }
    }
}

impl Inlined {
    fn from_blazesym(inlined: &InlinedFn<'_>) -> Self {
        let (file, line) = place(inlined.code_info.as_ref());
        Self { name: readable(&inlined.name), file, line }
    }
}

fn place(code_info: Option<&CodeInfo<'_>>) -> (Option<String>, u32) {
    let Some(code_info) = code_info else { return (None, 0) };
    let path = code_info.to_path();
    let file = (!path.as_os_str().is_empty()).then(|| printable(&path.to_string_lossy()));
    (file, code_info.line.unwrap_or(0))
}
