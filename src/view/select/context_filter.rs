//! Keeps samples by their context: spans, root spans and tags, as users write them.
//!
//! Invariant: texts are looked up once. Samples are compared by numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::trace::{Sample, TagKey, TagKind, TextId};
use crate::view::text::number::counted;
use crate::view::text::span_id::{RootId, SpanId};

/// Maximum number of tags in a message. Traces that traceprof writes have no more.
const NAMED_MAX: usize = 10;

/// A tag and its required value, as a user writes them: `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagValue(String);

impl TagValue {
    /// Splits the text into the name of a known tag and its value.
    ///
    /// A name may contain `=`, so the longest matching name wins.
    fn parts(&self, keys: &[TagKey]) -> (&str, &str) {
        let fits = |key: &TagKey| self.0.strip_prefix(&key.name)?.strip_prefix('=');
        let fitting = keys.iter().filter_map(fits).min_by_key(|value| value.len());
        let first = || self.0.match_indices('=').map(|(at, _)| at).find(|at| *at != 0);
        let name_len = match fitting {
            Some(value) => self.0.len() - value.len() - 1,
            None => first().unwrap_or(0),
        };
        (&self.0[..name_len], self.0.get(name_len + 1..).unwrap_or_default())
    }

    /// Returns an error if the trace does not have this tag.
    pub(in crate::view) fn check(&self, keys: &[TagKey]) -> Result<(), String> {
        check_name(self.parts(keys).0, keys)
    }
}

impl FromStr for TagValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The name must not be empty.
        match text.rfind('=') {
            None | Some(0) => Err("expected NAME=VALUE".to_owned()),
            Some(_) => Ok(Self(text.to_owned())),
        }
    }
}

impl fmt::Display for TagValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The contexts that a view keeps. The default keeps every sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContextFilter {
    /// Keeps samples of any of these spans. Empty keeps all.
    spans: BTreeSet<SpanId>,
    /// Keeps samples of any of these roots. Empty keeps all.
    roots: BTreeSet<RootId>,
    /// The tags that a sample must have. All of them must match.
    tags: Vec<TagFilter>,
}

/// The kept values of one tag.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TagFilter {
    text: String,
    /// The indices of the tag, each with the wanted values.
    ///
    /// Empty if the trace has no such tag. There are two if it has numbers in one program or
    /// library and texts in another. A value is never 0, which means no value.
    indices: Vec<(usize, BTreeSet<u32>)>,
}

/// Finds the ids of a text, or returns why it cannot.
pub(in crate::view) type FindText<'a> = &'a dyn Fn(&str) -> Result<BTreeSet<TextId>, String>;

impl ContextFilter {
    /// Creates a filter for any of these spans and any of these roots. Empty keeps all.
    pub(in crate::view) fn new(spans: &[SpanId], roots: &[RootId]) -> Self {
        let (spans, roots) = (spans.iter().copied(), roots.iter().copied());
        Self { spans: spans.collect(), roots: roots.collect(), tags: Vec::new() }
    }

    /// Adds the wanted tags. A tag that the trace does not have matches no sample.
    pub(in crate::view) fn with_tags(
        mut self,
        wanted: &[TagValue],
        keys: &[TagKey],
        find: FindText<'_>,
    ) -> Result<Self, String> {
        let mut by_name: BTreeMap<&str, Vec<(&TagValue, &str)>> = BTreeMap::new();
        for tag in wanted {
            let (name, value) = tag.parts(keys);
            by_name.entry(name).or_default().push((tag, value));
        }
        for (name, wanted) in by_name {
            let text: Vec<String> = wanted.iter().map(|(tag, _)| tag.to_string()).collect();
            let text = text.join(" or ");
            let named = || keys.iter().enumerate().filter(|(_, key)| key.name == name);
            let has_texts = named().any(|(_, key)| key.kind == TagKind::Text);
            let mut indices = Vec::new();
            for (index, key) in named() {
                let mut values = BTreeSet::new();
                for (_, value) in &wanted {
                    match key.kind {
                        TagKind::Number => match number(name, value) {
                            Ok(number) => values.extend([number]),
                            // The value may be one of the texts.
                            Err(_) if has_texts => {}
                            Err(error) => return Err(error),
                        },
                        TagKind::Text => {
                            values.extend(find(value)?.into_iter().map(|id| id.0.wrapping_add(1)));
                        }
                    }
                }
                values.remove(&0);
                indices.push((index, values));
            }
            self.tags.push(TagFilter { text, indices });
        }
        Ok(self)
    }

