//! Groups the samples of a view by span, root span or tag.
//!
//! # Invariants
//! - Memory grows with the distinct groups, about 200 bytes each. A view needs more for each
//!   distinct pair of a kept group and a stack.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use crate::trace::{LazyTrace, Sample, TASK_TAG, TagKey, TraceError, VIRTUAL_THREAD_TAG};
use crate::view::recording::context::{ContextKey, ContextTags, ContextText};
use crate::view::select::context_filter::check_name;
use crate::view::text::escape::escaped;
use crate::view::text::span_id::{RootId, SpanId};

/// The user's choice of a grouping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupBy {
    /// The span.
    Span,
    /// The root of the trace.
    RootSpan,
    /// The value of the tag with this name.
    Tag(String),
    /// The task: of asyncio, or in a trace without any, the virtual thread of Java.
    Task,
}

impl FromStr for GroupBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("tag:")) {
            ("span", _) => Ok(Self::Span),
            ("root-span", _) => Ok(Self::RootSpan),
            ("task", _) => Ok(Self::Task),
            (_, Some(name)) if !name.is_empty() => Ok(Self::Tag(name.to_owned())),
            _ => Err("expected span, root-span, task or tag:NAME".to_owned()),
        }
    }
}

/// A grouping, resolved for one trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grouping {
    kind: GroupingKind,
    /// The maximum number of kept groups, the heaviest. `None` keeps all.
    kept_max: Option<usize>,
}

/// A [`GroupBy`] in a trace, or the grouping by context, which users cannot choose.
#[derive(Debug, Clone, PartialEq, Eq)]
enum GroupingKind {
    Span,
    RootSpan,
    /// The name and the indices of a tag.
    ///
    /// There are no indices if the trace has no such tag. There are two if it has numbers in one
    /// program and texts in another.
    Tag(String, Vec<usize>),
    ContextText,
}

impl Grouping {
    /// Resolves the user's choice for a trace with these tags.
    pub(in crate::view) fn new(by: &GroupBy, keys: &[TagKey]) -> Self {
        let kind = match by {
            GroupBy::Span => GroupingKind::Span,
            GroupBy::RootSpan => GroupingKind::RootSpan,
            GroupBy::Tag(name) => Self::by_tag(name, keys),
            GroupBy::Task => {
                let is_there = |name: &&str| keys.iter().any(|key| key.name == *name);
                let name = [TASK_TAG, VIRTUAL_THREAD_TAG].into_iter().find(is_there);
                Self::by_tag(name.unwrap_or(TASK_TAG), keys)
            }
        };
        Self { kind, kept_max: None }
    }

    fn by_tag(name: &str, keys: &[TagKey]) -> GroupingKind {
        let named = keys.iter().enumerate().filter(|(_, key)| key.name == name);
        GroupingKind::Tag(name.to_owned(), named.map(|(index, _)| index).collect())
    }

    /// Returns the same grouping with at most `kept_max` groups, the heaviest.
    pub(in crate::view) fn heaviest(&self, kept_max: usize) -> Self {
        Self { kept_max: Some(kept_max), ..self.clone() }
    }

    /// Returns a grouping by the complete context, for formats that keep contexts next to the
    /// stacks.
    pub fn by_context() -> Self {
        Self { kind: GroupingKind::ContextText, kept_max: None }
    }

    /// Returns whether the user asked for this grouping.
    pub(in crate::view) fn is_asked_for(&self) -> bool {
        self.kind != GroupingKind::ContextText
    }

    /// Returns an error if the trace does not have the tag.
    pub(in crate::view) fn check(by: &GroupBy, keys: &[TagKey]) -> Result<(), String> {
        match by {
            GroupBy::Tag(name) => check_name(name, keys),
            GroupBy::Task => {
                check_name(VIRTUAL_THREAD_TAG, keys).or_else(|_| check_name(TASK_TAG, keys))
            }
            GroupBy::Span | GroupBy::RootSpan => Ok(()),
        }
    }

