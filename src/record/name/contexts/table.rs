//! Reads a context table of the target from the recorder.
//!
//! # Invariants
//! - Every offset is constant or checked, and texts and names are parsed from copied bytes.

use std::collections::HashMap;
use std::sync::Arc;

use traceprof_abi::context::{
    self, TABLE_LEN, TABLE_MAGIC, TABLE_MAPPING, TABLE_VERSION, TAG_NAME_MAX, TAGS, TEXT_MAX,
    Values, checksum, table_layout,
};

use crate::inject;
use crate::proc::Mapping;
use crate::record::target::modules::AddressMap;
use crate::trace::TagKind;

/// The number of words of a table's header (`abi::context::ContextTableHeader`).
const HEAD: usize = 16 + TAGS * KEY;
/// The number of words of a tag's name in the header.
const KEY: usize = 2 + TAG_NAME_MAX / 4;
/// The size of a page in bytes, to which a table is aligned.
const PAGE: u64 = 4096;
/// The number of words of a context.
const CONTEXT: usize = 16;

/// The name of a tag and the kind of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TagName {
    pub(super) name: Arc<str>,
    pub(super) kind: TagKind,
}

/// A table in the target.
#[derive(Debug)]
pub(super) struct TargetTable {
    pub(super) avma: u64,
    pub(super) is_there: bool,
    /// The number of threads without an entry, by the last reading of the header.
    pub(super) refused: u32,
    /// The number of texts without room, by the last reading of the header.
    pub(super) texts_refused: u32,
    keys: [Option<TagName>; TAGS],
    /// The text words copied so far: they cannot be read after the target has exited.
    words: Vec<u32>,
    texts: HashMap<u32, Option<Arc<str>>>,
}

/// The largest number of addresses of each kind that are checked for tables at once.
const CANDIDATES_MAX: usize = 64;
/// The largest number of remembered values of texts.
const TEXTS_MAX: usize = 1 << 16;

/// Returns possible addresses of unknown tables, and the number of addresses above the limit.
///
/// The addresses come from mappings with a table's name, and from modules that store the address of
/// a table.
pub(super) fn candidates(
    pid: i32,
    mappings: &[Mapping],
    addresses: &AddressMap,
    is_known: impl Fn(u64) -> bool,
) -> (Vec<u64>, usize) {
    let is_long = |mapping: &&Mapping| mapping.end.saturating_sub(mapping.start) >= TABLE_LEN;
    let is_candidate = |it: &&Mapping| is_named_table(it) && is_long(it) && is_private(it);
    let named = mappings.iter().filter(is_candidate).map(|mapping| mapping.start);
    let mut found: Vec<u64> = named.filter(|at| !is_known(*at)).collect();
    let left_out = found.len().saturating_sub(CANDIDATES_MAX);
    found.truncate(CANDIDATES_MAX);
    let mut kept = Vec::new();
    for range in &addresses.ranges {
        let svma = range.module.as_ref().and_then(|module| module.exports.table);
        // A library is mapped in several ranges.
        kept.extend(svma.map(|svma| svma.wrapping_add(range.bias)));
    }
    kept.sort_unstable();
    kept.dedup();
    let more = kept.len().saturating_sub(CANDIDATES_MAX);
    for at in kept.into_iter().take(CANDIDATES_MAX) {
        let Some(avma) = read::<2>(pid, at).map(|words| pair(&words, 0)) else { continue };
        let is_new = !is_known(avma) && !found.contains(&avma);
        if is_new && avma % PAGE == 0 && is_mapped(mappings, avma) {
            found.push(avma);
        }
    }
    (found, left_out + more)
}

/// Returns whether a mapping has a table's name.
pub(crate) fn is_named_table(mapping: &Mapping) -> bool {
    let name = mapping.path.as_encoded_bytes().strip_prefix(b"/memfd:");
    name == Some(TABLE_MAPPING.as_bytes()) && mapping.file_offset == 0
}

/// Returns whether a mapping is readable and private: another process could truncate a shared
/// mapping.
fn is_private(mapping: &Mapping) -> bool {
    mapping.read && !mapping.shared
}

/// Returns whether a complete table is mapped readable at this address; the mappings must be sorted
/// by address.
pub(super) fn is_mapped(mappings: &[Mapping], avma: u64) -> bool {
    let after = mappings.partition_point(|mapping| mapping.start <= avma);
    let mapping = after.checked_sub(1).and_then(|at| mappings.get(at));
    let contains_table =
        |it: &Mapping| avma.checked_add(TABLE_LEN).is_some_and(|end| end <= it.end);
    mapping.is_some_and(|mapping| contains_table(mapping) && is_private(mapping))
}

