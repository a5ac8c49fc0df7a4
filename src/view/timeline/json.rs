//! The timeline as JSON Lines, one object per line.
//!
//! Times are nanoseconds since the start of the recording.

use std::io::{self, Write};

use serde_json::{Map, Value as Json, json};
use traceprof_abi::storage::log::flags::CARRIED;

use super::folded_children::FoldedChildren;
use super::thread_samples::SampleShare;
use super::{TimelineContext, ViewError};
use crate::trace::{LazyCall, LazyNode, Sample, ThreadSummary};
use crate::view::json::JsonSummary;
use crate::view::profile::sample_totals::SampleTotals;
use crate::view::recording::context::{ContextKey, TagText};
use crate::view::recording::lock::holds_lock;
use crate::view::recording::mode::{Mode, is_wall};
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::waits::{call_name, state_name};
use crate::view::select::selection::Selected;
use crate::view::text::escape::json_escaped;

/// Writes an object.
pub(super) fn line(object: Map<String, Json>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", json_escaped(&Json::Object(object).to_string()))
}

/// Writes the summary.
pub(super) fn recording(
    recording: &RecordingInfo,
    totals: SampleTotals,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut object = JsonSummary::new(recording, totals).object();
    object.insert("kind".to_owned(), json!("recording"));
    line(object, out)
}

/// Writes the time range of the objects that follow.
pub(super) fn window(
    recording: &RecordingInfo,
    selected: &Selected,
    out: &mut dyn Write,
) -> io::Result<()> {
    let base_ns = recording.begin_ns().unwrap_or(0);
    let since = |time_ns: Option<u64>| time_ns.map(|time_ns| time_ns.saturating_sub(base_ns));
    let windows = selected.windows.iter();
    let mut object = Map::new();
    let fields = [
        ("kind", json!("window")),
        ("from_ns", json!(since(windows.clone().map(|it| it.from_ns).min()))),
        ("to_ns", json!(since(windows.map(|it| it.to_ns).max()))),
    ];
    put(&mut object, fields);
    line(object, out)
}

/// Returns the object of a thread with its selected samples.
pub(super) fn thread(summary: &ThreadSummary, all: SampleShare) -> Map<String, Json> {
    let mut object = of_thread("thread", summary);
    object.insert("name".to_owned(), json!(summary.thread.shown_name()));
    if summary.thread.runtime_name.is_some() {
        object.insert("comm".to_owned(), json!(summary.thread.name));
    }
    object.insert("samples".to_owned(), json!(all.samples));
    object.insert("weight".to_owned(), json!(all.weight));
    object
}

/// Returns an object of a thread. The number distinguishes threads that had the same id.
fn of_thread(kind: &str, summary: &ThreadSummary) -> Map<String, Json> {
    let number = u64::from(summary.id.0) + 1;
    let (pid, tid) = (json!(summary.thread.pid), json!(summary.thread.tid));
    let mut object = Map::new();
    put(
        &mut object,
        [("kind", json!(kind)), ("thread", json!(number)), ("pid", pid), ("tid", tid)],
    );
    object
}

fn put<const N: usize>(object: &mut Map<String, Json>, fields: [(&str, Json); N]) {
    object.extend(fields.map(|(key, value)| (key.to_owned(), value)));
}

/// Writes the objects of one thread.
pub(super) struct ObjectWriter<'a> {
    pub(super) shared: &'a TimelineContext<'a>,
    pub(super) thread: &'a ThreadSummary,
    /// The start of the window.
    pub(super) from_ns: u64,
}

