//! Profiles of speedscope (speedscope.app): each thread with its stacks in time order.
//!
//! # Invariants
//! - Memory grows with the profile, the weights of one thread, and the distinct frames.
//! - All texts are escaped before they are written.
//! - The weights of a thread add up to its end value. They are nanoseconds of CPU time, sampling
//!   periods if their length is unknown, or microseconds of wall clock time.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use super::{ExportOptions, thread_samples, title};
use crate::trace::{LazyTrace, LocationId, Sample, ThreadSummary};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::processes::Processes;
use crate::view::profile::step_names::StepNames;
use crate::view::profile::thread_profile::{Profile, mark_of};
use crate::view::recording::mode::Mode;
use crate::view::select::error::ViewError;
use crate::view::select::selection::Selected;
use crate::view::text::escape::escaped;

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// Writes all selected samples. `profile` was loaded from the same selection.
pub(super) fn write(
    trace: &LazyTrace,
    (selected, profile): (&Selected, &Profile),
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    let names = StepNames::of_functions(profile);
    let (all, known, by_step) = Default::default();
    let processes = Processes::of(profile);
    let mut frames = SharedFrames { profile, names: &names, processes, all, known, by_step };
    write!(out, "{{\"$schema\":\"{SCHEMA}\",\"exporter\":\"traceprof\",\"name\":")?;
    put(out, &title::title(profile))?;
    write!(out, ",\"profiles\":[")?;
    for (index, thread) in
        thread_samples::threads(trace, (selected, profile), options).into_iter().enumerate()
    {
        if index > 0 {
            write!(out, ",")?;
        }
        write_thread(trace, selected, thread, (&mut frames, out))?;
    }
    // The frames are complete only now. Readers of JSON accept any order.
    write!(out, "],\"shared\":{{\"frames\":")?;
    put(out, &frames.all)?;
    Ok(writeln!(out, "}}}}")?)
}

/// Writes JSON. Its texts are already escaped.
fn put(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    Ok(serde_json::to_writer(out, value)?)
}

fn write_thread(
    trace: &LazyTrace,
    selected: &Selected,
    thread: &ThreadSummary,
    (frames, out): (&mut SharedFrames<'_>, &mut dyn Write),
) -> Result<(), ViewError> {
    let named = &thread.thread;
    let (unit, factor) = unit(frames.profile);
    write!(out, "{{\"type\":\"sampled\",\"name\":")?;
    let process = frames.processes.label(named.pid);
    let of = process.map_or_else(String::new, |process| format!(" of {process}"));
    put(out, &format!("{} ({}){of}", escaped(&named.name), named.tid))?;
    write!(out, ",\"unit\":\"{unit}\",\"startValue\":0,\"samples\":[")?;
    let mut rows =
        SampleWriter { weights: Vec::new(), last: None, out: &mut *out, written: Ok(()) };
    thread_samples::of_thread(trace, selected, thread.id, &mut |sample, stack| {
        rows.add(frames.stack(sample, stack), sample.weight);
    })?;
    let SampleWriter { weights, written, .. } = rows;
    written?;
    write!(out, "],\"weights\":[")?;
    let mut total = 0u64;
    for (index, weight) in weights.into_iter().enumerate() {
        total = total.saturating_add(weight);
        write!(out, "{}", if index > 0 { "," } else { "" })?;
        put(out, &ScaledWeight(weight, factor))?;
    }
    write!(out, "],\"endValue\":")?;
    put(out, &ScaledWeight(total, factor))?;
    Ok(write!(out, "}}")?)
}

/// Returns the unit of the weights, and the factor of a sample's weight if it is not one.
fn unit(profile: &Profile) -> (&'static str, Option<f64>) {
    match (profile.mode, profile.recording.period_ns()) {
        (Mode::Wall, _) => ("microseconds", None),
        (Mode::Cpu, None) => ("none", None),
        (Mode::Cpu, Some(period_ns)) => ("nanoseconds", Some(period_ns)),
    }
}

/// A weight, and the factor that it is multiplied by when it is written.
struct ScaledWeight(u64, Option<f64>);

impl Serialize for ScaledWeight {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.1 {
            None => serializer.serialize_u64(self.0),
            Some(factor) => serializer.serialize_f64(self.0 as f64 * factor),
        }
    }
}

/// Writes the stacks of a thread. Consecutive equal stacks become one with their total weight.
struct SampleWriter<'a> {
    weights: Vec<u64>,
    last: Option<Vec<usize>>,
    out: &'a mut dyn Write,
    written: io::Result<()>,
}

impl SampleWriter<'_> {
    fn add(&mut self, stack: Vec<usize>, weight: u32) {
        let weight = u64::from(weight);
        match self.weights.last_mut() {
            Some(last) if self.last.as_ref() == Some(&stack) => *last = last.saturating_add(weight),
            _ => {
                if self.written.is_ok() {
                    let comma = if self.weights.is_empty() { "" } else { "," };
                    self.written = write!(self.out, "{comma}").and_then(|()| put(self.out, &stack));
                }
                self.weights.push(weight);
                self.last = Some(stack);
            }
        }
    }
}

/// A frame of the file: a line of a function.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
struct SpeedscopeFrame {
    name: String,
    /// The source file, or the module if the source file is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

/// All frames, each once.
struct SharedFrames<'a> {
    profile: &'a Profile,
    names: &'a StepNames,
    processes: Processes,
    all: Vec<SpeedscopeFrame>,
    known: HashMap<SpeedscopeFrame, usize>,
    /// The frames by step: a line has many locations.
    by_step: HashMap<StackStep<LocationId>, usize>,
}

impl SharedFrames<'_> {
    /// Returns the frames of a sample, root first.
    fn stack(&mut self, sample: &Sample, stack: &[LocationId]) -> Vec<usize> {
        let wait = self.profile.waits.find(sample).map(StackStep::Wait);
        let frames = stack.iter().map(|location| StackStep::Frame(*location));
        mark_of(sample, stack).into_iter().chain(frames).chain(wait).map(|it| self.id(it)).collect()
    }

    fn id(&mut self, step: StackStep<LocationId>) -> usize {
        if let Some(id) = self.by_step.get(&step) {
            return *id;
        }
        let frame = self.frame(step);
        let all = &mut self.all;
        let id = *self.known.entry(frame).or_insert_with_key(|frame| {
            all.push(frame.clone());
            all.len() - 1
        });
        self.by_step.insert(step, id);
        id
    }

    fn frame(&self, step: StackStep<LocationId>) -> SpeedscopeFrame {
        let name = self.names.text(step.map(|location| self.names.id(location))).to_owned();
        let location = match step {
            StackStep::Frame(id) => self.profile.locations.get(id.0 as usize),
            _ => None,
        };
        let Some(location) = location else {
            return SpeedscopeFrame { name, file: None, line: None };
        };
        let method = self.profile.method(location.method);
        let module = || self.profile.modules.get(method?.module?.0 as usize);
        let source = location.file.as_deref();
        let file = source.or_else(|| module().map(|module| module.path.as_str()));
        let file = file.map(|file| escaped(file).into_owned());
        SpeedscopeFrame {
            name,
            file,
            line: (source.is_some() && location.line > 0).then_some(location.line),
        }
    }
}
