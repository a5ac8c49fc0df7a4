//! What the samples of a view are grouped by: their span, its root, or a tag.
//!
//! # Invariants
//! - Memory is that of the distinct groups, some 200 bytes each; a view has some more for each distinct
//!   pair of a group and a stack, of the groups that are kept.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use super::calls::Step;
use super::context::{RootId, SpanId, check_name};
use super::escape::escaped;
use super::told::{Context, TagTexts, Told};
use crate::trace::{LazyTrace, Sample, TagKey, TraceError};

/// What samples are grouped by, as a user says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    /// The span.
    Span,
    /// The root of the trace.
    RootSpan,
    /// The value of the tag with this name.
    Tag(String),
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("tag:")) {
            ("span", _) => Ok(Self::Span),
            ("root-span", _) => Ok(Self::RootSpan),
            (_, Some(name)) if !name.is_empty() => Ok(Self::Tag(name.to_owned())),
            _ => Err("expected span, root-span or tag:NAME".to_owned()),
        }
    }
}

/// What samples of a trace are grouped by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grouping {
    kind: Kind,
    /// How many groups are told apart, the heaviest; all if it is not said.
    kept_max: Option<usize>,
}

/// A [`By`] in a trace, or what no user asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Span,
    RootSpan,
    /// Its name, and its places: two if it is of numbers in one program and of texts in another; none if the
    /// trace has no such tag.
    Tag(String, Vec<usize>),
    Context,
}

impl Grouping {
    /// Of a trace with these tags.
    pub(super) fn new(by: &By, keys: &[TagKey]) -> Self {
        let kind = match by {
            By::Span => Kind::Span,
            By::RootSpan => Kind::RootSpan,
            By::Tag(name) => {
                let named = keys.iter().enumerate().filter(|(_, key)| key.name == *name);
                Kind::Tag(name.clone(), named.map(|(place, _)| place).collect())
            }
        };
        Self { kind, kept_max: None }
    }

    /// The same, which tells apart no more than so many groups, the heaviest.
    pub(super) fn heaviest(&self, kept_max: usize) -> Self {
        Self { kept_max: Some(kept_max), ..self.clone() }
    }

    /// By all that is known of a context, for formats that keep that beside the stacks.
    pub fn by_context() -> Self {
        Self { kind: Kind::Context, kept_max: None }
    }

    /// Whether a user has asked for it.
    pub(super) fn is_asked_for(&self) -> bool {
        self.kind != Kind::Context
    }

    /// Refuses a tag that is not there.
    pub(super) fn check(by: &By, keys: &[TagKey]) -> Result<(), String> {
        match by {
            By::Tag(name) => check_name(name, keys),
            By::Span | By::RootSpan => Ok(()),
        }
    }

    /// What a group is one of, and many.
    fn nouns(&self) -> [String; 2] {
        match &self.kind {
            Kind::Span => ["span", "spans"].map(str::to_owned),
            Kind::RootSpan => ["root span", "root spans"].map(str::to_owned),
            Kind::Tag(name, _) => {
                let name = escaped(name);
                [format!("value of {name}"), format!("values of {name}")]
            }
            Kind::Context => ["context", "contexts"].map(str::to_owned),
        }
    }

    /// What of a sample's context tells its group from others.
    fn key(&self, sample: &Sample) -> Told {
        let Told { span, root, tags } = Told::of(sample);
        match &self.kind {
            Kind::Span => Told { span, ..Told::default() },
            Kind::RootSpan => Told { root, ..Told::default() },
            Kind::Tag(_, places) => {
                let mut key = Told::default();
                // One of them at most is set: a process, or library, knows a name once.
                if let Some((place, value)) = the_set(places, &tags) {
                    key.tags[place] = value;
                }
                key
            }
            Kind::Context => Told { span, root, tags },
        }
    }

    /// What a group is called: as it would be filtered by.
    fn label(&self, key: &Told, texts: &TagTexts<'_>) -> Result<String, TraceError> {
        Ok(match &self.kind {
            _ if *key == Told::default() => NONE.to_owned(),
            Kind::Span => format!("span={}", SpanId(key.span)),
            Kind::RootSpan => format!("root-span={}", RootId(key.root)),
            Kind::Tag(name, places) => {
                let (place, value) = the_set(places, &key.tags).unwrap_or((usize::MAX, 0));
                format!("{}={}", escaped(name), texts.value(place, value)?)
            }
            // Its groups are named by all that is known of them, in `Grouper::finish`.
            Kind::Context => String::new(),
        })
    }
}

/// The first of these places at which there is a value, and that.
fn the_set(places: &[usize], tags: &[u32]) -> Option<(usize, u32)> {
    let value = |place: &usize| tags.get(*place).map(|value| (*place, *value));
    places.iter().filter_map(value).find(|(_, value)| *value != 0)
}

/// What samples without are grouped as.
const NONE: &str = "(none)";

/// Index of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u32);

impl GroupId {
    /// The group with this place among those of [`Groups::named`].
    pub(super) fn new(place: u32) -> Self {
        Self(place)
    }

    /// That place.
    pub(super) fn place(self) -> usize {
        self.0 as usize
    }
}

/// All groups that are not told apart.
pub(super) const OTHERS: GroupId = GroupId(u32::MAX);

/// Finds the groups of samples.
#[derive(Debug)]
pub(super) struct Grouper<'a> {
    by: &'a Grouping,
    ids: HashMap<Told, GroupId>,
    /// By [`GroupId`], with what its samples weigh.
    all: Vec<(Told, u64)>,
    /// That of the last sample: the next one is mostly in it too.
    last: Option<(Told, GroupId)>,
    /// Those that are told apart, if not all are, and how many others there are.
    kept: Option<(HashSet<Told>, usize)>,
}