/// Returns whether there is a table here that the process with this inner id has made; a child of
/// `fork` has a copy of its parent's.
///
/// A file may be shorter than its mapping, whose end is then unreadable. So this also reads the
/// last word that handlers may read.
pub(super) fn is_of(pid: i32, inner_pid: u32, avma: u64) -> bool {
    let head = read::<4>(pid, avma);
    let is_head = head.is_some_and(|head| {
        pair(&head, 0) == TABLE_MAGIC && head[2] == TABLE_VERSION && head[3] == inner_pid
    });
    is_head && read::<1>(pid, avma + table_layout::TEXT_INDEX - 4).is_some()
}

/// Reads the context of a thread in a table.
pub(super) fn read_context(pid: i32, table: u64, inner_tid: u32) -> Option<Values> {
    let first = table_layout::first(inner_tid);
    let line =
        |at: usize| read::<{ table_layout::LINE }>(pid, table + table_layout::TIDS + at as u64 * 4);
    // The run wraps around to the start of the table.
    let entry = (0..table_layout::RUN / table_layout::LINE).find_map(|step| {
        let at = (first + step * table_layout::LINE) % table_layout::ENTRIES;
        let found = line(at)?.iter().position(|tid| *tid == inner_tid)?;
        Some(at + found)
    })?;
    read_entry(table + table_layout::CONTEXTS + entry as u64 * 64, |avma, into| {
        read_words(pid, avma, into)
    })
}

/// Reads the context at an address; `None` if it changes meanwhile.
fn read_entry(avma: u64, read: impl Fn(u64, &mut [u32]) -> usize) -> Option<Values> {
    let (mut words, mut after) = ([0; CONTEXT], [0; 2]);
    if read(avma, &mut words) < CONTEXT {
        return None;
    }
    let (span, root_span, sum) = (pair(&words, 0), pair(&words, 2), pair(&words, 4));
    // The checksum again: the tags may be from after a change.
    if read(avma + 16, &mut after) < after.len() || pair(&after, 0) != sum {
        return None;
    }
    let mut tags = [0; TAGS];
    tags.copy_from_slice(&words[CONTEXT - TAGS..]);
    (sum != 0 && sum == checksum(span, root_span)).then_some(Values { span, root_span, tags })
}

impl TargetTable {
    /// Makes the value for a table that was found at this address.
    pub(super) fn new(avma: u64) -> Self {
        Self {
            avma,
            is_there: true,
            refused: 0,
            texts_refused: 0,
            keys: Default::default(),
            words: Vec::new(),
            texts: HashMap::new(),
        }
    }

    /// Reads new names and texts, which cannot be read after the target has exited.
    pub(super) fn read_new(&mut self, pid: i32) {
        // If the table is no longer mapped, its address may belong to something else.
        let head = if self.is_there { read::<HEAD>(pid, self.avma) } else { None };
        let Some(head) = head else { return };
        (self.refused, self.texts_refused) = (head[4], head[6]);
        for (key, words) in self.keys.iter_mut().zip(head[16..].chunks_exact(KEY)) {
            if key.is_none() {
                *key = key_of(words);
            }
        }
        let used = (head[5] as usize).min(table_layout::TEXT_WORDS);
        if used > self.words.len() {
            // The last texts may be incomplete; they are read again on request.
            let mut more = vec![0; used - self.words.len()];
            let at = self.avma + table_layout::TEXTS + self.words.len() as u64 * 4;
            let got = read_words(pid, at, &mut more);
            self.words.extend_from_slice(&more[..got]);
        }
    }

    /// Returns the name and kind of a tag in this table.
    pub(super) fn key(&mut self, pid: i32, index: usize) -> Option<TagName> {
        let known = self.keys.get(index)?;
        if known.is_none() {
            self.read_new(pid);
        }
        self.keys.get(index)?.clone()
    }

    /// Returns the text with the number `value`.
    pub(super) fn text(&mut self, pid: i32, value: u32) -> Option<Arc<str>> {
        if let Some(known) = self.texts.get(&value) {
            return known.clone();
        }
        let at = value.checked_sub(1)? as usize;
        let mut words = [0; TEXT_MAX.div_ceil(4) + 1];
        let room = words.len().min(table_layout::TEXT_WORDS.saturating_sub(at));
        let start = self.avma + table_layout::TEXTS + at as u64 * 4;
        let got = if self.is_there { read_words(pid, start, &mut words[..room]) } else { 0 };
        let copied = self.words.get(at..).unwrap_or_default();
        let text = text_of(if got > 0 { &words[..got] } else { copied });
        // No real table has that many texts, so the values are invalid.
        if self.texts.len() >= TEXTS_MAX {
            self.texts.clear();
        }
        self.texts.insert(value, text.clone());
        text
    }
}

fn key_of(words: &[u32]) -> Option<TagName> {
    let (kind, name) = words.split_first()?;
    let kind = match *kind {
        kind if kind == context::TagKind::Number as u32 => TagKind::Number,
        kind if kind == context::TagKind::Text as u32 => TagKind::Text,
        _ => return None,
    };
    // A tag cannot be requested by an empty name.
    let name = text_of(name).filter(|name| !name.is_empty())?;
    Some(TagName { name, kind })
}

