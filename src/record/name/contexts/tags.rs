//! The trace's ten tags, and the texts that are their values while there is room.
//!
//! The first ten names from all tables and programs become tags.

use std::collections::HashSet;
use std::ops::DerefMut;
use std::sync::{Arc, Mutex, PoisonError};

use traceprof_abi::context::TAGS;

use crate::trace::{TagKey, TagKind, Value};

/// The largest total size of a trace's tag texts, in bytes: all stay until the recording ends.
const TEXTS_BYTES: usize = 32 << 20;
/// The part of them that names of tasks may take: a program may make a new name for each request.
const TASK_TEXTS_BYTES: usize = TEXTS_BYTES / 2;
/// The memory for a text in addition to its content, in bytes.
const TEXT_OVERHEAD: usize = 128;

/// The texts that are in the trace.
#[derive(Debug, Default)]
pub(super) struct AdmittedTexts {
    admitted: HashSet<Arc<str>>,
    bytes: usize,
    task_bytes: usize,
}

impl AdmittedTexts {
    /// Adds a text if it is new and there is room, and returns whether it is in the trace.
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

    /// Like [`Self::admit`], for the name of a task.
    pub(super) fn admit_task(&mut self, name: &Arc<str>) -> bool {
        if self.admitted.contains(name) {
            return true;
        }
        let bytes = self.task_bytes + name.len() + TEXT_OVERHEAD;
        if bytes > TASK_TEXTS_BYTES || !self.admit(name) {
            return false;
        }
        self.task_bytes = bytes;
        true
    }
}

/// The names of a trace's tags by index, for all processes of the trace; names are never removed.
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
        // A thread that panicked has either pushed a complete name or none.
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
    /// Makes a process's view of these names.
    pub(super) fn of(all: Arc<TagNames>) -> Self {
        Self { all, ..Self::default() }
    }

    /// Returns the index of a tag in the trace, and adds the tag if needed; `None` if the trace has
    /// ten others.
    ///
    /// A number and a text of the same name are different tags.
    pub(super) fn index_of(&mut self, name: &str, kind: TagKind) -> Option<usize> {
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

    /// Returns a set of bits, one for each index whose values are texts.
    pub(super) fn texts(&self) -> u16 {
        let bits = self.keys.iter().enumerate();
        bits.fold(0, |bits, (index, key)| bits | u16::from(key.kind == TagKind::Text) << index)
    }

    /// Returns the names for the trace's metadata, if new ones have been added.
    pub(super) fn take_new_metadata(&mut self) -> Option<(String, Value)> {
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
        let mut texts = AdmittedTexts::default();
        let text = |number: usize| Arc::from(format!("{number:0>872}"));
        let room = TEXTS_BYTES / 1000;
        let admitted = (0..room + 100).filter(|number| texts.admit(&text(*number))).count();
        assert_eq!(admitted, room);
        assert!(texts.admit(&text(0)) && texts.admit(&text(room - 1)));
        assert!(!texts.admit(&text(room)));
    }

    #[test]
    fn names_of_tasks_leave_room_for_other_texts() {
        let mut texts = AdmittedTexts::default();
        let text = |number: usize| Arc::from(format!("{number:0>872}"));
        let room = TEXTS_BYTES / 1000;
        let tasks = (0..room).filter(|number| texts.admit_task(&text(*number))).count();
        assert_eq!(tasks, TASK_TEXTS_BYTES / 1000);
        assert!(texts.admit_task(&text(0)) && texts.admit(&text(1)));
        let others = (room..2 * room).filter(|number| texts.admit(&text(*number))).count();
        assert_eq!(others, room - tasks);
    }

    #[test]
    fn processes_of_one_trace_share_its_names() {
        let all = Arc::new(TagNames::default());
        let [mut one, mut other] = [(); 2].map(|()| ProcessTags::of(Arc::clone(&all)));
        assert_eq!(all.metadata(), None);
        assert_eq!(one.index_of("route", TagKind::Text), Some(0));
        assert_eq!(other.index_of("shard", TagKind::Number), Some(1));
        assert_eq!(other.index_of("route", TagKind::Text), Some(0));
        assert_eq!(one.index_of("shard", TagKind::Number), Some(1));
        assert_eq!((one.texts(), other.texts()), (1, 1));
        // The last report covers all names that a process uses.
        assert_eq!(one.take_new_metadata(), other.take_new_metadata());
        assert_eq!(TagKey::of(&[all.metadata().unwrap()].into()).len(), 2);
        for number in 2..TAGS {
            assert_eq!(one.index_of(&format!("{number}"), TagKind::Text), Some(number));
        }
        assert_eq!(other.index_of("eleventh", TagKind::Text), None);
        assert_eq!(other.index_of("5", TagKind::Text), Some(5));
    }

    #[test]
    fn the_first_ten_names_become_tags() {
        let mut tags = ProcessTags::default();
        assert_eq!(tags.take_new_metadata(), None);
        let name = |number: usize| format!("tag{number}");
        for number in 0..TAGS + 2 {
            let kind = if number % 2 == 0 { TagKind::Text } else { TagKind::Number };
            let expected = (number < TAGS).then_some(number);
            assert_eq!(tags.index_of(&name(number), kind), expected);
            assert_eq!(tags.index_of(&name(number), kind), expected);
        }
        assert_eq!(tags.index_of(&name(0), TagKind::Number), None, "another one of the same name");
        assert_eq!(tags.texts(), 0b01_0101_0101);
        let (key, value) = tags.take_new_metadata().unwrap();
        assert_eq!(TagKey::of(&[(key, value)].into()).len(), TAGS);
        assert_eq!(tags.take_new_metadata(), None);
    }
}
