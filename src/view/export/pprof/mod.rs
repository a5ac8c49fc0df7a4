//! Profiles in the pprof format: gzipped protobuf, which `go tool pprof` and many other tools read.
//!
//! Values are numbers of samples, and nanoseconds of CPU or wall clock time. Labels give the
//! process, the thread, the span, the root and the tags.
//!
//! # Invariants
//! - Each value adds up to the total of all samples, except those of omitted threads.
//! - Addresses are those in the module's file: a module is a mapping that begins at 0. The first is
//!   that of the program, if it is known.

mod pprof_tables;
mod program;
pub(super) mod proto;

use std::borrow::Cow;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use crate::trace::{FrameKind, LocationId};
use crate::view::export::ExportOptions;
use crate::view::profile::call_tree::{CallNode, Count, StackStep};
use crate::view::profile::idle::idle_threads;
use crate::view::profile::processes::Processes;
use crate::view::profile::step_names::StepNames;
use crate::view::profile::thread_profile::{Profile, ThreadProfile};
use crate::view::recording::context::{ContextText, TagText};
use crate::view::recording::mode::Mode;
use crate::view::text::escape::escaped;
use pprof_tables::PprofTables;
use proto::{Label, Sample, ValueType};

/// Labels that traceprof itself defines.
const OWN_LABELS: [&str; 7] =
    ["thread", "tid", PROCESS, "pid", "span_id", "root_span_id", "trace_id"];
/// The label with the name of the process, if there are several.
pub(super) const PROCESS: &str = "process";
pub(super) const TAG_PREFIX: &str = "tag.";
/// The placeholder for an empty text.
const EMPTY: &str = "(empty)";

/// Writes all stacks.
pub(super) fn write(
    profile: &Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    let (made, _) = make(profile, options);
    gzip.write_all(&made.encode_to_vec())?;
    gzip.finish().map(drop)
}

/// Builds the profile with all stacks. Returns it and the kind of each location's code, if known.
pub(super) fn make(
    profile: &Profile,
    options: &ExportOptions,
) -> (proto::Profile, Vec<Option<FrameKind>>) {
    let mut made = PprofBuilder::new(profile);
    let idle = if options.no_idle { idle_threads(profile) } else { Vec::new() };
    for (thread_index, thread) in profile.threads.iter().enumerate() {
        if !idle.get(thread_index).copied().unwrap_or(false) {
            made.add(thread);
        }
    }
    made.finish()
}

/// Builds a pprof profile.
struct PprofBuilder<'a> {
    profile: &'a Profile,
    names: StepNames,
    processes: Processes,
    tables: PprofTables<'a>,
    samples: Vec<Sample>,
}

impl<'a> PprofBuilder<'a> {
    fn new(profile: &'a Profile) -> Self {
        let names = StepNames::of_functions(profile);
        let processes = Processes::of(profile);
        let mut tables = PprofTables::new(profile);
        if let Some(program) = program::program(profile) {
            tables.mapping(program, 0, false);
        }
        Self { profile, names, processes, tables, samples: Vec::new() }
    }

    /// Adds the samples of a thread.
    fn add(&mut self, thread: &ThreadProfile) {
        let of_thread = self.thread_labels(thread);
        let calls = thread.tree.calls();
        for (index, call) in calls.iter().enumerate() {
            if call.own == Count::default() {
                continue;
            }
            let path = path(calls, index);
            let context = match path.last() {
                Some(StackStep::Group(group)) => {
                    self.profile.groups.as_ref().and_then(|groups| groups.context(*group))
                }
                _ => None,
            };
            let mut label = of_thread.clone();
            if let Some(context) = context {
                self.context_labels(context, &mut label);
            }
            let location_id = self.locations(&path);
            let value = self.values(call.own);
            self.samples.push(Sample { location_id, value, label });
        }
    }

    /// Returns the locations of a stack that is given leaf first.
    fn locations(&mut self, path: &[StackStep<LocationId>]) -> Vec<u64> {
        let mut ids = Vec::new();
        let mut rest = path;
        while let Some((step, outer)) = rest.split_first() {
            rest = outer;
            match step {
                StackStep::Thread | StackStep::Group(_) | StackStep::ContextText(_) => {}
                StackStep::Frame(location) => {
                    let inlined = self.tables.inlined(*location, outer);
                    rest = outer.get(inlined.len()..).unwrap_or_default();
                    ids.push(self.tables.code(*location, &inlined));
                }
                StackStep::Truncated
                | StackStep::Dropped
                | StackStep::Empty
                | StackStep::Wait(_) => {
                    let name = self.names.text(step.map(|location| self.names.id(location)));
                    ids.push(self.tables.mark(name));
                }
            }
        }
        ids
    }