impl<'a> Grouper<'a> {
    pub(super) fn new(by: &'a Grouping) -> Self {
        Self { by, ids: HashMap::new(), all: Vec::new(), last: None, kept: None }
    }

    /// The group of a sample.
    pub(super) fn of(&mut self, sample: &Sample) -> GroupId {
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

    /// The number of its group, from 1 on; of one that is not told apart a number above all others.
    pub(super) fn number_of(&mut self, sample: &Sample) -> u32 {
        match self.of(sample) {
            OTHERS => OTHERS.0,
            GroupId(id) => id.saturating_add(1),
        }
    }

    /// How many groups there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    fn find(&mut self, key: Told) -> GroupId {
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

    /// Whether there are more groups than are told apart, so that the samples have to be looked at once
    /// more, with [`Self::heaviest`].
    pub(super) fn has_too_many(&self) -> bool {
        let too_many = |max| self.all.len() > max;
        self.kept.is_none() && self.by.kept_max.is_some_and(too_many)
    }

    /// The same for the heaviest groups, now that all are known.
    pub(super) fn heaviest(self) -> Self {
        let Self { by, mut all, .. } = self;
        let max = by.kept_max.unwrap_or(usize::MAX).min(all.len());
        let others = all.len() - max;
        // Of groups that weigh the same always the same ones.
        all.sort_unstable_by_key(|(key, weight)| (Reverse(*weight), *key));
        let kept = all.into_iter().take(max).map(|(key, _)| key).collect();
        Self { kept: Some((kept, others)), ..Self::new(by) }
    }

    /// Their names.
    pub(super) fn finish(self, trace: &LazyTrace, tags: &[TagKey]) -> Result<Groups, TraceError> {
        let texts = TagTexts::new(trace, tags);
        let others = self.kept.map_or(0, |(_, others)| others as u64);
        let mut groups = Groups { nouns: self.by.nouns(), others, ..Groups::default() };
        for (key, _) in &self.all {
            let label = match self.by.kind {
                Kind::Context => {
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
    /// How many [`OTHERS`] are.
    others: u64,
    /// By [`GroupId`], safe to show.
    labels: Vec<String>,
    /// The same, if they are by context.
    contexts: Vec<Context>,
}

impl Groups {
    /// Groups that are not of samples: what one is, and many are, and what each is called.
    pub(super) fn named(nouns: [&str; 2], labels: Vec<String>) -> Self {
        Self { nouns: nouns.map(str::to_owned), labels, ..Self::default() }
    }

    /// What they are: `span`.
    pub(super) fn noun(&self) -> &str {
        &self.nouns[0]
    }

    /// What one is, and many are.
    pub(super) fn nouns(&self) -> &[String; 2] {
        &self.nouns
    }

    /// How many groups a step stands for.
    pub(super) fn number<Id>(&self, step: &Step<Id>) -> u64 {
        if is_others(step) { self.others } else { 1 }
    }

    /// So many of them that have no line of their own.
    pub(super) fn others(&self, number: u64) -> String {
        format!("{number} other {}", self.nouns[usize::from(number != 1)])
    }

    /// The name of a group.
    pub(super) fn label(&self, id: GroupId) -> &str {
        self.labels.get(id.0 as usize).map_or("(other)", String::as_str)
    }

    /// What it stands for, if the groups are by context.
    pub(super) fn context(&self, id: GroupId) -> Option<&Context> {
        self.context_at(id.0 as usize)
    }

    /// The same of the group at a place.
    pub(super) fn context_at(&self, place: usize) -> Option<&Context> {
        self.contexts.get(place)
    }
}

/// Whether a step stands for groups that are not told apart.
pub(super) fn is_others<Id>(step: &Step<Id>) -> bool {
    matches!(step, Step::Group(OTHERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_by_span_root_or_tag() {
        assert_eq!("span".parse(), Ok(By::Span));
        assert_eq!("root-span".parse(), Ok(By::RootSpan));
        assert_eq!("tag:span".parse(), Ok(By::Tag("span".to_owned())));
        for text in ["", "tag", "tag:", "root", "Span", "route"] {
            assert!(text.parse::<By>().unwrap_err().contains("tag:NAME"), "{text}");
        }
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
    fn samples_of_equal_ids_are_of_one_group() {
        let by = Grouping::new(&By::RootSpan, &[]);
        let mut grouper = Grouper::new(&by);
        let sample = |root_high, root_span| Sample { root_high, root_span, ..Sample::default() };
        let of: Vec<u32> = [(0, 0), (0, 5), (1, 5), (0, 5), (1, 5), (0, 0)]
            .map(|(high, low)| grouper.of(&sample(high, low)).0)
            .into();
        assert_eq!(of, [0, 1, 2, 1, 2, 0]);
        // A tag that the trace lacks.
        let by = Grouping::new(&By::Tag("x".to_owned()), &[]);
        let mut grouper = Grouper::new(&by);
        let tagged = Sample { tags: [1; 10], ..Sample::default() };
        assert_eq!(grouper.of(&tagged), grouper.of(&Sample::default()));
    }

    #[test]
    fn of_too_many_groups_the_heaviest_are_told_apart() {
        let by = Grouping::new(&By::Span, &[]).heaviest(2);
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
        // 2 weighs 5; 1 and 4 weigh 4 each, and 1 is the smaller.
        let mut grouper = grouper.heaviest();
        let of: Vec<GroupId> = samples.iter().map(|sample| grouper.of(sample)).collect();
        let [one, two] = [0, 1].map(GroupId);
        assert_eq!(of, [one, two, OTHERS, one, OTHERS, OTHERS]);
        assert!(!grouper.has_too_many());
        assert_eq!(grouper.kept.map(|(_, others)| others), Some(3));
    }
}