    /// Returns whether the filter keeps a sample.
    pub fn has(&self, sample: &Sample) -> bool {
        let in_span = || SpanId::of(sample).is_some_and(|id| self.spans.contains(&id));
        let in_root = || RootId::of(sample).is_some_and(|id| self.roots.contains(&id));
        (self.spans.is_empty() || in_span())
            && (self.roots.is_empty() || in_root())
            && self.tags.iter().all(|tag| tag.has(sample))
    }

    /// Returns whether the filter keeps all samples.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.roots.is_empty() && self.tags.is_empty()
    }

    /// Returns the filter as text.
    pub(in crate::view) fn texts(&self) -> impl Iterator<Item = String> {
        let spans = any_of("span", &self.spans);
        let roots = any_of("root span", &self.roots);
        let tags = self.tags.iter().map(|tag| tag.text.clone());
        spans.into_iter().chain(roots).chain(tags)
    }
}

impl TagFilter {
    fn has(&self, sample: &Sample) -> bool {
        let has = |(index, values): &(usize, BTreeSet<u32>)| {
            sample.tags.get(*index).is_some_and(|value| values.contains(value))
        };
        self.indices.iter().any(has)
    }
}

fn any_of<Id: fmt::Display>(noun: &str, ids: &BTreeSet<Id>) -> Option<String> {
    let all: Vec<String> = ids.iter().map(Id::to_string).collect();
    (!all.is_empty()).then(|| format!("{noun} {}", all.join(" or ")))
}

fn number(name: &str, value: &str) -> Result<u32, String> {
    match value.parse() {
        Ok(0) => Err(format!(
            "{name}={value}: 0 is not a value; --by tag:{name} shows samples without one"
        )),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{name}={value}: the values of this tag are numbers")),
    }
}

/// Returns an error if the trace does not have this tag.
pub(in crate::view) fn check_name(name: &str, keys: &[TagKey]) -> Result<(), String> {
    if keys.iter().any(|key| key.name == name) {
        return Ok(());
    }
    let named: Vec<String> =
        keys.iter().take(NAMED_MAX).map(|key| format!("{:?}", key.name)).collect();
    match named.len() {
        0 => Err(format!("no tag is called {name:?}: the trace has none. {HOW}")),
        number => {
            let (number, named) = (counted(number as u64, "tag"), named.join(", "));
            Err(format!("no tag is called {name:?}; the trace has {number}: {named}"))
        }
    }
}

