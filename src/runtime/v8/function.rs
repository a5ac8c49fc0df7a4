//! The functions of frames.

use super::positions::at_or_before;
use super::script::SourcePlace;
use crate::runtime::Witness;

/// The name of what stands for code of regular expressions.
const REGEXP: &str = "(regular expression)";

/// A function of a script. Positions in it need no further read of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsFunction {
    /// The name, or what the engine has made up from the source if it has none.
    pub name: String,
    /// The path of the file, or the name of the script. Empty for the engine's own functions.
    pub file: String,
    /// The line on which the function starts, 0 if it is unknown.
    pub line: u32,
    /// The column there, as in [`SourcePlace`].
    pub column: u32,
    /// The address (AVMA) of what all functions from this source share.
    pub shared: u64,
    /// Its cookie.
    pub cookie: u32,
    /// Offsets in the bytecodes as frames have them, and the place from each on.
    pub(super) places: Vec<(u32, SourcePlace)>,
    /// Whether it is one of the engine itself, without a source.
    pub is_builtin: bool,
    /// The address of the bytecodes, 0 if there are none.
    pub(super) bytecodes: u64,
    /// What the name and the file were read from.
    pub(super) witness: Witness,
}

impl JsFunction {
    /// Returns the place of a bytecode, given by the offset in the frame.
    pub fn place_at(&self, offset: u32) -> SourcePlace {
        at_or_before(&self.places, offset).unwrap_or_default()
    }

    /// Returns whether another function has the same name and place in the same source.
    pub fn has_source_of(&self, other: &Self) -> bool {
        let place = |it: &Self| (it.line, it.column, it.cookie);
        (&self.name, &self.file, place(self)) == (&other.name, &other.file, place(other))
    }

    /// Returns what stands for the code that the engine makes of regular expressions.
    pub(super) fn of_regexps() -> Self {
        Self {
            name: REGEXP.to_owned(),
            file: String::new(),
            line: 0,
            column: 0,
            shared: 0,
            cookie: 0,
            places: Vec::new(),
            is_builtin: true,
            bytecodes: 0,
            witness: Witness::default(),
        }
    }

    /// Returns what says that the same function is there: as long as it is the same, so are the
    /// name and the file.
    pub fn witness(&self) -> &Witness {
        &self.witness
    }

    /// Returns the bytes of memory that the function takes.
    pub fn bytes(&self) -> usize {
        let places = self.places.len() * size_of::<(u32, SourcePlace)>();
        size_of::<Self>() + self.name.len() + self.file.len() + places + self.witness.bytes()
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_last_entry() {
        let function = JsFunction {
            name: "f".to_owned(),
            file: "a.js".to_owned(),
            line: 1,
            column: 1,
            shared: 0x1000,
            cookie: 7,
            places: [(53, 2), (60, 4)]
                .map(|(at, line)| (at, SourcePlace { line, column: 9 }))
                .into(),
            is_builtin: false,
            bytecodes: 0,
            witness: Witness::default(),
        };
        let lines = [0, 52, 53, 59, 60, u32::MAX].map(|offset| function.place_at(offset).line);
        assert_eq!(lines, [0, 0, 2, 2, 4, 4]);
        assert!(function.bytes() > size_of::<JsFunction>());
    }
}