impl ObjectWriter<'_> {
    fn object(&self, kind: &str, depth: usize) -> Map<String, Json> {
        let mut object = of_thread(kind, self.thread);
        object.insert("depth".to_owned(), json!(depth));
        object
    }

    /// Writes a call. Its times cover all its samples, whatever the window.
    pub(super) fn call(
        &self,
        (call, share): (&LazyCall, SampleShare),
        depth: usize,
        out: &mut dyn Write,
    ) -> Result<(), ViewError> {
        let shared = self.shared;
        let known = call.location().map(|location| shared.names.of(location)).transpose()?;
        let (known, location) = (known.as_deref(), known.as_deref().map(|it| &it.location));
        let wall_us = (shared.filter.mode == Mode::Wall).then_some(share.weight);
        let line_number = location.map(|it| it.line).filter(|line| *line > 0);
        let mut object = self.object("call", depth);
        put(
            &mut object,
            [
                ("name", json!(known.map_or("[unknown]", |it| &it.function))),
                ("module", json!(known.and_then(|it| it.module.as_deref()))),
                ("file", json!(location.and_then(|it| it.file.as_deref()))),
                ("line", json!(line_number)),
                ("svma", json!(location.map(|it| it.svma).filter(|svma| *svma > 0))),
                ("inlined", json!(location.is_some_and(|it| it.inline_parent.is_some()))),
                ("from_ns", json!(self.since(call.first_ns()))),
                ("to_ns", json!(self.since(call.last_ns()))),
                ("continued", json!(call.first_ns() < self.from_ns)),
                ("samples", json!(share.samples)),
                ("weight", json!(share.weight)),
                ("wall_us", json!(wall_us)),
                ("begin_lost", json!(call.begin_lost())),
                ("end_lost", json!(call.end_lost())),
                ("unfinished", json!(call.unfinished())),
            ],
        );
        Ok(line(object, out)?)
    }

    /// Writes a leaf.
    pub(super) fn leaf(
        &self,
        leaf: &LazyNode,
        depth: usize,
        out: &mut dyn Write,
    ) -> Result<(), ViewError> {
        let since = |time_ns: &u64| json!(self.since(*time_ns));
        let mut object = self.object(kind(leaf), depth);
        match leaf {
            // The walk handles calls itself.
            LazyNode::Call(_) => return Ok(()),
            LazyNode::Sample(sample) => self.put_sample(&mut object, sample)?,
            LazyNode::Gap { from_ns, to_ns } => {
                put(&mut object, [("from_ns", since(from_ns)), ("to_ns", since(to_ns))]);
            }
            LazyNode::ThreadStart { time_ns } | LazyNode::ThreadExit { time_ns } => {
                put(&mut object, [("time_ns", since(time_ns))]);
            }
            LazyNode::Lost { from_ns, to_ns, samples } => {
                // The end of a loss at the end of the trace is unknown.
                let to_ns = if *to_ns == u64::MAX { Json::Null } else { since(to_ns) };
                let (from_ns, samples) = (since(from_ns), json!(samples));
                put(&mut object, [("from_ns", from_ns), ("to_ns", to_ns), ("samples", samples)]);
            }
        }
        Ok(line(object, out)?)
    }

    /// Writes the nodes without objects of their own. `whole` is the weight that shares refer to.
    pub(super) fn folded(
        &self,
        folded: &mut FoldedChildren,
        (whole, depth): (u64, usize),
        out: &mut dyn Write,
    ) -> io::Result<()> {
        for fields in folded.take_objects(whole, self.shared.filter.mode) {
            let mut object = self.object("", depth);
            object.extend(fields);
            line(object, out)?;
        }
        Ok(())
    }

    fn since(&self, time_ns: u64) -> u64 {
        time_ns.saturating_sub(self.shared.base_ns)
    }

    fn put_sample(&self, object: &mut Map<String, Json>, sample: &Sample) -> Result<(), ViewError> {
        let on = sample.waits_on.map(|id| self.shared.trace.text(id)).transpose()?;
        let context = ContextKey::of(sample).in_words(&self.shared.tags)?;
        let tags = context.tags.iter().map(|(name, value)| {
            let value = match value {
                TagText::Number(number) => json!(number),
                TagText::Text(text) => json!(**text),
            };
            (name.to_string(), value)
        });
        let tags: Map<String, Json> = tags.collect();
        let unit = if is_wall(sample) { "microseconds" } else { "periods" };
        put(
            object,
            [
                ("time_ns", json!(self.since(sample.time_ns))),
                ("weight", json!(sample.weight)),
                ("weight_unit", json!(unit)),
                ("state", json!(state_name(sample.state))),
                ("syscall", json!(sample.syscall.map(call_name))),
                ("waits_on", json!(on)),
                ("trace_id", json!(sample.trace_id)),
                ("span", json!(context.span.map(|id| id.to_string()))),
                ("root_span", json!(context.root.map(|id| id.to_string()))),
                ("tags", Json::Object(tags)),
                ("inferred", json!(sample.flags & CARRIED != 0)),
            ],
        );
        if holds_lock(sample) {
            object.insert("holds_lock".to_owned(), json!(true));
        }
        Ok(())
    }
}

fn kind(leaf: &LazyNode) -> &'static str {
    match leaf {
        LazyNode::Call(_) => "call",
        LazyNode::Sample(_) => "sample",
        LazyNode::Gap { .. } => "gap",
        LazyNode::ThreadStart { .. } => "thread_start",
        LazyNode::ThreadExit { .. } => "thread_exit",
        LazyNode::Lost { .. } => "lost",
    }
}
