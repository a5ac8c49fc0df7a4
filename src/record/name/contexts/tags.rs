//! The trace's ten tags, and the texts that are their values as far as there is room.
//!
//! The first ten names of all tables and programs become tags.

use std::collections::HashSet;
use std::ops::DerefMut;
use std::sync::{Arc, Mutex, PoisonError};

use traceprof_abi::context::TAGS;

use crate::trace::{TagKey, TagKind, Value};

/// The largest size of all tag texts of a trace, each of which stays until the recording ends.
const TEXTS_BYTES: usize = 32 << 20;
/// Memory for a text besides its bytes.
const TEXT_OVERHEAD: usize = 128;

/// The texts that are in the trace.
#[derive(Debug, Default)]
pub(super) struct TagTexts {
    admitted: HashSet<Arc<str>>,
    bytes: usize,
}

impl TagTexts {
    /// Checks whether a text is in the trace, or adds it if there is room.
    pub(super) fn admit(&mut self, text: &Arc<str>) -> bool {
        if self.admitted.contains(text) {
            return true;
        }
        let bytes = self.bytes + text.len() + TEXT_OVERHEAD;
        if bytes > TEXTS_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.admitted.insert(Arc::clone(text))
    }
}

/// The names of a trace's tags by their index, for all its processes; names are only added.
#[derive(Debug, Default)]
pub(crate) struct TagNames(Mutex<Vec<TagKey>>);

impl TagNames {
    /// Returns the names for the trace's metadata, if there are any.
    pub(crate) fn metadata(&self) -> Option<(String, Value)> {
        let keys = self.keys();
        let (key, value) = (!keys.is_empty()).then(|| TagKey::metadata(&keys))?;
        Some((key.to_owned(), value))
    }

    fn keys(&self) -> impl DerefMut<Target = Vec<TagKey>> {
        // A panicking thread has either pushed a name or not.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One process's view of the trace's tags.
#[derive(Debug, Default)]
pub(super) struct ProcessTags {
    all: Arc<TagNames>,
    /// All names up to the last that this process has requested.
    keys: Vec<TagKey>,
    reported: usize,
}

impl ProcessTags {
    /// Makes the view of a trace's names.
    pub(super) fn of(all: Arc<TagNames>) -> Self {
        Self { all, ..Self::default() }
    }

    /// Returns the index of a tag in the trace; `None` if ten others are taken.
    ///
    /// A number and a text of the same name are different tags.
    pub(super) fn place(&mut self, name: &str, kind: TagKind) -> Option<usize> {
        let find =
            |keys: &[TagKey]| keys.iter().position(|key| key.name == name && key.kind == kind);
        if let Some(known) = find(&self.keys) {
            return Some(known);
        }
        if self.keys.len() >= TAGS {
            return None;
        }
        let mut all = self.all.keys();
        if find(&all).is_none() && all.len() < TAGS {
            all.push(TagKey { name: name.to_owned(), kind });
        }
        self.keys.clone_from(&all);
        find(&self.keys)
    }

    /// Returns a bit for each index whose values are texts.
    pub(super) fn texts(&self) -> u16 {
        let bits = self.keys.iter().enumerate();
        bits.fold(0, |bits, (place, key)| bits | u16::from(key.kind == TagKind::Text) << place)
    }

    /// Returns the names for the trace's metadata, if new ones have been added.
    pub(super) fn news(&mut self) -> Option<(String, Value)> {
        if self.reported == self.keys.len() {
            return None;
        }
        self.reported = self.keys.len();
        let (key, value) = TagKey::metadata(&self.keys);
        Some((key.to_owned(), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_admitted_while_there_is_room_and_known_ones_always() {
        let mut texts = TagTexts::default();
        let text = |number: usize| Arc::from(format!("{number:0>872}"));
        let room = TEXTS_BYTES / 1000;
        let admitted = (0..room + 100).filter(|number| texts.admit(&text(*number))).count();
        assert_eq!(admitted, room);
        assert!(texts.admit(&text(0)) && texts.admit(&text(room - 1)));
        assert!(!texts.admit(&text(room)));
    }

    #[test]
    fn processes_of_one_trace_share_its_names() {
        let all = Arc::new(TagNames::default());
        let [mut one, mut other] = [(); 2].map(|()| ProcessTags::of(Arc::clone(&all)));
        assert_eq!(all.metadata(), None);
        assert_eq!(one.place("route", TagKind::Text), Some(0));
        assert_eq!(other.place("shard", TagKind::Number), Some(1));
        assert_eq!(other.place("route", TagKind::Text), Some(0));
        assert_eq!(one.place("shard", TagKind::Number), Some(1));
        assert_eq!((one.texts(), other.texts()), (1, 1));
        // The last report covers all names that a process uses.
        assert_eq!(one.news(), other.news());
        assert_eq!(TagKey::of(&[all.metadata().unwrap()].into()).len(), 2);
        for number in 2..TAGS {
            assert_eq!(one.place(&format!("{number}"), TagKind::Text), Some(number));
        }
        assert_eq!(other.place("eleventh", TagKind::Text), None);
        assert_eq!(other.place("5", TagKind::Text), Some(5));
    }

    #[test]
    fn the_first_ten_names_become_tags() {
        let mut tags = ProcessTags::default();
        assert_eq!(tags.news(), None);
        let name = |number: usize| format!("tag{number}");
        for number in 0..TAGS + 2 {
            let kind = if number % 2 == 0 { TagKind::Text } else { TagKind::Number };
            let expected = (number < TAGS).then_some(number);
            assert_eq!(tags.place(&name(number), kind), expected);
            assert_eq!(tags.place(&name(number), kind), expected);
        }
        assert_eq!(tags.place(&name(0), TagKind::Number), None, "another one of the same name");
        assert_eq!(tags.texts(), 0b01_0101_0101);
        let (key, value) = tags.news().unwrap();
        assert_eq!(TagKey::of(&[(key, value)].into()).len(), TAGS);
        assert_eq!(tags.news(), None);
    }
}
