//! The trace's ten tags: whichever names come first, of all tables of all programs; and the texts that are
//! their values, as far as there is room.

use std::collections::HashSet;
use std::ops::DerefMut;
use std::sync::{Arc, Mutex, PoisonError};

use traceprof_abi::context::TAGS;

use crate::trace::{TagKey, TagKind, Value};

/// Bytes that all texts of tags of a trace may have: each stays until the recording ends.
const TEXTS_BYTES: usize = 32 << 20;
/// What is kept of a text besides its bytes.
const TEXT_OVERHEAD: usize = 128;

/// The texts that were told.
#[derive(Debug, Default)]
pub(super) struct Texts {
    told: HashSet<Arc<str>>,
    bytes: usize,
}

impl Texts {
    /// Whether a text may be told: it was before, or there is room for it.
    pub(super) fn admit(&mut self, text: &Arc<str>) -> bool {
        if self.told.contains(text) {
            return true;
        }
        let bytes = self.bytes + text.len() + TEXT_OVERHEAD;
        if bytes > TEXTS_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.told.insert(Arc::clone(text))
    }
}

/// The names of a trace by their places, of all its processes. They only become more.
#[derive(Debug, Default)]
pub(in crate::record) struct TagNames(Mutex<Vec<TagKey>>);

impl TagNames {
    /// What the trace's metadata says of them, if there are any.
    pub(in crate::record) fn metadata(&self) -> Option<(String, Value)> {
        let keys = self.keys();
        let (key, value) = (!keys.is_empty()).then(|| TagKey::metadata(&keys))?;
        Some((key.to_owned(), value))
    }

    fn keys(&self) -> impl DerefMut<Target = Vec<TagKey>> {
        // One that panicked has pushed a name or has not.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The names by their places.
#[derive(Debug, Default)]
pub(super) struct Tags {
    all: Arc<TagNames>,
    /// All of them up to the last that this process has asked for.
    keys: Vec<TagKey>,
    told: usize,
}

impl Tags {
    /// Those of a trace.
    pub(super) fn of(all: Arc<TagNames>) -> Self {
        Self { all, ..Self::default() }
    }

    /// The place of a tag in the trace; `None` if it has ten others. Numbers and texts of the same name are
    /// different tags.
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

    /// A bit for each place whose values are texts.
    pub(super) fn texts(&self) -> u16 {
        let bits = self.keys.iter().enumerate();
        bits.fold(0, |bits, (place, key)| bits | u16::from(key.kind == TagKind::Text) << place)
    }

    /// The names for the trace's metadata, if there are more than were told.
    pub(super) fn news(&mut self) -> Option<(String, Value)> {
        if self.told == self.keys.len() {
            return None;
        }
        self.told = self.keys.len();
        let (key, value) = TagKey::metadata(&self.keys);
        Some((key.to_owned(), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_while_there_is_room_and_those_that_were_told_also_then() {
        let mut texts = Texts::default();
        let text = |number: usize| Arc::from(format!("{number:0>872}"));
        let room = TEXTS_BYTES / 1000;
        let told = (0..room + 100).filter(|number| texts.admit(&text(*number))).count();
        assert_eq!(told, room);
        assert!(texts.admit(&text(0)) && texts.admit(&text(room - 1)));
        assert!(!texts.admit(&text(room)));
    }

    #[test]
    fn processes_of_one_trace_share_its_names() {
        let all = Arc::new(TagNames::default());
        let [mut one, mut other] = [(); 2].map(|()| Tags::of(Arc::clone(&all)));
        assert_eq!(all.metadata(), None);
        assert_eq!(one.place("route", TagKind::Text), Some(0));
        assert_eq!(other.place("shard", TagKind::Number), Some(1));
        assert_eq!(other.place("route", TagKind::Text), Some(0));
        assert_eq!(one.place("shard", TagKind::Number), Some(1));
        assert_eq!((one.texts(), other.texts()), (1, 1));
        // Whoever tells last tells of all that it uses.
        assert_eq!(one.news(), other.news());
        assert_eq!(TagKey::of(&[all.metadata().unwrap()].into()).len(), 2);
        for number in 2..TAGS {
            assert_eq!(one.place(&format!("{number}"), TagKind::Text), Some(number));
        }
        assert_eq!(other.place("eleventh", TagKind::Text), None);
        assert_eq!(other.place("5", TagKind::Text), Some(5));
    }

    #[test]
    fn the_first_ten_names_have_places() {
        let mut tags = Tags::default();
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
