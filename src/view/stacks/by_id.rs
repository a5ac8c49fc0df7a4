//! Call traces by their ids: their stacks, and the samples that have them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use serde_json::{Value as Json, json};

use super::StackOptions;
use super::stack_text::{StackWriter, cut, write_object};
use crate::trace::{LazyTrace, LocationId, ThreadId, TraceError, Value, Window};
use crate::view::profile::call_tree::Count;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::unit::WeightUnit;
use crate::view::select::error::ViewError;
use crate::view::select::selection::Selected;
use crate::view::text::number::{counted, percent};

/// Maximum number of threads that a text names.
const THREADS_NAMED: usize = 4;

/// A call trace that `--preserve` kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PreservedWeight {
    /// The weight of its stack in periods, over the complete recording.
    weight: u64,
    /// How much of that may be the weight of other stacks.
    excess: u64,
}

/// A call trace to show.
#[derive(Debug, Default)]
struct ShownTrace {
    id: u64,
    preserved: Option<PreservedWeight>,
    stack: Option<(Vec<LocationId>, u16)>,
    count: Count,
    threads: BTreeMap<ThreadId, Count>,
}

/// Writes the call traces with these ids. Returns the ids that the trace does not have.
pub fn write(
    trace: &LazyTrace,
    (selected, ids): (&Selected, &[u64]),
    options: &StackOptions,
    out: &mut dyn Write,
) -> Result<Vec<u64>, ViewError> {
    let ids: BTreeSet<u64> = ids.iter().copied().collect();
    let wanted = ids.into_iter().map(|id| ShownTrace { id, ..ShownTrace::default() }).collect();
    let (shown, all) = find(trace, selected, wanted)?;
    let is_missing = |it: &&ShownTrace| it.stack.is_none();
    let missing: Vec<u64> = shown.iter().filter(is_missing).map(|it| it.id).collect();
    if missing.is_empty() {
        write_all(trace, (&shown, all, selected), options, out)?;
    }
    Ok(missing)
}

/// Writes the call traces that `--preserve` kept, the heaviest first. Returns whether there are
/// any.
pub fn write_preserved(
    trace: &LazyTrace,
    selected: &Selected,
    options: &StackOptions,
    out: &mut dyn Write,
) -> Result<bool, ViewError> {
    let Some(Value::List(listed)) = trace.metadata().get("preserved_traces") else {
        return Ok(false);
    };
    let one = |value: &Value| {
        let Value::List(fields) = value else { return None };
        let [Value::Unsigned(id), Value::Unsigned(weight), Value::Unsigned(excess)] = fields[..]
        else {
            return None;
        };
        let preserved = Some(PreservedWeight { weight, excess });
        Some(ShownTrace { id, preserved, ..ShownTrace::default() })
    };
    let (shown, all) = find(trace, selected, listed.iter().filter_map(one).collect())?;
    write_all(trace, (&shown, all, selected), options, out)?;
    Ok(!shown.is_empty())
}

/// Finds the stacks and the selected samples of call traces. Also returns the sum of all selected
/// samples.
fn find(
    trace: &LazyTrace,
    selected: &Selected,
    mut shown: Vec<ShownTrace>,
) -> Result<(Vec<ShownTrace>, Count), TraceError> {
    let mut all = Count::default();
    let places: BTreeMap<u64, usize> =
        shown.iter().enumerate().map(|(place, it)| (it.id, place)).collect();
    selected.meter(trace);
    for window in &selected.windows {
        trace.for_each_sample_as_written(window, &mut |thread, sample, stack| {
            if !selected.filter.keeps(sample, stack) {
                return;
            }
            let count = Count { samples: 1, weight: u64::from(sample.weight) };
            all += count;
            let Some(place) = places.get(&sample.trace_id) else { return };
            let it = &mut shown[*place];
            it.count += count;
            *it.threads.entry(thread).or_default() += count;
            it.stack.get_or_insert_with(|| (stack.to_vec(), sample.end_reason));
        })?;
    }
    // A trace may have been written as an object, and its samples are lost or not selected.
    for it in shown.iter_mut().filter(|it| it.stack.is_none()) {
        if let Some(found) = trace.call_trace(it.id)? {
            it.stack = Some((found.stack, found.end_reason));
        }
    }
    let mut others = shown.iter_mut().filter(|it| it.stack.is_none()).peekable();
    if others.peek().is_some() && selected.windows != [Window::default()] {
        let mut others: BTreeMap<u64, &mut ShownTrace> = others.map(|it| (it.id, it)).collect();
        trace.for_each_sample_as_written(&Window::default(), &mut |_, sample, stack| {
            if let Some(it) = others.get_mut(&sample.trace_id) {
                it.stack.get_or_insert_with(|| (stack.to_vec(), sample.end_reason));
            }
        })?;
    }
    Ok((shown, all))
}

