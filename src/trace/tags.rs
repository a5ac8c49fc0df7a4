//! The tags of samples: their names, and whether their values are numbers or texts.
//!
//! # Invariants
//! - Whatever the metadata says, there are at most as many names as tags, and the names are in the
//!   order of the tags.

pub use traceprof_abi::context::TagKind;

use super::{Metadata, Sample, TextId, Value};

/// The metadata key of the samples' tags.
const TAGS: &str = "tags";
/// The number of tags of a sample.
pub(super) const COUNT: usize = traceprof_abi::context::TAGS;
const NUMBER: &str = "number";
const TEXT: &str = "text";

/// The name of the tag that has the name of the asyncio task which a thread ran.
pub const TASK_TAG: &str = "asyncio.task";
/// The name of the tag that has the name of the virtual thread of Java which a thread carried.
pub const VIRTUAL_THREAD_TAG: &str = "java.virtual_thread";

/// A tag of the samples of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagKey {
    /// The name that the application gave it.
    pub name: String,
    /// The kind of its values.
    pub kind: TagKind,
}

impl TagKey {
    /// Returns the tags that a trace names, in order. A tag with malformed metadata is named by its
    /// number and has numbers.
    pub fn of(metadata: &Metadata) -> Vec<Self> {
        let Some(Value::List(listed)) = metadata.get(TAGS) else { return Vec::new() };
        listed
            .iter()
            .take(COUNT)
            .enumerate()
            .map(|(place, value)| Self::read(place, value))
            .collect()
    }

    /// Returns the metadata for these tags: key and value.
    pub fn metadata(keys: &[Self]) -> (&'static str, Value) {
        let listed = keys.iter().map(|key| {
            let kind = match key.kind {
                TagKind::Number => NUMBER,
                TagKind::Text => TEXT,
            };
            Value::List(vec![Value::Text(key.name.clone()), Value::Text(kind.to_owned())])
        });
        (TAGS, Value::List(listed.collect()))
    }

    fn read(place: usize, value: &Value) -> Self {
        let named = match value {
            Value::List(pair) => match &pair[..] {
                [Value::Text(name), Value::Text(kind), ..] => Some((name, kind)),
                _ => None,
            },
            _ => None,
        };
        let unnamed = || Self { name: format!("tag {place}"), kind: TagKind::Number };
        named.map_or_else(unnamed, |(name, kind)| {
            let kind = if kind == TEXT { TagKind::Text } else { TagKind::Number };
            Self { name: name.clone(), kind }
        })
    }
}

/// The tags whose values are texts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TextTags([bool; COUNT]);

impl TextTags {
    pub(super) fn of(metadata: &Metadata) -> Self {
        let mut places = [false; COUNT];
        for (is_text, key) in places.iter_mut().zip(TagKey::of(metadata)) {
            *is_text = key.kind == TagKind::Text;
        }
        Self(places)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == [false; COUNT]
    }

    /// Returns the values of a sample's tags that stand for texts.
    pub(super) fn values(self, sample: &mut Sample) -> impl Iterator<Item = &mut u32> {
        let tags = sample.tags.iter_mut().zip(self.0);
        tags.filter(|(value, is_text)| *is_text && **value != 0).map(|(value, _)| value)
    }

    /// Returns the texts that a sample's tags stand for.
    pub(super) fn texts(self, sample: &Sample) -> impl Iterator<Item = TextId> {
        let tags = sample.tags.iter().zip(self.0);
        tags.filter_map(|(value, is_text)| value.checked_sub(1).filter(|_| is_text)).map(TextId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, kind: TagKind) -> TagKey {
        TagKey { name: name.to_owned(), kind }
    }

    fn of(value: Value) -> Vec<TagKey> {
        TagKey::of(&[(TAGS.to_owned(), value)].into())
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let keys = [key("route", TagKind::Text), key("", TagKind::Number), key("ü", TagKind::Text)];
        let (name, value) = TagKey::metadata(&keys);
        assert_eq!(TagKey::of(&[(name.to_owned(), value)].into()), keys);
        assert_eq!(TagKey::of(&Metadata::new()), []);
    }

    #[test]
    fn damaged_names_are_names_of_places() {
        let text = |text: &str| Value::Text(text.to_owned());
        assert_eq!(of(Value::Unsigned(3)), []);
        assert_eq!(of(text("route")), []);
        let odd = vec![
            Value::Unsigned(1),
            Value::List(vec![text("only")]),
            Value::List(vec![text("later"), text("bytes"), text("more")]),
            Value::List(vec![text("route"), text("text")]),
        ];
        let tag = |place: &str| key(place, TagKind::Number);
        let expected = [tag("tag 0"), tag("tag 1"), tag("later"), key("route", TagKind::Text)];
        assert_eq!(of(Value::List(odd)), expected);
        assert_eq!(of(Value::List(vec![Value::Unsigned(0); 1000])).len(), COUNT);
    }

    #[test]
    fn texts_are_the_values_of_tags_that_are_texts() {
        let keys = [key("a", TagKind::Number), key("b", TagKind::Text), key("c", TagKind::Text)];
        let (name, value) = TagKey::metadata(&keys);
        let tags = TextTags::of(&[(name.to_owned(), value)].into());
        let mut sample = Sample { tags: [5, 7, 0, 9, 0, 0, 0, 0, 0, 0], ..Sample::default() };
        assert_eq!(tags.texts(&sample).collect::<Vec<_>>(), [TextId(6)]);
        tags.values(&mut sample).for_each(|value| *value = 1);
        assert_eq!(sample.tags, [5, 1, 0, 9, 0, 0, 0, 0, 0, 0]);
        assert!(!tags.is_empty() && TextTags::default().is_empty());
    }
}
