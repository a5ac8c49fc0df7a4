//! Profiles of the Firefox Profiler (profiler.firefox.com): every sample with its time, and spans
//! as markers.
//!
//! # Invariants
//! - Memory grows with the profile and with the samples of one thread.
//! - All texts are escaped before they are written.
//! - Weights are sampling periods, or milliseconds of wall clock time.
//! - A marker extends from the first to the last of consecutive samples of a thread with one
//!   context.

mod categories;
mod meta;
mod model;
mod span_markers;
mod thread_tables;

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::trace::{LazyTrace, LocationId, Sample, ThreadSummary};
use crate::view::export::{ExportOptions, thread_samples};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::processes::Processes;
use crate::view::profile::step_names::StepNames;
use crate::view::profile::thread_profile::{Profile, mark_of};
use crate::view::recording::context::ContextTags;
use crate::view::recording::mode::Mode;
use crate::view::select::error::ViewError;
use crate::view::select::selection::Selected;
use crate::view::text::escape::escaped;
use model::FirefoxThread;
use span_markers::SpanMarkers;
use thread_tables::ThreadTables;

/// Writes all selected samples. `profile` was loaded from the same selection.
pub(super) fn write(
    trace: &LazyTrace,
    (selected, profile): (&Selected, &Profile),
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    let maker = FirefoxBuilder {
        trace,
        selected,
        profile,
        names: StepNames::of_functions(profile),
        processes: Processes::of(profile),
        tags: ContextTags::new(trace, &profile.recording.tags()),
        begin_ns: profile.recording.begin_ns().unwrap_or(0),
    };
    write!(out, "{{\"meta\":")?;
    put(out, &meta::meta(profile))?;
    write!(out, ",\"libs\":")?;
    put(out, &meta::libs(profile))?;
    write!(out, ",\"pages\":[],\"profilerOverhead\":[],\"counters\":[],\"threads\":[")?;
    // The kernel may reuse a thread id, but ids in the profile must be unique.
    let mut lives: HashMap<u32, u32> = HashMap::new();
    let mut first = true;
    for thread in thread_samples::threads(trace, (selected, profile), options) {
        let life = lives.entry(thread.thread.tid).or_default();
        if !std::mem::take(&mut first) {
            write!(out, ",")?;
        }
        put(out, &maker.thread(thread, *life)?)?;
        *life += 1;
    }
    Ok(writeln!(out, "]}}")?)
}

/// Writes JSON. Its texts are already escaped.
fn put(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    Ok(serde_json::to_writer(out, value)?)
}

/// Builds the threads of the profile.
struct FirefoxBuilder<'a> {
    trace: &'a LazyTrace,
    selected: &'a Selected,
    profile: &'a Profile,
    names: StepNames,
    processes: Processes,
    tags: ContextTags<'a>,
    begin_ns: u64,
}

impl FirefoxBuilder<'_> {
    fn thread(&self, summary: &ThreadSummary, life: u32) -> Result<FirefoxThread, ViewError> {
        let mut rows = ThreadRows {
            profile: self.profile,
            tables: ThreadTables::new(self.profile, &self.names),
            spans: SpanMarkers::default(),
            begin_ns: self.begin_ns,
            last_ns: self.begin_ns,
        };
        thread_samples::of_thread(self.trace, self.selected, summary.id, &mut |sample, stack| {
            rows.add(sample, stack);
        })?;
        let ThreadRows { mut tables, spans, .. } = rows;
        spans.write(&mut tables, &self.tags, self.begin_ns)?;
        let mut thread = tables.thread;
        let named = &summary.thread;
        let since = |time_ns: u64| milliseconds(time_ns.saturating_sub(self.begin_ns));
        thread.name = escaped(named.shown_name()).into_owned();
        thread.is_main_thread = named.pid == named.tid;
        thread.pid = named.pid.to_string();
        thread.tid = match life {
            0 => named.tid.to_string(),
            again => format!("{}.{again}", named.tid),
        };
        thread.process_name = self.processes.name(named.pid).unwrap_or("traceprof").to_owned();
        thread.process_type = "default";
        thread.register_time = since(named.first_seen_ns);
        thread.unregister_time = named.ended_ns.map(since);
        thread.show_markers_in_timeline = thread.markers.length > 0;
        Ok(thread)
    }
}

/// Collects the samples of a thread.
struct ThreadRows<'a> {
    profile: &'a Profile,
    tables: ThreadTables<'a>,
    spans: SpanMarkers,
    begin_ns: u64,
    last_ns: u64,
}

impl ThreadRows<'_> {
    fn add(&mut self, sample: &Sample, stack: &[LocationId]) {
        let wait = self.profile.waits.find(sample);
        let frames = stack.iter().map(|location| StackStep::Frame(*location));
        let steps =
            mark_of(sample, stack).into_iter().chain(frames).chain(wait.map(StackStep::Wait));
        let index = self.tables.stack(steps);
        let weight = u64::from(sample.weight);
        let period_ns = self.profile.recording.period_ns().unwrap_or(0.0);
        let (kind, weight, stands_for_ns, runs_us) = match self.profile.mode {
            Mode::Cpu => {
                let ns = weight as f64 * period_ns;
                ("samples", weight as f64, ns as u64, ns / 1e3)
            }
            Mode::Wall => {
                let runs = if wait.is_none() { weight as f64 } else { 0.0 };
                ("tracing-ms", weight as f64 / 1e3, weight.saturating_mul(1000), runs)
            }
        };
        let time_ns = sample.time_ns.max(self.last_ns);
        let samples = &mut self.tables.thread.samples;
        samples.weight_type = kind;
        samples.weight.push(weight);
        samples.stack.push(index);
        samples.time_deltas.push(milliseconds(time_ns - self.last_ns));
        samples.thread_cpu_delta.push(runs_us);
        samples.length = samples.stack.len();
        self.last_ns = time_ns;
        let from_ns = time_ns.saturating_sub(stands_for_ns).max(self.begin_ns);
        self.spans.add(sample, from_ns, time_ns);
    }
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}
