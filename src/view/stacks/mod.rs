//! Single stacks of a trace: those of all threads at one time, and those of call traces by their
//! ids.

pub mod by_id;
pub mod instant;
mod stack_text;

use crate::view::text::text_style::TextStyle;

/// How stacks are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StackOptions {
    /// Whether to show where in the code each function is.
    pub verbose: bool,
    /// Whether to write one JSON object.
    pub json: bool,
    /// The style of the text.
    pub style: TextStyle,
}
