//! Source maps: where the functions and the places of a generated file of JavaScript come from.
//!
//! [`SourceMap::of`] reads a generated file, and the map that its last comment names: a file beside
//! it, or the text of the map itself. Lines count from 1 on, and so do columns, in code units of
//! UTF-16.
//!
//! # Invariants
//! - What is returned is what the map says of the place itself. A name is that of a function only
//!   if the map has one for the word in front of the function, and the word is the function's name
//!   in the generated file.
//! - Files and maps may be anything: their sizes and the lengths of texts are bounded.

mod generated;
mod mappings;

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

    /// Returns where a place comes from.
    pub fn place(&self, place: GeneratedPlace) -> Option<OriginalPlace<'_>> {
        self.mappings.last_until(place, 1)
    }

    /// Returns where a function comes from that begins at a place: at its parameters. `name` is its
    /// name in the generated file.
    pub fn function(&self, place: GeneratedPlace, name: &str) -> Option<OriginalPlace<'_>> {
        let head = self.file.head(place, name)?;
        let found = self.mappings.last_until(place, head.start)?;
        let name = head.name.and_then(|column| {
            let place = GeneratedPlace { column, ..place };
            self.mappings.last_until(place, column)?.name
        });
        Some(OriginalPlace { name, ..found })
    }
}

#[cfg(test)]
mod tests;
