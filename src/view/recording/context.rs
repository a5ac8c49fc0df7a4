//! The context of a sample: spans and tags, as numbers and as text.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::trace::{LazyTrace, Sample, TagKey, TagKind, TextId, TraceError};
use crate::view::text::escape::escaped;
use crate::view::text::span_id::{RootId, SpanId};

/// Maximum number of texts in the cache.
const REMEMBERED: usize = 1 << 12;
const TAGS: usize = traceprof_abi::context::TAGS;

/// Returns whether a sample has a context.
pub(in crate::view) fn has_context(sample: &Sample) -> bool {
    sample.span != 0 || RootId::of(sample).is_some() || sample.tags != [0; TAGS]
}

/// The context of a sample as in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(in crate::view) struct ContextKey {
    pub(in crate::view) span: u64,
    pub(in crate::view) root: u128,
    pub(in crate::view) tags: [u32; TAGS],
}

impl ContextKey {
    pub(in crate::view) fn of(sample: &Sample) -> Self {
        let root = RootId::of(sample).map_or(0, |root| root.0);
        Self { span: sample.span, root, tags: sample.tags }
    }

    /// Returns the context as text.
    pub(in crate::view) fn in_words(
        &self,
        texts: &ContextTags<'_>,
    ) -> Result<ContextText, TraceError> {
        let span = (self.span != 0).then_some(SpanId(self.span));
        let root = (self.root != 0).then_some(RootId(self.root));
        Ok(ContextText { span, root, tags: texts.of(&self.tags)? })
    }
}

/// The context of samples as text, escaped for display.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::view) struct ContextText {
    pub(in crate::view) span: Option<SpanId>,
    pub(in crate::view) root: Option<RootId>,
    /// The names and values of the tags.
    pub(in crate::view) tags: Vec<(Arc<str>, TagText)>,
}

impl fmt::Display for ContextText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&context_text(self.span, self.root, self.tags.iter().map(|(n, v)| (n, v))))
    }
}

/// Returns the context of a thread as text: `span 00f067aa0ba902b7, root span 4bf92f3577b34da6,
/// route = /cart`.
pub fn context_text<N: fmt::Display, V: fmt::Display>(
    span: Option<SpanId>,
    root: Option<RootId>,
    tags: impl Iterator<Item = (N, V)>,
) -> String {
    let span = span.map(|id| format!("span {id}"));
    let root = root.map(|id| format!("root span {id}"));
    let tags = tags.map(|(name, value)| format!("{name} = {value}"));
    span.into_iter().chain(root).chain(tags).collect::<Vec<_>>().join(", ")
}

/// The value of a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::view) enum TagText {
    Number(u32),
    Text(Arc<str>),
}

impl fmt::Display for TagText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// The names of tags and the texts of their values. The texts are read on demand.
pub(in crate::view) struct ContextTags<'a> {
    trace: &'a LazyTrace,
    /// The names by index, escaped for display.
    names: [Arc<str>; TAGS],
    is_text: [bool; TAGS],
    known: RefCell<HashMap<u32, Arc<str>>>,
}

impl<'a> ContextTags<'a> {
    pub(in crate::view) fn new(trace: &'a LazyTrace, keys: &[TagKey]) -> Self {
        let key = |index: usize| keys.get(index);
        let name = |index: usize| match key(index) {
            Some(key) => escaped(&key.name).into(),
            None => format!("tag {index}").into(),
        };
        let is_text = |index: usize| key(index).is_some_and(|key| key.kind == TagKind::Text);
        Self {
            trace,
            names: std::array::from_fn(name),
            is_text: std::array::from_fn(is_text),
            known: RefCell::default(),
        }
    }

    /// Returns the names and values of the tags that are set.
    pub(in crate::view) fn of(
        &self,
        tags: &[u32; TAGS],
    ) -> Result<Vec<(Arc<str>, TagText)>, TraceError> {
        let there = self.names.iter().zip(tags).enumerate().filter(|(_, (_, value))| **value != 0);
        there
            .map(|(index, (name, value))| Ok((Arc::clone(name), self.value(index, *value)?)))
            .collect()
    }

    /// Returns the text of a value of the tag at this index. The value is not 0.
    pub(in crate::view) fn value(&self, index: usize, value: u32) -> Result<TagText, TraceError> {
        if !self.is_text.get(index).copied().unwrap_or(false) {
            return Ok(TagText::Number(value));
        }
        if let Some(known) = self.known.borrow().get(&value) {
            return Ok(TagText::Text(Arc::clone(known)));
        }
        let text = self.trace.tag_text(TextId(value.saturating_sub(1)))?;
        let text: Arc<str> = escaped(&text).into();
        let mut known = self.known.borrow_mut();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(value, Arc::clone(&text));
        Ok(TagText::Text(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_a_root_or_a_tag_is_a_context() {
        let in_span =
            |span, root_span, root_high| Sample { span, root_span, root_high, ..Sample::default() };
        let samples = [in_span(0, 0, 0), in_span(1, 7, 0), in_span(0, 0, 1), in_span(3, 0, 0)];
        assert_eq!(samples.each_ref().map(has_context), [false, true, true, true]);
        let tagged = Sample { tags: [0, 0, 0, 0, 0, 0, 0, 0, 0, 1], ..Sample::default() };
        assert!(has_context(&tagged));
    }
}
