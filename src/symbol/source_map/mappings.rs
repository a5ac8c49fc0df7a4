//! The mappings of a source map.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::address::{MapAddress, source_path};
use super::generated::read_text;
use super::segments::{MapSegment, segments};
use super::{GeneratedPlace, OriginalPlace};
use crate::text::{printable, quotable};

/// The version of the format.
const VERSION: u32 = 3;
/// Longest names of a map together, or its sources with their root, in bytes, and what one takes
/// besides.
const TEXTS_MAX: usize = 64 << 20;
const ENTRY_LEN: usize = 64;

/// The mappings of a generated file.
#[derive(Debug)]
pub(super) struct Mappings {
    /// By the place in the generated file.
    segments: Vec<MapSegment>,
    names: Vec<Option<String>>,
    /// The paths of the original files. `None` for one that the map does not tell.
    sources: Vec<Option<String>>,
}

/// A map as it is written. What else it has, such as the texts of the sources, is not kept.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MapFile<'t> {
    version: u32,
    #[serde(borrow)]
    mappings: Cow<'t, str>,
    source_root: Option<String>,
    sources: TextList,
    #[serde(default)]
    names: TextList,
}

/// A list of texts of a bounded length.
#[derive(Default)]
struct TextList(Vec<Option<String>>);

impl<'de> Deserialize<'de> for TextList {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(TextListVisitor)
    }
}

struct TextListVisitor;

impl<'de> Visitor<'de> for TextListVisitor {
    type Value = TextList;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a list of texts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<TextList, A::Error> {
        let mut texts = Vec::new();
        let mut room = TEXTS_MAX;
        while let Some(text) = from.next_element::<Option<String>>()? {
            let taken = ENTRY_LEN + text.as_deref().map_or(0, str::len);
            let left = room.checked_sub(taken);
            room = left.ok_or_else(|| A::Error::custom(too_many("its names or sources")))?;
            texts.push(text);
        }
        Ok(TextList(texts))
    }
}

fn too_many(what: &str) -> String {
    format!("{what} take more than {} MiB", TEXTS_MAX >> 20)
}

impl Mappings {
    /// Reads the map that a generated file names, and returns when it was changed last.
    pub(super) fn read(generated: &Path, url: &str) -> Result<(Self, Option<SystemTime>), String> {
        let paths = match MapAddress::of(generated, url)? {
            MapAddress::At(paths) => paths,
            MapAddress::Inline(text) => {
                let map = Self::of(&text, generated);
                return map.map(|it| (it, None)).map_err(|what| format!("its source map: {what}"));
            }
        };
        let mut error = String::new();
        for path in &paths {
            let named = |what: String| {
                format!("its source map {}: {what}", quotable(&path.to_string_lossy()))
            };
            match read_text(path) {
                Ok((text, changed)) => return Ok((Self::of(&text, path).map_err(named)?, changed)),
                Err(what) if what.kind() == io::ErrorKind::NotFound => {
                    error = named(what.to_string());
                }
                Err(what) => return Err(named(what.to_string())),
            }
        }
        Err(error)
    }

    /// Reads the text of a map. `path` is where it is.
    pub(super) fn of(text: &str, path: &Path) -> Result<Self, String> {
        // What keeps browsers from running the text.
        let text = match text.strip_prefix(")]}'") {
            Some(rest) => rest.split_once('\n').map_or("", |(_, rest)| rest),
            None => text,
        };
        let map: MapFile<'_> =
            serde_json::from_str(text).map_err(|error| quotable(&error.to_string()))?;
        if map.version != VERSION {
            return Err(format!("its version is {}, not {VERSION}", map.version));
        }
        let (TextList(sources), TextList(names)) = (map.sources, map.names);
        let segments = segments(&map.mappings, sources.len(), names.len())?;
        let root = map.source_root.unwrap_or_default();
        let before = path.as_os_str().len().saturating_add(root.len());
        if before.saturating_mul(sources.len()) > TEXTS_MAX {
            return Err(too_many("its sources"));
        }
        let path_of = |source: String| source_path(path, &root, &source);
        let sources = sources.into_iter().map(|source| source.map(path_of));
        let is_name = |name: &String| !name.is_empty();
        let names = names.into_iter().map(|it| it.filter(is_name).map(|name| printable(&name)));
        Ok(Self { segments, names: names.collect(), sources: sources.collect() })
    }

    pub(super) fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Returns the last segment that is at or before a place, in its line and not before a column.
    pub(super) fn last_until(
        &self,
        GeneratedPlace { line, column }: GeneratedPlace,
        first_column: u32,
    ) -> Option<&MapSegment> {
        let (line, column) = (line.checked_sub(1)?, column.checked_sub(1)?);
        let after = self.segments.partition_point(|it| (it.line, it.column) <= (line, column));
        let segment = self.segments.get(after.checked_sub(1)?)?;
        let is_there = segment.line == line && segment.column >= first_column.checked_sub(1)?;
        is_there.then_some(segment)
    }

    /// Returns what a segment says.
    pub(super) fn original(&self, segment: &MapSegment) -> Option<OriginalPlace<'_>> {
        Some(OriginalPlace {
            file: self.sources.get(segment.source as usize)?.as_deref()?,
            line: segment.original_line.checked_add(1)?,
            column: segment.original_column.checked_add(1)?,
            name: self.names.get(segment.name as usize).and_then(Option::as_deref),
        })
    }
}