    /// Returns the noun for one group, and for several.
    fn nouns(&self) -> [String; 2] {
        match &self.kind {
            GroupingKind::Span => ["span", "spans"].map(str::to_owned),
            GroupingKind::RootSpan => ["root span", "root spans"].map(str::to_owned),
            GroupingKind::Tag(name, _) => {
                let name = escaped(name);
                [format!("value of {name}"), format!("values of {name}")]
            }
            GroupingKind::ContextText => ["context", "contexts"].map(str::to_owned),
        }
    }

    /// Returns the part of a sample's context that decides its group.
    fn key(&self, sample: &Sample) -> ContextKey {
        let ContextKey { span, root, tags } = ContextKey::of(sample);
        match &self.kind {
            GroupingKind::Span => ContextKey { span, ..ContextKey::default() },
            GroupingKind::RootSpan => ContextKey { root, ..ContextKey::default() },
            GroupingKind::Tag(_, indices) => {
                let mut key = ContextKey::default();
                // At most one of them is set: a process or library defines a name only once.
                if let Some((index, value)) = the_set(indices, &tags) {
                    key.tags[index] = value;
                }
                key
            }
            GroupingKind::ContextText => ContextKey { span, root, tags },
        }
    }

    /// Returns the name of a group, in the form of its filter option.
    fn label(&self, key: &ContextKey, texts: &ContextTags<'_>) -> Result<String, TraceError> {
        Ok(match &self.kind {
            _ if *key == ContextKey::default() => NONE.to_owned(),
            GroupingKind::Span => format!("span={}", SpanId(key.span)),
            GroupingKind::RootSpan => format!("root-span={}", RootId(key.root)),
            GroupingKind::Tag(name, indices) => {
                let (index, value) = the_set(indices, &key.tags).unwrap_or((usize::MAX, 0));
                format!("{}={}", escaped(name), texts.value(index, value)?)
            }
            // `Grouper::finish` names these groups by the complete context.
            GroupingKind::ContextText => String::new(),
        })
    }
}

/// Returns the first of these indices that has a value, and the value.
fn the_set(indices: &[usize], tags: &[u32]) -> Option<(usize, u32)> {
    let value = |index: &usize| tags.get(*index).map(|value| (*index, *value));
    indices.iter().filter_map(value).find(|(_, value)| *value != 0)
}

/// The group of samples without a value.
const NONE: &str = "(none)";

/// The index of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u32);

impl GroupId {
    /// Creates the id of the group with this index in [`Groups::named`].
    pub(in crate::view) fn new(index: u32) -> Self {
        Self(index)
    }

    /// Returns the index in [`Groups::named`].
    pub(in crate::view) fn index(self) -> usize {
        self.0 as usize
    }
}

/// All groups that are not kept.
pub(in crate::view) const OTHERS: GroupId = GroupId(u32::MAX);

/// Finds the groups of samples.
#[derive(Debug)]
pub(in crate::view) struct Grouper<'a> {
    by: &'a Grouping,
    ids: HashMap<ContextKey, GroupId>,
    /// The groups by [`GroupId`], each with its weight.
    all: Vec<(ContextKey, u64)>,
    /// The group of the last sample: the next sample is mostly in the same group.
    last: Option<(ContextKey, GroupId)>,
    /// The kept groups and the number of the others, if not all are kept.
    kept: Option<(HashSet<ContextKey>, usize)>,
}

impl<'a> Grouper<'a> {
    pub(in crate::view) fn new(by: &'a Grouping) -> Self {
        Self { by, ids: HashMap::new(), all: Vec::new(), last: None, kept: None }
    }

    /// Returns the group of a sample.
    pub(in crate::view) fn of(&mut self, sample: &Sample) -> GroupId {
        let key = self.by.key(sample);
        let id = match self.last {
            Some((last, id)) if last == key => id,
            _ => self.find(key),
        };
        self.last = Some((key, id));
        if let Some((_, weight)) = self.all.get_mut(id.0 as usize) {
            *weight = weight.saturating_add(sample.weight.into());
        }
        id
    }