fn write_all(
    trace: &LazyTrace,
    (shown, all, selected): (&[ShownTrace], Count, &Selected),
    options: &StackOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    let unit = WeightUnit::new(selected.filter.mode, &RecordingInfo::of(trace));
    let writer = StackWriter::new(trace, options);
    if options.json {
        let mut traces = Vec::new();
        for it in shown {
            traces.push(object(trace, (it, all), &writer)?);
        }
        return Ok(write_object(&json!({ "call_traces": traces }), out)?);
    }
    for (number, it) in shown.iter().enumerate() {
        let mut title = format!("call trace {:#x}: {}", it.id, text(trace, (it, all), unit));
        if let Some(PreservedWeight { weight, excess }) = it.preserved {
            title = format!("{}. {title}", number + 1);
            title.push_str(&format!("; its stack has {} in all", counted(weight, "period")));
            if excess > 0 {
                title.push_str(&format!(", {excess} of them perhaps of other stacks"));
            }
        }
        writer.title(&title, number == 0, out)?;
        match &it.stack {
            Some((stack, end_reason)) => writer.frames((stack, *end_reason), out)?,
            None => writeln!(out, "       its stack is not in the trace")?,
        }
    }
    Ok(())
}

/// Returns the samples of a call trace and their threads as text.
fn text(trace: &LazyTrace, (it, all): (&ShownTrace, Count), unit: WeightUnit) -> String {
    let samples = counted(it.count.samples, "sample");
    if it.count.samples == 0 {
        return format!("{samples} selected");
    }
    let weight = match unit.seconds(it.count.weight) {
        Some(seconds) => format!("{seconds} s"),
        None => counted(it.count.weight, "period"),
    };
    let share = percent(it.count.weight, all.weight);
    let mut text = format!("{share:.1} % of all, {weight} in {samples}");
    let named = |id: &ThreadId| {
        let thread = trace.threads().get(id.0 as usize).map(|summary| &summary.thread);
        thread.map(|thread| format!("{} ({})", thread.shown_name(), thread.tid))
    };
    let names: Vec<String> = it.threads.keys().filter_map(named).take(THREADS_NAMED).collect();
    text.push_str(&format!(" of {}", names.join(", ")));
    match it.threads.len().saturating_sub(names.len()) {
        0 => text,
        more => format!("{text} and {}", counted(more as u64, "other thread")),
    }
}

fn object(
    trace: &LazyTrace,
    (it, all): (&ShownTrace, Count),
    writer: &StackWriter<'_>,
) -> Result<Json, TraceError> {
    let of = |count: &Count| {
        json!({
            "samples": count.samples,
            "weight": count.weight,
            "percent": percent(count.weight, all.weight),
        })
    };
    let thread = |(id, count): (&ThreadId, &Count)| {
        let thread = &trace.threads().get(id.0 as usize)?.thread;
        let name = thread.shown_name();
        Some(json!({
            "pid": thread.pid, "tid": thread.tid, "name": name, "total": of(count),
        }))
    };
    let stack = it.stack.as_ref();
    let preserved = it.preserved.map(|it| json!({ "weight": it.weight, "excess": it.excess }));
    Ok(json!({
        "id": format!("{:#x}", it.id),
        "total": of(&it.count),
        "threads": it.threads.iter().filter_map(thread).collect::<Vec<_>>(),
        "preserved": preserved,
        "end": stack.map(|(_, end_reason)| cut(*end_reason).unwrap_or("root")),
        "stack": stack.map(|(stack, _)| writer.objects(stack)).transpose()?,
    }))
}