    fn values(&self, count: Count) -> Vec<i64> {
        let time = match (self.profile.mode, self.profile.recording.period_ns()) {
            (Mode::Wall, _) => count.weight.saturating_mul(1000),
            (Mode::Cpu, Some(period_ns)) => (count.weight as f64 * period_ns).round() as u64,
            (Mode::Cpu, None) => count.weight,
        };
        [count.samples, time].map(signed).into()
    }

    fn thread_labels(&mut self, profile: &ThreadProfile) -> Vec<Label> {
        let thread = &profile.thread;
        let name = self.text("thread", &escaped(thread.shown_name()));
        let mut labels = vec![name, self.number("tid", thread.tid), self.number("pid", thread.pid)];
        if self.processes.are_several()
            && let Some(process) = self.processes.name(thread.pid).map(str::to_owned)
        {
            labels.push(self.text(PROCESS, &process));
        }
        labels
    }

    fn context_labels(&mut self, context: &ContextText, labels: &mut Vec<Label>) {
        if let Some(span) = context.span {
            labels.push(self.text("span_id", &span.to_string()));
        }
        if let Some(root) = context.root {
            let key = if root.is_trace_id() { "trace_id" } else { "root_span_id" };
            labels.push(self.text(key, &root.to_string()));
        }
        for (name, value) in &context.tags {
            let key = tag_key(name);
            labels.push(match value {
                TagText::Number(number) => self.number(&key, *number),
                TagText::Text(text) => self.text(&key, text),
            });
        }
    }

    fn text(&mut self, key: &str, text: &str) -> Label {
        // A label without a text and a number would count as missing.
        let text = if text.is_empty() { EMPTY } else { text };
        let (key, text) = (self.tables.string(key), self.tables.string(text));
        Label { key, text, number: 0 }
    }

    fn number(&mut self, key: &str, number: u32) -> Label {
        Label { key: self.tables.string(key), text: 0, number: number.into() }
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { kind: self.tables.string(kind), unit: self.tables.string(unit) }
    }

    fn finish(mut self) -> (proto::Profile, Vec<Option<FrameKind>>) {
        let recording = &self.profile.recording;
        let (kind, unit, period_ns) = match (self.profile.mode, recording.period_ns()) {
            (Mode::Wall, _) => {
                ("wall", "nanoseconds", recording.number("wall_interval_ns").unwrap_or(0))
            }
            (Mode::Cpu, Some(period_ns)) => ("cpu", "nanoseconds", period_ns.round() as u64),
            // The length of a period is missing in the trace.
            (Mode::Cpu, None) => ("periods", "count", 1),
        };
        let begin_ns = recording.begin_ns().unwrap_or(0);
        let whole = (begin_ns, recording.end_ns().unwrap_or(begin_ns));
        let (from_ns, to_ns) = match (&recording.window, self.profile.times_ns) {
            (Some(_), Some(times_ns)) => times_ns,
            _ => whole,
        };
        let realtime_ns = recording.number("start_realtime_ns");
        let time_ns =
            realtime_ns.map_or(0, |ns| ns.saturating_add(from_ns.saturating_sub(begin_ns)));
        let of_samples = self.value_type("samples", "count");
        let of_time = self.value_type(kind, unit);
        let default_sample_type = self.tables.string(kind);
        let (profile, kinds) = self.tables.finish();
        let profile = proto::Profile {
            sample_type: vec![of_samples, of_time],
            sample: self.samples,
            time_nanos: signed(time_ns),
            duration_nanos: signed(to_ns.saturating_sub(from_ns)),
            period_type: Some(of_time),
            period: signed(period_ns),
            default_sample_type,
            ..profile
        };
        (profile, kinds)
    }
}

/// Returns the label of a tag: its name, unless another label has that name.
fn tag_key(name: &str) -> Cow<'_, str> {
    // A name that already has the prefix gets the prefix again, so different names have different
    // labels.
    if OWN_LABELS.contains(&name.trim_start_matches(TAG_PREFIX)) {
        format!("{TAG_PREFIX}{name}").into()
    } else {
        name.into()
    }
}

/// Returns the stack of a call, leaf first, without the thread.
fn path(calls: &[CallNode<LocationId>], index: usize) -> Vec<StackStep<LocationId>> {
    let mut path = Vec::new();
    let mut at = index;
    while at != 0 {
        path.push(calls[at].step);
        at = calls[at].caller();
    }
    path
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_tags_are_unique() {
        let labels = [
            ("route", "route"),
            ("tag.route", "tag.route"),
            ("thread", "tag.thread"),
            ("process", "tag.process"),
            ("tag.thread", "tag.tag.thread"),
            ("trace_id", "tag.trace_id"),
            ("threads", "threads"),
            ("tag.", "tag."),
        ];
        for (name, label) in labels {
            assert_eq!(tag_key(name), label);
        }
    }
}