/// The explanation in messages of how contexts get into a trace.
pub(super) const HOW: &str = "Applications publish spans and tags while they are recorded, with \
    the traceprof-context library or the thread context of OpenTelemetry";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_a_name_and_a_value() {
        let parts = |text: &str, names: &[&str]| {
            let key = |name: &&str| TagKey { name: (*name).to_owned(), kind: TagKind::Text };
            let keys: Vec<TagKey> = names.iter().map(key).collect();
            let tag: TagValue = text.parse().unwrap();
            let (name, value) = tag.parts(&keys);
            (name.to_owned(), value.to_owned())
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for names in [&[][..], &["route"], &["route", "route=/a"], &["route=", "rout", "/a?b"]] {
            assert_eq!(parts("route=", names), pair("route", ""));
        }
        assert_eq!(parts("route=/a?b=c", &[]), pair("route", "/a?b=c"));
        assert_eq!(parts("route=/a?b=c", &["route", "other"]), pair("route", "/a?b=c"));
        assert_eq!(parts("route=/a?b=c", &["route", "route=/a?b"]), pair("route=/a?b", "c"));
        assert_eq!(parts("route=/a?b=c", &["route=/a?b", "route"]), pair("route=/a?b", "c"));
        assert_eq!(parts("route=/a?b=c", &["route=/a?b=c"]), pair("route", "/a?b=c"));
        assert_eq!(parts("=a=b", &[]), pair("=a", "b"));
        assert_eq!(parts("ä=ö=ü", &["ä=ö"]), pair("ä=ö", "ü"));
        assert!("route".parse::<TagValue>().is_err() && "=x".parse::<TagValue>().is_err());
    }

    fn keys() -> Vec<TagKey> {
        let key = |name: &str, kind| TagKey { name: name.to_owned(), kind };
        vec![key("count", TagKind::Number), key("route", TagKind::Text)]
    }

    fn tags(wanted: &[&str]) -> Result<ContextFilter, String> {
        let wanted: Vec<TagValue> = wanted.iter().map(|text| text.parse().unwrap()).collect();
        let find = |text: &str| {
            Ok(match text {
                "/a" => [TextId(4)].into(),
                "/b" => [TextId(5), TextId(9)].into(),
                _ => BTreeSet::new(),
            })
        };
        ContextFilter::default().with_tags(&wanted, &keys(), &find)
    }

    #[test]
    fn tags_of_one_name_are_any_and_of_several_all() {
        let sample = |count, route| Sample {
            tags: [count, route, 0, 0, 0, 0, 0, 0, 0, 0],
            ..Sample::default()
        };
        let samples = [sample(0, 0), sample(5, 5), sample(5, 6), sample(7, 10), sample(0, 7)];
        let kept = |wanted: &[&str]| {
            let filter = tags(wanted).unwrap();
            samples.iter().map(|sample| u8::from(filter.has(sample))).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[]), [1; 5]);
        assert_eq!(kept(&["route=/a"]), [0, 1, 0, 0, 0]);
        assert_eq!(kept(&["route=/a", "route=/b"]), [0, 1, 1, 1, 0]);
        assert_eq!(kept(&["route=/b", "count=5"]), [0, 0, 1, 0, 0]);
        assert_eq!(kept(&["route=/other"]), [0; 5]);
        assert_eq!(kept(&["missing=1"]), [0; 5]);
        assert!(tags(&["count=x"]).unwrap_err().contains("are numbers"));
        assert!(tags(&["count=0"]).unwrap_err().contains("--by tag:count"));
    }

    #[test]
    fn a_tag_with_numbers_and_texts_is_searched_as_both() {
        let key = |kind| TagKey { name: "code".to_owned(), kind };
        let keys = [key(TagKind::Number), key(TagKind::Text)];
        let find =
            |text: &str| Ok(if text == "500" { [TextId(4)].into() } else { BTreeSet::new() });
        let samples = [[500, 0], [0, 5], [5, 0], [0, 500]].map(|[number, text]| Sample {
            tags: [number, text, 0, 0, 0, 0, 0, 0, 0, 0],
            ..Sample::default()
        });
        for keys in [keys.clone(), [keys[1].clone(), keys[0].clone()]] {
            let is_swapped = keys[0].kind == TagKind::Text;
            let kept = |text: &str| {
                let wanted = [text.parse().unwrap()];
                let filter = ContextFilter::default().with_tags(&wanted, &keys, &find).unwrap();
                samples.clone().map(|mut sample| {
                    sample.tags[..2].rotate_left(usize::from(is_swapped));
                    u8::from(filter.has(&sample))
                })
            };
            assert_eq!(kept("code=500"), [1, 1, 0, 0]);
            assert_eq!(kept("code=none"), [0; 4]);
            assert_eq!(kept("code=0"), [0; 4]);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        assert_eq!(check_name("route", &keys()), Ok(()));
        let error = check_name("rout", &keys()).unwrap_err();
        assert_eq!(error, "no tag is called \"rout\"; the trace has 2 tags: \"count\", \"route\"");
        assert!(check_name("rout", &[]).unwrap_err().contains("traceprof-context"));
    }

    #[test]
    fn spans_and_roots_match_any_of_the_named_ids() {
        let in_span =
            |span, root_span, root_high| Sample { span, root_span, root_high, ..Sample::default() };
        let samples = [in_span(0, 0, 0), in_span(1, 7, 0), in_span(2, 7, 1), in_span(3, 0, 0)];
        let kept = |spans: &[u64], roots: &[u128]| {
            let spans: Vec<SpanId> = spans.iter().copied().map(SpanId).collect();
            let roots: Vec<RootId> = roots.iter().copied().map(RootId).collect();
            let filter = ContextFilter::new(&spans, &roots);
            samples.iter().map(|sample| u8::from(filter.has(sample))).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[1, 3], &[]), [0, 1, 0, 1]);
        assert_eq!(kept(&[], &[7]), [0, 1, 0, 0]);
        assert_eq!(kept(&[1, 2], &[7 | 1 << 64]), [0, 0, 1, 0]);
    }
}