    /// Returns the number of a sample's group, from 1 on. The number of [`OTHERS`] is above all
    /// others.
    pub(in crate::view) fn number_of(&mut self, sample: &Sample) -> u32 {
        match self.of(sample) {
            OTHERS => OTHERS.0,
            GroupId(id) => id.saturating_add(1),
        }
    }

    /// Returns the number of groups.
    pub(in crate::view) fn len(&self) -> usize {
        self.all.len()
    }

    fn find(&mut self, key: ContextKey) -> GroupId {
        if self.kept.as_ref().is_some_and(|(kept, _)| !kept.contains(&key)) {
            return OTHERS;
        }
        let all = &mut self.all;
        *self.ids.entry(key).or_insert_with(|| {
            all.push((key, 0));
            // Four billion groups do not fit in memory.
            u32::try_from(all.len() - 1).map_or(OTHERS, GroupId)
        })
    }

    /// Returns whether there are more groups than the maximum.
    ///
    /// The caller then reads the samples again, with [`Self::heaviest`].
    pub(in crate::view) fn has_too_many(&self) -> bool {
        let too_many = |max| self.all.len() > max;
        self.kept.is_none() && self.by.kept_max.is_some_and(too_many)
    }

    /// Returns a grouper that keeps the heaviest groups, now that all are known.
    pub(in crate::view) fn heaviest(self) -> Self {
        let Self { by, mut all, .. } = self;
        let max = by.kept_max.unwrap_or(usize::MAX).min(all.len());
        let others = all.len() - max;
        // Groups of equal weight are always kept in the same order.
        all.sort_unstable_by_key(|(key, weight)| (Reverse(*weight), *key));
        let kept = all.into_iter().take(max).map(|(key, _)| key).collect();
        Self { kept: Some((kept, others)), ..Self::new(by) }
    }

    /// Returns the groups with their names.
    pub(in crate::view) fn finish(
        self,
        trace: &LazyTrace,
        tags: &[TagKey],
    ) -> Result<Groups, TraceError> {
        let texts = ContextTags::new(trace, tags);
        let others = self.kept.map_or(0, |(_, others)| others as u64);
        let mut groups = Groups { nouns: self.by.nouns(), others, ..Groups::default() };
        for (key, _) in &self.all {
            let label = match self.by.kind {
                GroupingKind::ContextText => {
                    let context = key.in_words(&texts)?;
                    let label = format!("[{context}]");
                    groups.contexts.push(context);
                    label
                }
                _ => self.by.label(key, &texts)?,
            };
            groups.labels.push(label);
        }
        Ok(groups)
    }
}

/// The groups of a view.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    nouns: [String; 2],
    /// The number of groups that [`OTHERS`] stands for.
    others: u64,
    /// The names by [`GroupId`], escaped for display.
    labels: Vec<String>,
    /// The contexts by [`GroupId`], for a grouping by context.
    contexts: Vec<ContextText>,
}

impl Groups {
    /// Creates groups that do not come from samples, with the noun for one and for several.
    pub(in crate::view) fn named(nouns: [&str; 2], labels: Vec<String>) -> Self {
        Self { nouns: nouns.map(str::to_owned), labels, ..Self::default() }
    }

    /// Returns the noun for one group, such as `span`.
    pub(in crate::view) fn noun(&self) -> &str {
        &self.nouns[0]
    }

    /// Returns the noun for one group, and for several.
    pub(in crate::view) fn nouns(&self) -> &[String; 2] {
        &self.nouns
    }

    /// Returns the number of groups that an id stands for, 1 for a step that is not a group.
    pub(in crate::view) fn number(&self, group: Option<GroupId>) -> u64 {
        if group == Some(OTHERS) { self.others } else { 1 }
    }

    /// Returns the text for `number` groups without a line of their own.
    pub(in crate::view) fn others(&self, number: u64) -> String {
        format!("{number} other {}", self.nouns[usize::from(number != 1)])
    }

    /// Returns the name of a group.
    pub(in crate::view) fn label(&self, id: GroupId) -> &str {
        self.labels.get(id.0 as usize).map_or("(other)", String::as_str)
    }

    /// Returns the context of a group, for a grouping by context.
    pub(in crate::view) fn context(&self, id: GroupId) -> Option<&ContextText> {
        self.context_at(id.0 as usize)
    }

