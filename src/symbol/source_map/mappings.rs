//! The mappings of a source map.

use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use oxc_sourcemap::{SourceMap, Token};

use super::generated::read_text;
use super::{GeneratedPlace, OriginalPlace};
use crate::text::printable;

/// How the address of a map begins that is the map itself.
const DATA: &str = "data:application/json";
/// How the text of such a map is encoded.
const BASE64: &str = "base64";

/// Longest paths of all sources together, in bytes, and what one takes besides.
const SOURCES_MAX: usize = 16 << 20;
const ENTRY_LEN: usize = 64;

/// The mappings of a generated file.
#[derive(Debug)]
pub(super) struct Mappings {
    /// By the place in the generated file.
    tokens: Vec<Token>,
    names: Vec<String>,
    /// The paths of the original files.
    sources: Vec<String>,
}

impl Mappings {
    /// Reads the map that a generated file names, and returns when it was changed last.
    pub(super) fn read(generated: &Path, url: &str) -> Result<(Self, Option<SystemTime>), String> {
        if let Some(data) = url.strip_prefix(DATA) {
            let (text, path) = (inline(data)?, generated);
            return Self::of(&text, path)
                .map(|it| (it, None))
                .map_err(|what| format!("its source map: {what}"));
        }
        let path = match url.strip_prefix("file://") {
            Some(path) => PathBuf::from(path),
            None if url.contains("://") => {
                return Err(format!("its source map is not a file: {}", printable(url)));
            }
            None => generated.parent().unwrap_or(generated).join(url),
        };
        let named = |what: String| format!("its source map {}: {what}", path.display());
        let (text, changed) = read_text(&path).map_err(named)?;
        Ok((Self::of(&text, &path).map_err(named)?, changed))
    }

    /// Reads the text of a map. `path` is where it is.
    pub(super) fn of(text: &str, path: &Path) -> Result<Self, String> {
        // What keeps browsers from running the text.
        let text = match text.strip_prefix(")]}'") {
            Some(rest) => rest.split_once('\n').map_or("", |(_, rest)| rest),
            None => text,
        };
        let map = SourceMap::from_json_string(text).map_err(|error| error.to_string())?;
        let place = |token: &Token| (token.get_dst_line(), token.get_dst_col());
        let mut tokens: Vec<Token> = map.get_tokens().collect();
        // The last one of several at one place counts.
        tokens.sort_by_key(place);
        let root = map.get_source_root().unwrap_or_default();
        let own = map.get_sources().map(|source| source.len() + root.len() + ENTRY_LEN);
        if own.sum::<usize>() > SOURCES_MAX {
            return Err("its sources are too many, or too long".to_owned());
        }
        let sources = map.get_sources().map(|source| path_of(path, root, source));
        Ok(Self {
            names: map.get_names().map(printable).collect(),
            sources: sources.collect(),
            tokens,
        })
    }

    pub(super) fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Returns what the last mapping says that is at or before a place, in its line and not before
    /// a column.
    pub(super) fn last_until(
        &self,
        GeneratedPlace { line, column }: GeneratedPlace,
        first_column: u32,
    ) -> Option<OriginalPlace<'_>> {
        let (line, column) = (line.checked_sub(1)?, column.checked_sub(1)?);
        let place = |token: &Token| (token.get_dst_line(), token.get_dst_col());
        let after = self.tokens.partition_point(|token| place(token) <= (line, column));
        let token = self.tokens.get(after.checked_sub(1)?)?;
        let is_there =
            token.get_dst_line() == line && token.get_dst_col() >= first_column.checked_sub(1)?;
        let source = token.get_source_id().filter(|_| is_there)?;
        let name = token.get_name_id().and_then(|id| self.names.get(id as usize));
        Some(OriginalPlace {
            file: self.sources.get(source as usize)?,
            line: token.get_src_line().checked_add(1)?,
            column: token.get_src_col().checked_add(1)?,
            name: name.map(String::as_str).filter(|name| !name.is_empty()),
        })
    }
}

fn inline(data: &str) -> Result<String, String> {
    let (parameters, text) = data.split_once(',').unwrap_or((data, ""));
    if parameters.split(';').next_back() != Some(BASE64) {
        return Err("its source map is in no known encoding".to_owned());
    }
    let bytes = STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text));
    let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| "its source map is not base64".to_owned())
}

/// Returns the path of an original file. Its address if it has another one.
fn path_of(map: &Path, root: &str, source: &str) -> String {
    let separator = if root.is_empty() || root.ends_with('/') { "" } else { "/" };
    let whole = format!("{root}{separator}{source}");
    let source = if source.starts_with('/') || source.contains("://") { source } else { &whole };
    let source = source.strip_prefix("file://").unwrap_or(source);
    if source.contains("://") {
        return printable(source);
    }
    let mut path = PathBuf::new();
    for part in map.parent().unwrap_or(map).join(source).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    printable(&path.to_string_lossy())
}