/// Returns the text in words that start with its length.
fn text_of(words: &[u32]) -> Option<Arc<str>> {
    let (len, words) = words.split_first()?;
    let len = usize::try_from(*len).ok().filter(|len| *len <= TEXT_MAX)?;
    let bytes: Vec<u8> =
        words.iter().take(len.div_ceil(4)).flat_map(|it| it.to_le_bytes()).collect();
    Some(String::from_utf8_lossy(bytes.get(..len)?).into())
}

fn pair(words: &[u32], at: usize) -> u64 {
    u64::from(words[at]) | u64::from(words[at + 1]) << 32
}

fn read<const N: usize>(pid: i32, avma: u64) -> Option<[u32; N]> {
    let mut words = [0; N];
    (read_words(pid, avma, &mut words) == N).then_some(words)
}

/// Reads words of the target's memory, and returns the number of words that could be read.
fn read_words(pid: i32, avma: u64, into: &mut [u32]) -> usize {
    let mut bytes = vec![0; into.len() * 4];
    let got = inject::read_part(pid, avma, &mut bytes) / 4;
    for (word, bytes) in into.iter_mut().zip(bytes.as_chunks::<4>().0).take(got) {
        *word = u32::from_le_bytes(*bytes);
    }
    got
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_that_changes_during_the_reading_is_ignored() {
        let entry = |span: u64| {
            let sum = checksum(span, 2);
            let halves = [span, 2, sum].map(|word| [word as u32, (word >> 32) as u32]);
            let mut words = [7; CONTEXT];
            words[..6].copy_from_slice(halves.as_flattened());
            words
        };
        let read_with = |first: [u32; CONTEXT], then: [u32; CONTEXT]| {
            let reads = std::cell::Cell::new(0);
            read_entry(0x1000, |avma, into| {
                let now = if reads.replace(reads.get() + 1) == 0 { first } else { then };
                let start = (avma - 0x1000) as usize / 4;
                into.copy_from_slice(&now[start..start + into.len()]);
                into.len()
            })
        };
        let values = Values { span: 1, root_span: 2, tags: [7; TAGS] };
        assert_eq!(read_with(entry(1), entry(1)), Some(values));
        assert_eq!(read_with(entry(1), entry(3)), None);
        assert_eq!(read_with([0; CONTEXT], [0; CONTEXT]), None);
    }

    #[test]
    fn a_table_is_in_one_private_readable_mapping() {
        let start = 0x7000_0000;
        let name = format!("/memfd:{TABLE_MAPPING}");
        let before = Mapping::writable(start - PAGE, start, "");
        let mapping = |len| Mapping::writable(start, start + len, &name);
        let whole = mapping(TABLE_LEN);
        let shared = Mapping { shared: true, ..whole.clone() };
        let closed = Mapping { read: false, ..whole.clone() };
        let found = |mapping: &Mapping| {
            let mappings = [before.clone(), mapping.clone()];
            let found = candidates(0, &mappings, &AddressMap::default(), |_| false).0;
            assert_eq!(is_mapped(&mappings, start), found == [start]);
            found.len()
        };
        let all = [&whole, &shared, &closed, &mapping(TABLE_LEN - PAGE)];
        assert_eq!(all.map(found), [1, 0, 0, 0]);
        assert!(is_mapped(&[mapping(TABLE_LEN + PAGE)], start + PAGE), "within a longer one");
        assert!(!is_mapped(&[mapping(TABLE_LEN)], start - 1));
        assert!(!is_mapped(&[mapping(TABLE_LEN)], u64::MAX - 4095));
    }

    #[test]
    fn too_many_named_mappings_are_left_out() {
        let name = format!("/memfd:{TABLE_MAPPING}");
        let at = |number: u64| 0x7000_0000 + number * TABLE_LEN;
        let mapping = |number| Mapping::writable(at(number), at(number + 1), &name);
        let mappings: Vec<_> = (0..1000).map(mapping).collect();
        let found =
            |known: u64| candidates(0, &mappings, &AddressMap::default(), |avma| avma < at(known));
        assert_eq!((found(0).0.len(), found(0).1), (CANDIDATES_MAX, 1000 - CANDIDATES_MAX));
        assert_eq!((found(990).0[0], found(990).1), (at(990), 0));
    }

    #[test]
    fn texts_start_with_their_length() {
        let word = |text: &[u8; 4]| u32::from_le_bytes(*text);
        assert_eq!(text_of(&[5, word(b"chec"), word(b"kout")]).as_deref(), Some("check"));
        assert_eq!(text_of(&[0]).as_deref(), Some(""));
        assert_eq!(text_of(&[4]), None, "cut off");
        assert_eq!(text_of(&[u32::MAX, 7]), None);
        assert_eq!(text_of(&[]), None);
        assert_eq!(text_of(&[2, 0xffff]).as_deref(), Some("\u{fffd}\u{fffd}"));
    }
}
