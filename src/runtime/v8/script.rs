//! Scripts: the names of their files, and the lines of positions in their source texts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::heap::{HeapReader, small};
use super::strings::{FlatText, code_units, flat_text, is_text, text, text_len};
use crate::text::file_url::path_of;

/// Maximum number of characters of a source text.
const SOURCE_MAX: u32 = 64 << 20;
/// Maximum number of lines.
const LINES_MAX: usize = 1 << 21;
/// Number of bytes of the source that are read at once.
const CHUNK: usize = 256 << 10;
/// Maximum number of bytes of the lines of all scripts that are kept.
const KEPT_MAX: usize = 32 << 20;
/// Characters that end lines.
const LINE_FEED: u16 = 0x0a;
const CARRIAGE_RETURN: u16 = 0x0d;
const SEPARATORS: [u16; 2] = [0x2028, 0x2029];

/// A place in a source text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SourcePlace {
    /// The line, 0 if it is unknown.
    pub line: u32,
    /// The column, from 1 on in code units of UTF-16. 0 if it is unknown, or if the script names no
    /// source map: without one, nobody needs it.
    pub column: u32,
}

/// Where the lines of a source text end, in characters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LineEnds {
    ends: Vec<u32>,
    /// The number of lines in front of the first one.
    before: u32,
    /// Whether the script names a source map.
    has_map: bool,
}

impl LineEnds {
    /// Returns the line of a character, 0 if it is unknown.
    pub(super) fn line_at(&self, offset: u32) -> u32 {
        if self.ends.is_empty() {
            return 0;
        }
        let index = self.ends.partition_point(|end| *end < offset);
        u32::try_from(index).map_or(0, |index| index.saturating_add(1).saturating_add(self.before))
    }

    /// Returns the place of a character.
    pub(super) fn place_at(&self, offset: u32) -> SourcePlace {
        let line = self.line_at(offset);
        if line == 0 || !self.has_map {
            return SourcePlace { line, column: 0 };
        }
        let index = self.ends.partition_point(|end| *end < offset);
        let last = index.checked_sub(1).and_then(|index| self.ends.get(index));
        let start = last.map_or(0, |end| end.saturating_add(1));
        SourcePlace { line, column: offset.saturating_sub(start).saturating_add(1) }
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.ends.len() * size_of::<u32>()
    }
}

/// What tells a script from others: its address, its number, and its source text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ScriptKey {
    script: u64,
    id: u32,
    source: u64,
    line_ends: u64,
}

/// The lines of scripts that were read.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownLines(Arc<Mutex<LineMap>>);

#[derive(Debug, Default)]
struct LineMap {
    lines: HashMap<ScriptKey, Arc<LineEnds>>,
    bytes: usize,
}

impl KnownLines {
    fn get(&self, key: &ScriptKey) -> Option<Arc<LineEnds>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).lines.get(key).cloned()
    }

    fn keep(&self, key: ScriptKey, lines: &Arc<LineEnds>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = lines.bytes();
        if known.bytes.saturating_add(bytes) > KEPT_MAX {
            *known = LineMap::default();
        }
        if bytes <= KEPT_MAX && known.lines.insert(key, Arc::clone(lines)).is_none() {
            known.bytes += bytes;
        }
    }
}

/// The name of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ScriptName {
    /// That of a file, or another one that the program has given it.
    Given(String),
    /// It has none: this function evaluated it (its address), at this position.
    Evaluated(u64, i32),
    /// It has none.
    None,
}

/// Returns the name of a script.
pub(super) fn script_name(heap: &HeapReader<'_>, script: u64) -> Option<ScriptName> {
    let fields = heap.layout.script;
    let given = |offset| {
        let word = heap.word(script, offset)?;
        is_text(heap, word).then(|| text(heap, word))?
    };
    // A script that says where it comes from is called so by the engine, too.
    let name = given(fields.source_url).or_else(|| given(fields.name));
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        return Some(ScriptName::Given(path_of(&name)));
    }
    let origin = heap.object(script, fields.eval_shared);
    let Some(shared) = origin.filter(|it| heap.is(*it, heap.layout.types.shared)) else {
        return Some(ScriptName::None);
    };
    let position = heap.word(script, fields.eval_position)?;
    Some(ScriptName::Evaluated(shared, (position >> 32) as i32))
}

/// Returns the lines of a script. Empty if neither the engine has them nor the source can be
/// read.
pub(super) fn lines(
    heap: &HeapReader<'_>,
    script: u64,
    known: &KnownLines,
) -> Option<Arc<LineEnds>> {
    let fields = heap.layout.script;
    let key = ScriptKey {
        script,
        id: heap.small(script, fields.id)?,
        source: heap.word(script, fields.source)?,
        line_ends: heap.word(script, fields.line_ends)?,
    };
    if let Some(lines) = known.get(&key) {
        return Some(lines);
    }
    let ends = own_line_ends(heap, script).or_else(|| {
        let text = flat_text(heap, key.source).filter(|it| it.len <= SOURCE_MAX)?;
        line_ends_of(heap, text)
    });
    let before = heap.small(script, fields.line_offset).filter(|it| *it < SOURCE_MAX);
    let is_found = ends.is_some();
    let has_map = has_source_map(heap, script);
    let lines = LineEnds { ends: ends.unwrap_or_default(), before: before.unwrap_or(0), has_map };
    let lines = Arc::new(lines);
    if is_found {
        known.keep(key, &lines);
    }
    Some(lines)
}

/// Returns whether a script names a source map that tells the places of its text: not if it is a
/// part of a line.
fn has_source_map(heap: &HeapReader<'_>, script: u64) -> bool {
    let fields = heap.layout.script;
    let url = heap.word(script, fields.map_url).filter(|url| is_text(heap, *url));
    let len = url.and_then(|url| text_len(heap, url));
    len.is_some_and(|len| len > 0) && heap.small(script, fields.column_offset) == Some(0)
}

/// Returns the ends of lines that the engine has found.
fn own_line_ends(heap: &HeapReader<'_>, script: u64) -> Option<Vec<u32>> {
    let array = heap.object(script, heap.layout.script.line_ends)?;
    let bytes = heap.array(array, 8, LINES_MAX)?;
    let (words, _) = bytes.as_chunks::<8>();
    let ends: Option<Vec<u32>> =
        words.iter().map(|word| small(u64::from_le_bytes(*word))).collect();
    ends.filter(|ends| !ends.is_empty() && ends.is_sorted())
}

/// Finds the ends of lines in a source text.
fn line_ends_of(heap: &HeapReader<'_>, text: FlatText) -> Option<Vec<u32>> {
    let len = u64::from(text.len) * text.width as u64;
    let (mut ends, mut at, mut offset) = (Vec::new(), 0, 0u32);
    let mut is_return = false;
    let mut bytes = vec![0; CHUNK.min(usize::try_from(len).ok()?)];
    while at < len {
        let chunk = bytes.get_mut(..CHUNK.min(usize::try_from(len - at).ok()?))?;
        heap.pages.read_once(text.avma.checked_add(at)?, chunk)?;
        for unit in code_units(chunk, text.width) {
            // A line feed behind a carriage return ends the same line.
            if is_return && unit != LINE_FEED {
                ends.push(offset - 1);
            }
            is_return = unit == CARRIAGE_RETURN;
            if unit == LINE_FEED || SEPARATORS.contains(&unit) {
                ends.push(offset);
            }
            offset += 1;
        }
        if ends.len() > LINES_MAX {
            return None;
        }
        at += chunk.len() as u64;
    }
    // The last line ends with the text.
    ends.push(offset);
    Some(ends)
}
