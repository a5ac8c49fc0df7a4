//! The spans that a thread works on, as markers.

use serde_json::{Map, Value};

use super::categories::OTHER;
use super::milliseconds;
use super::thread_tables::ThreadTables;
use crate::trace::{Sample, TraceError};
use crate::view::recording::context::{ContextKey, ContextTags, TagText};

/// The name of the markers and of their schema.
pub(super) const NAME: &str = "Span";
/// The fields of a marker.
pub(super) const SPAN: &str = "span";
pub(super) const ROOT: &str = "root";
/// The phase of a marker that has a start and an end.
const INTERVAL: u32 = 1;

/// The contexts of a thread in time order.
#[derive(Debug, Default)]
pub(super) struct SpanMarkers {
    all: Vec<SpanMarker>,
}

/// Consecutive samples with one context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SpanMarker {
    context: ContextKey,
    from_ns: u64,
    to_ns: u64,
}

/// Returns the field of the tag with this index.
pub(super) fn tag_key(index: usize) -> String {
    format!("tag{index}")
}

impl SpanMarkers {
    /// Adds a sample and the time that it stands for.
    pub(super) fn add(&mut self, sample: &Sample, from_ns: u64, to_ns: u64) {
        let context = ContextKey::of(sample);
        match self.all.last_mut() {
            Some(last) if last.context == context => last.to_ns = to_ns,
            // Spans of a thread do not overlap.
            Some(last) => {
                let from_ns = from_ns.max(last.to_ns);
                self.all.push(SpanMarker { context, from_ns, to_ns });
            }
            None => self.all.push(SpanMarker { context, from_ns, to_ns }),
        }
    }

    /// Writes the markers that have a span or a tag.
    pub(super) fn write(
        &self,
        tables: &mut ThreadTables<'_>,
        tags: &ContextTags<'_>,
        begin_ns: u64,
    ) -> Result<(), TraceError> {
        let name = tables.string(NAME);
        for span in self.all.iter().filter(|span| span.context != ContextKey::default()) {
            let data = fields(&span.context, tags)?;
            let markers = &mut tables.thread.markers;
            let since = |time_ns: u64| milliseconds(time_ns.saturating_sub(begin_ns));
            markers.name.push(name);
            markers.category.push(OTHER.0);
            markers.phase.push(INTERVAL);
            markers.start_time.push(since(span.from_ns));
            markers.end_time.push(since(span.to_ns));
            markers.data.push(data);
            markers.length = markers.data.len();
        }
        Ok(())
    }
}

fn fields(context: &ContextKey, tags: &ContextTags<'_>) -> Result<Map<String, Value>, TraceError> {
    let words = context.in_words(tags)?;
    let mut fields = Map::new();
    fields.insert("type".to_owned(), NAME.into());
    fields.extend(words.span.map(|span| (SPAN.to_owned(), span.to_string().into())));
    fields.extend(words.root.map(|root| (ROOT.to_owned(), root.to_string().into())));
    let indices = (0..).zip(&context.tags).filter(|(_, value)| **value != 0);
    for ((index, _), (_, word)) in indices.zip(words.tags) {
        let value = match word {
            TagText::Number(number) => number.to_string(),
            TagText::Text(text) => (*text).to_owned(),
        };
        fields.insert(tag_key(index), value.into());
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_samples_of_one_context_are_one_span() {
        let mut spans = SpanMarkers::default();
        let sample = |span, root_span| Sample { span, root_span, ..Sample::default() };
        for (sample, from_ns, to_ns) in [
            (sample(1, 1), 0, 10),
            (sample(1, 1), 20, 30),
            (sample(2, 1), 25, 40),
            (sample(0, 0), 50, 60),
            (sample(1, 1), 70, 80),
        ] {
            spans.add(&sample, from_ns, to_ns);
        }
        let seen: Vec<_> =
            spans.all.iter().map(|span| (span.context.span, span.from_ns, span.to_ns)).collect();
        assert_eq!(seen, [(1, 0, 30), (2, 30, 40), (0, 50, 60), (1, 70, 80)]);
    }
}