    /// Returns the context of the group at an index.
    pub(in crate::view) fn context_at(&self, index: usize) -> Option<&ContextText> {
        self.contexts.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TagKind;

    #[test]
    fn groups_are_by_span_root_or_tag() {
        assert_eq!("span".parse(), Ok(GroupBy::Span));
        assert_eq!("root-span".parse(), Ok(GroupBy::RootSpan));
        assert_eq!("tag:span".parse(), Ok(GroupBy::Tag("span".to_owned())));
        assert_eq!("task".parse(), Ok(GroupBy::Task));
        for text in ["", "tag", "tag:", "root", "Span", "route"] {
            assert!(text.parse::<GroupBy>().unwrap_err().contains("tag:NAME"), "{text}");
        }
    }

    #[test]
    fn tasks_are_those_that_the_trace_has() {
        let key = |name: &str| TagKey { name: name.to_owned(), kind: TagKind::Text };
        let of = |names: &[&str]| {
            let keys: Vec<TagKey> = names.iter().map(|name| key(name)).collect();
            (Grouping::new(&GroupBy::Task, &keys).kind, Grouping::check(&GroupBy::Task, &keys))
        };
        let tag = |name: &str, at| GroupingKind::Tag(name.to_owned(), vec![at]);
        assert_eq!(of(&["a", VIRTUAL_THREAD_TAG]), (tag(VIRTUAL_THREAD_TAG, 1), Ok(())));
        assert_eq!(of(&[VIRTUAL_THREAD_TAG, TASK_TAG]), (tag(TASK_TAG, 1), Ok(())));
        assert!(of(&["a"]).1.unwrap_err().contains(TASK_TAG));
    }

    #[test]
    fn others_are_counted_in_words() {
        let groups = Groups::named(["span", "spans"], Vec::new());
        assert_eq!(
            (groups.others(1), groups.others(2)),
            ("1 other span".into(), "2 other spans".into())
        );
    }

    #[test]
    fn samples_with_equal_ids_share_a_group() {
        let by = Grouping::new(&GroupBy::RootSpan, &[]);
        let mut grouper = Grouper::new(&by);
        let sample = |root_high, root_span| Sample { root_high, root_span, ..Sample::default() };
        let of: Vec<u32> = [(0, 0), (0, 5), (1, 5), (0, 5), (1, 5), (0, 0)]
            .map(|(high, low)| grouper.of(&sample(high, low)).0)
            .into();
        assert_eq!(of, [0, 1, 2, 1, 2, 0]);
        // A tag that is missing in the trace.
        let by = Grouping::new(&GroupBy::Tag("x".to_owned()), &[]);
        let mut grouper = Grouper::new(&by);
        let tagged = Sample { tags: [1; 10], ..Sample::default() };
        assert_eq!(grouper.of(&tagged), grouper.of(&Sample::default()));
    }

    #[test]
    fn of_too_many_groups_the_heaviest_are_kept() {
        let by = Grouping::new(&GroupBy::Span, &[]).heaviest(2);
        let samples: Vec<Sample> = [(1, 1), (2, 5), (3, 1), (1, 3), (4, 4), (5, 1)]
            .map(|(span, weight)| Sample { span, weight, ..Sample::default() })
            .into();
        let mut grouper = Grouper::new(&by);
        for sample in &samples[..2] {
            grouper.of(sample);
        }
        assert!(!grouper.has_too_many());
        for sample in &samples[2..] {
            grouper.of(sample);
        }
        assert!(grouper.has_too_many());
        // 2 has the weight 5. 1 and 4 have the weight 4 each, and 1 is smaller.
        let mut grouper = grouper.heaviest();
        let of: Vec<GroupId> = samples.iter().map(|sample| grouper.of(sample)).collect();
        let [one, two] = [0, 1].map(GroupId);
        assert_eq!(of, [one, two, OTHERS, one, OTHERS, OTHERS]);
        assert!(!grouper.has_too_many());
        assert_eq!(grouper.kept.map(|(_, others)| others), Some(3));
    }
}
