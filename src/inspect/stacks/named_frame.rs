//! A function on a stack, with its names.

use crate::trace::FrameKind;

/// A function on a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFrame {
    /// The pc (AVMA): where it runs, or where a call returns to. `None` for a managed frame.
    pub avma: Option<u64>,
    /// The name of the function.
    pub function: String,
    /// The module's path as the target sees it and the SVMA in it, for code of a file.
    pub module: Option<(String, u64)>,
    /// The source file and line; the line is 0 if unknown.
    pub source: Option<(String, u32)>,
    /// The kind of code that it runs.
    pub kind: FrameKind,
    /// Whether it has no frame of its own, being inlined into the next function.
    pub inlined: bool,
    /// Whether it may be from a later time than the frames before it.
    pub late: bool,
}
