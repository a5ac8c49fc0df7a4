//! The trace's ten tags: whichever names come first, of all tables of all programs; and the texts that are
//! their values, as far as there is room.

use std::collections::HashSet;
use std::sync::Arc;

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

/// The names by their places.
#[derive(Debug, Default)]
pub(super) struct Tags {
    keys: Vec<TagKey>,
    told: usize,
}

impl Tags {
    /// The place of a tag in the trace; `None` if it has ten others. Numbers and texts of the same name are
    /// different tags.
    pub(super) fn place(&mut self, name: &str, kind: TagKind) -> Option<usize> {
        let known = self.keys.iter().position(|key| key.name == name && key.kind == kind);
        if known.is_some() || self.keys.len() >= TAGS {
            return known;
        }
        self.keys.push(TagKey { name: name.to_owned(), kind });
        Some(self.keys.len() - 1)
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
