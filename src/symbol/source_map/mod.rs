//! Source maps: where the functions and the places of a generated file of JavaScript come from.
//!
//! [`SourceMap::of`] reads a generated file, and the map that its last comment names: a file beside
//! it, or the text of the map itself. Lines count from 1 on, and so do columns, in code units of
//! UTF-16.
//!
//! # Invariants
//! - What is returned is what the map says of the place itself, or of one before it in the same
//!   line. Such a place is in the function's file, and not in front of the function.
//! - A name is that of a function only if the map has one for the word in front of the function,
//!   and the word is the function's name in the generated file.
//! - Files and maps may be anything: their sizes, the lengths of texts and the number of mappings
//!   are bounded.

mod address;
mod generated;
mod mappings;
mod segments;

use std::path::Path;
use std::time::SystemTime;

use self::generated::GeneratedFile;
use self::mappings::Mappings;

/// The place of a function, or in one, in a generated file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeneratedPlace {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// A place in an original file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginalPlace<'m> {
    /// The path of the file, or its address.
    pub file: &'m str,
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
    /// The name of a function, if the map tells it.
    pub name: Option<&'m str>,
}

/// A generated file with its map.
#[derive(Debug)]
pub struct SourceMap {
    file: GeneratedFile,
    mappings: Mappings,
    /// When one of the files was changed last, if that is known.
    pub changed: Option<SystemTime>,
}

impl SourceMap {
    /// Reads a generated file and its map.
    ///
    /// # Errors
    /// What is wrong with one of them, for people.
    pub fn of(path: &Path) -> Result<Self, String> {
        let file = GeneratedFile::read(path)?;
        let (mappings, changed) = Mappings::read(path, &file.map_url)?;
        Ok(Self { changed: changed.max(file.changed), file, mappings })
    }

    /// Returns whether the generated file has such a place.
    pub fn has(&self, place: GeneratedPlace) -> bool {
        self.file.before(place).is_some()
    }

    /// Returns the number of original files.
    pub fn sources(&self) -> usize {
        self.mappings.sources()
    }

    /// Returns where a place in a function comes from. The function begins at its parameters, and
    /// has this name in the generated file; `None` if nothing is known of it, or if it is the code
    /// outside of all functions.
    ///
    /// A map may say nothing of a function, or of the rest of one. So a mapping in front of the
    /// function does not count. One in front of the place counts only if it is of the function's
    /// file. If the function is not known, no block may have ended behind the mapping.
    pub fn place(
        &self,
        place: GeneratedPlace,
        function: Option<(GeneratedPlace, &str)>,
    ) -> Option<OriginalPlace<'_>> {
        let first_column = match function {
            Some((begin, _)) if begin.line > place.line => return None,
            Some((begin, name)) if begin.line == place.line => self.file.head(begin, name)?.start,
            _ => 1,
        };
        let segment = self.mappings.last_until(place, first_column)?;
        let found = self.mappings.original(segment)?;
        let column = segment.column.saturating_add(1);
        let is_of_place = match function {
            _ if column == place.column => true,
            Some((begin, name)) => {
                self.function(begin, name).is_some_and(|own| own.file == found.file)
            }
            None => !self.file.ends_block(column, place),
        };
        is_of_place.then_some(found)
    }

    /// Returns where a function comes from that begins at a place: at its parameters. `name` is its
    /// name in the generated file.
    pub fn function(&self, place: GeneratedPlace, name: &str) -> Option<OriginalPlace<'_>> {
        let head = self.file.head(place, name)?;
        let found = self.mappings.original(self.mappings.last_until(place, head.start)?)?;
        let name = head.name.and_then(|column| {
            let place = GeneratedPlace { column, ..place };
            self.mappings.original(self.mappings.last_until(place, column)?)?.name
        });
        Some(OriginalPlace { name, ..found })
    }
}

#[cfg(test)]
mod tests;
