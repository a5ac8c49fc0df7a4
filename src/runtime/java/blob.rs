//! Blobs: the pieces of code in the heaps of a machine.

use std::ops::Range;

use super::layout::{BlobLayout, CompiledLayout, MachineLayout, Place};
use crate::runtime::pages::TargetPages;
use crate::text::printable;

/// Maximum length of the name of a blob.
const NAME_MAX: usize = 256;
/// Parts of the names of buffers in which compilers put code together.
const WORKSPACES: [&str; 2] = ["temporary CodeBuffer", "cratch_buffer"];
/// Longest code of a blob in bytes.
const CODE_MAX: u64 = 2 << 20;
/// Maximum number of words of a frame.
const FRAME_WORDS_MAX: u64 = 1 << 20;

/// A blob of code. Addresses are AVMAs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeBlob {
    /// Where its description starts.
    pub start: u64,
    /// Its code.
    pub code: Range<u64>,
    /// What it is for.
    pub kind: BlobKind,
    /// The machine's name of it.
    pub name: String,
    /// Number of words of its frames, with the return address. 0 if it has none, or frames of
    /// different sizes.
    pub frame_words: u32,
    /// Where a frame is complete, if the blob has frames of its own.
    pub frame_complete: Option<u64>,
    /// The method that it was compiled from.
    pub compiled: Option<CompiledIdentity>,
}

/// What a blob of code is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlobKind {
    /// A method that was compiled.
    Compiled,
    /// The call of a native method.
    NativeWrapper,
    /// The interpreter.
    Interpreter,
    /// Calls between interpreted and compiled methods.
    Adapter,
    /// Calls by tables of classes and interfaces.
    TableStub,
    /// Where a compiler puts code together. Nothing runs there.
    Workspace,
    /// Everything else: calls of the machine, copies, ways back to the interpreter.
    Stub,
}

/// A compiled method, as its blob describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompiledIdentity {
    /// The address of the method's structure.
    pub method: u64,
    /// The number of the compilation. No other compilation of the machine has it.
    pub compile_id: u32,
    /// The level: 1 to 3 for the first compiler, 4 for the second, 0 for a native wrapper.
    pub level: u8,
    /// Whether the code starts in a loop of the method (on-stack replacement).
    pub is_osr: bool,
    /// Where frames return to that the machine is to turn into interpreted ones.
    pub deopt_handlers: [Option<u64>; 2],
}

impl Place {
    /// Returns the position in memory that a structure at this address stores.
    pub(super) fn resolve(self, pages: &TargetPages<'_>, start: u64) -> Option<u64> {
        match self {
            Self::Pointer(field) => field.read(pages, start),
            Self::Offset(field) => start.checked_add(field.count(pages, start)?),
        }
    }
}

impl CodeBlob {
    /// Reads the blob in this block. `None` if there is no possible one.
    pub(super) fn read(
        layout: &MachineLayout,
        block: &Range<u64>,
        pages: &TargetPages<'_>,
    ) -> Option<Self> {
        let start = block.start;
        let BlobLayout { name, len, code_start, code_end, frame_size, frame_complete } =
            layout.blob;
        let end = start.checked_add(len.count(pages, start)?)?;
        let code = code_start.resolve(pages, start)?..code_end.resolve(pages, start)?;
        if !(start <= code.start && code.start <= code.end && code.end <= end && end <= block.end) {
            return None;
        }
        let name = pages.text(name.read(pages, start)?, NAME_MAX)?;
        let kind = BlobKind::of(&name);
        let frame_words = frame_size.count(pages, start).filter(|words| *words <= FRAME_WORDS_MAX);
        let frame_complete = frame_complete.count(pages, start);
        let frame_complete = frame_complete.and_then(|offset| code.start.checked_add(offset));
        let compiled = match kind {
            BlobKind::Compiled | BlobKind::NativeWrapper => {
                Some(CompiledIdentity::read(&layout.compiled, start, pages)?)
            }
            _ => None,
        };
        Some(Self {
            start,
            kind,
            name: printable(&name),
            frame_words: frame_words.unwrap_or(0) as u32,
            frame_complete: frame_complete.filter(|it| code.contains(it)),
            code,
            compiled,
        })
    }
}

impl CodeBlob {
    /// Reads the code.
    pub(super) fn bytes(&self, pages: &TargetPages<'_>) -> Option<Vec<u8>> {
        let len = self.code.end.checked_sub(self.code.start).filter(|len| *len <= CODE_MAX)?;
        pages.bytes(self.code.start, len as usize)
    }

    /// Whether what was read of a blob at one time and of one at another is of the same blob. No
    /// two compilations of a machine have one number.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let names = |blob: &Self| (blob.start, blob.kind, blob.compiled);
        names(self) == names(other) && self.name == other.name
    }
}

impl BlobKind {
    fn of(name: &str) -> Self {
        match name {
            "nmethod" => Self::Compiled,
            "native nmethod" => Self::NativeWrapper,
            "Interpreter" => Self::Interpreter,
            "I2C/C2I adapters" => Self::Adapter,
            "vtable chunks" => Self::TableStub,
            _ if WORKSPACES.iter().any(|part| name.contains(part)) => Self::Workspace,
            _ => Self::Stub,
        }
    }
}

impl CompiledIdentity {
    pub(super) fn read(
        layout: &CompiledLayout,
        start: u64,
        pages: &TargetPages<'_>,
    ) -> Option<Self> {
        let handler = |place: Place| place.resolve(pages, start).filter(|it| *it != 0);
        Some(Self {
            method: layout.method.pointer(pages, start)?,
            compile_id: layout.compile_id.read(pages, start)? as u32,
            level: layout.level.read(pages, start)? as u8,
            is_osr: layout.entry_bci.read(pages, start)? as i64 >= 0,
            deopt_handlers: layout.deopt_handlers.map(handler),
        })
    }

    /// Returns whether a frame that returns to this address is to become interpreted.
    pub fn is_deopt_handler(&self, avma: u64) -> bool {
        self.deopt_handlers.contains(&Some(avma))
    }
}
