//! A function of a runtime, with all that the positions in it need.

use super::lua::CodeLines;
use super::python::LineTable;
use super::ruby::InstructionLines;

/// What a code object says about its function. Positions in it need no further read of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The qualified name, or the plain name where the runtime has no other (Python before 3.11).
    pub name: String,
    /// The path of the source file, as the runtime has it. Empty for a function that the runtime
    /// has written in another language.
    pub file: String,
    /// The line on which the function starts, 0 if it is unknown.
    pub line: u32,
    /// Whether the runtime inserted the function itself: no source code has it, and Python's own
    /// tracebacks do not show it.
    pub is_pseudo: bool,
    pub(super) lines: PositionKind,
}

/// What the positions of frames in a function are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PositionKind {
    /// Offsets in the code, which have their lines in a table.
    Table(LineTable),
    /// Lines.
    Positions,
    /// Of a file that is not known.
    Unknown,
    /// Indices of instruction words.
    Instructions(InstructionLines),
    /// Numbers of instructions.
    Code(CodeLines),
}

impl Function {
    /// Returns the path of the source file, if the function is written in the language.
    pub fn source_file(&self) -> Option<&str> {
        Some(self.file.as_str()).filter(|file| !file.is_empty())
    }

    /// Returns the bytes of memory that the function takes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.len() + self.table_len()
    }

    /// Returns the line of a frame's position, 0 if it is unknown.
    pub fn line_at(&self, position: u32) -> u32 {
        match &self.lines {
            PositionKind::Table(table) => table.line_at(self.line, position),
            PositionKind::Positions => position,
            PositionKind::Unknown => 0,
            PositionKind::Instructions(lines) => lines.line_at(position),
            PositionKind::Code(lines) => lines.line_at(position),
        }
    }

    fn table_len(&self) -> usize {
        match &self.lines {
            PositionKind::Table(table) => table.bytes.len(),
            PositionKind::Positions | PositionKind::Unknown => 0,
            PositionKind::Instructions(lines) => lines.bytes(),
            PositionKind::Code(lines) => lines.bytes(),
        }
    }
}

/// Reads a function whose object has the cookie of the capture before and afterwards. `cookie`
/// returns what the object has now; `None` if it is no object of a function.
pub(super) fn read_unchanged(
    captured: u32,
    cookie: impl Fn() -> Result<Option<u32>, Gone>,
    read: impl FnOnce() -> Result<Function, Gone>,
) -> Result<Function, Gone> {
    if cookie()? != Some(captured) {
        return Err(Gone::Replaced);
    }
    let function = read();
    if cookie() == Ok(Some(captured)) { function } else { Err(Gone::Changing) }
}

/// The reason why a captured frame has no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gone {
    /// The object is unreadable.
    Unreadable,
    /// The object is no code object any more.
    OtherType,
    /// Another code object has taken the address.
    OtherCode,
    /// The object is free, and its memory not reused yet.
    Freed,
    /// The name is no readable string.
    Name,
    /// The file name is no readable string.
    File,
    /// The line table is not readable, or of an impossible length.
    LineTable,
    /// The object changed while it was read.
    Changing,
    /// Another object may have been at the address when the frame was captured.
    Unproven,
    /// The function is not at the address now, but may be there again: the cookie is that of its
    /// names, which a program may compile again and again.
    Replaced,
    /// There was no object: the runtime was about to link a frame.
    Unlinked,
}

impl Gone {
    /// Whether a later read may succeed.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Unreadable | Self::Changing | Self::Replaced)
    }

    /// All reasons.
    pub const ALL: [Self; 11] = [
        Self::Unreadable,
        Self::OtherType,
        Self::OtherCode,
        Self::Freed,
        Self::Name,
        Self::File,
        Self::LineTable,
        Self::Changing,
        Self::Unproven,
        Self::Replaced,
        Self::Unlinked,
    ];

    /// Returns the reason as a report names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::OtherType => "no code object any more",
            Self::OtherCode => "another code object at the address",
            Self::Freed => "freed",
            Self::Name => "no readable name",
            Self::File => "no readable file name",
            Self::LineTable => "no readable line table",
            Self::Changing => "changed while it was read",
            Self::Unproven => "may have been replaced since",
            Self::Replaced => "replaced",
            Self::Unlinked => "not linked at that moment",
        }
    }
}
