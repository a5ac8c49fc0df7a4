//! What each thread did at one time.
//!
//! A sample of wall-clock time stands for the time before it, so the stack at a time is that of the
//! sample that covers it. Of CPU time only moments are known: the stack is that of the last sample
//! before, and its age is shown.

use std::io::Write;

use serde_json::{Value as Json, json};

use super::StackOptions;
use super::stack_text::{StackWriter, cut, write_object};
use crate::trace::{LazyTrace, LocationId, Sample, ThreadSummary, TraceError, Window};
use crate::view::print::tree::idle_threads;
use crate::view::recording::mode::{Mode, is_wall};
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::waits::{call_name, doing, state_name};
use crate::view::select::error::ViewError;
use crate::view::select::selection::Selected;
use crate::view::select::time_point::TimePoint;
use crate::view::text::number::counted;
use crate::view::timeline::duration;

/// How far to search for the sample that covers a time, at first.
const SEARCHED_NS: u64 = 100_000_000;

/// Returns the time on the clock of the samples.
///
/// # Errors
/// A message for the user: the recording does not have this time.
pub fn time_of(at: TimePoint, trace: &LazyTrace) -> Result<u64, String> {
    let recording = RecordingInfo::of(trace);
    if let TimePoint::Later(_) = at {
        return Err("--at expects a time such as 2.5s, -30s, 50% or 14:03".to_owned());
    }
    let time_ns = at.of(&recording, 0)?;
    let (begin_ns, end_ns) = (recording.begin_ns().unwrap_or(0), recording.end_ns());
    match end_ns.filter(|end_ns| time_ns > *end_ns && recording.closed) {
        Some(end_ns) => {
            let length_s = end_ns.saturating_sub(begin_ns) as f64 / 1e9;
            Err(format!("the recording ends before --at: it lasts {length_s:.3} s"))
        }
        None => Ok(time_ns),
    }
}

/// What a thread did.
struct ThreadMoment<'a> {
    summary: &'a ThreadSummary,
    sample: Sample,
    stack: Vec<LocationId>,
}

/// Writes the stacks of the selected threads at a time.
pub fn write(
    trace: &LazyTrace,
    (selected, time_ns): (&Selected, u64),
    options: &StackOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    let recording = RecordingInfo::of(trace);
    let base_ns = recording.begin_ns().unwrap_or(0);
    let (mut seen, mut without, mut ended) = (Vec::new(), Vec::new(), 0u64);
    for summary in trace.threads().iter().filter(|thread| selected.covers(thread)) {
        let has_ended = summary.thread.ended_ns.is_some_and(|ended_ns| ended_ns < time_ns);
        match moment(trace, (summary, time_ns), selected.filter.mode)? {
            _ if has_ended => ended += 1,
            Some((sample, stack)) => seen.push(ThreadMoment { summary, sample, stack }),
            None => without.push(&summary.thread),
        }
    }
    // What runs comes first.
    seen.sort_by_key(|moment| (moment.sample.state, moment.summary.id));
    let writer = StackWriter::new(trace, options);
    let times = MomentTimes { base_ns, time_ns };
    if options.json {
        let mut threads = Vec::new();
        for moment in &seen {
            threads.push(object(trace, moment, (&writer, times))?);
        }
        let at_ns = time_ns.saturating_sub(base_ns);
        return Ok(write_object(&json!({ "at_ns": at_ns, "threads": threads }), out)?);
    }
    let threads = counted(seen.len() as u64, "thread");
    let ended = match ended {
        0 => String::new(),
        ended => format!("; {} had ended", counted(ended, "thread")),
    };
    writeln!(out, "at {}: {threads}{ended}", times.since(time_ns))?;
    for moment in &seen {
        let ThreadMoment { summary, sample, stack } = moment;
        let thread = &summary.thread;
        let process = match thread.pid == thread.tid {
            true => String::new(),
            false => format!(" of process {}", thread.pid),
        };
        let what = describe(trace, sample, times)?;
        let title = format!("thread {} \"{}\"{process}: {what}", thread.tid, thread.shown_name());
        writer.title(&title, false, out)?;
        writer.frames((stack, sample.end_reason), out)?;
    }
    Ok(idle_threads(out, without.into_iter())?)
}

/// The time that is shown, and the time that texts count from.
#[derive(Debug, Clone, Copy)]
struct MomentTimes {
    base_ns: u64,
    time_ns: u64,
}

impl MomentTimes {
    fn since(self, time_ns: u64) -> String {
        format!("{:.6} s", time_ns.saturating_sub(self.base_ns) as f64 / 1e9)
    }

    /// Returns the start of the time that a sample covers, if it covers the shown time.
    fn covered_from(self, sample: &Sample) -> Option<u64> {
        let from_ns = sample.time_ns.saturating_sub(u64::from(sample.weight).saturating_mul(1000));
        let covers = from_ns <= self.time_ns && self.time_ns <= sample.time_ns;
        (is_wall(sample) && covers).then_some(from_ns)
    }
}

/// Returns the sample of a thread that tells what it did at a time, and its stack.
fn moment(
    trace: &LazyTrace,
    (summary, time_ns): (&ThreadSummary, u64),
    mode: Mode,
) -> Result<Option<(Sample, Vec<LocationId>)>, TraceError> {
    let times = MomentTimes { base_ns: 0, time_ns };
    let (mut from_ns, mut length_ns) = (time_ns, SEARCHED_NS);
    let last_ns = summary.last_ns.unwrap_or(0);
    while mode == Mode::Wall && from_ns <= last_ns {
        let mut found: Option<(Sample, Vec<LocationId>)> = None;
        let to_ns = from_ns.saturating_add(length_ns);
        let window = Window { threads: Some([summary.id].into()), from_ns, to_ns };
        trace.for_each_sample(&window, &mut |_, sample, stack| {
            let is_first = found.as_ref().is_none_or(|(it, _)| sample.time_ns < it.time_ns);
            if is_wall(sample) && is_first {
                found = Some((sample.clone(), stack.to_vec()));
            }
        })?;
        if let Some((sample, stack)) = found {
            if times.covered_from(&sample).is_some() {
                return Ok(Some((sample, stack)));
            }
            break;
        }
        from_ns = to_ns.saturating_add(1);
        length_ns = length_ns.saturating_mul(2);
    }
    trace.stack_at(summary.id, time_ns)
}

/// Returns what a thread did, and how well that is known.
fn describe(trace: &LazyTrace, sample: &Sample, times: MomentTimes) -> Result<String, TraceError> {
    let on = sample.waits_on.map(|id| trace.text(id)).transpose()?;
    let state = doing(sample.state, sample.syscall, on.as_deref());
    Ok(match times.covered_from(sample) {
        Some(from_ns) => {
            let (from, to) = (times.since(from_ns), times.since(sample.time_ns));
            format!("{state} from {from} to {to}")
        }
        None => {
            let age = duration(times.time_ns.saturating_sub(sample.time_ns));
            format!("{state} at {}, {age} before", times.since(sample.time_ns))
        }
    })
}

fn object(
    trace: &LazyTrace,
    moment: &ThreadMoment<'_>,
    (writer, times): (&StackWriter<'_>, MomentTimes),
) -> Result<Json, TraceError> {
    let ThreadMoment { summary, sample, stack } = moment;
    let since = |time_ns: u64| time_ns.saturating_sub(times.base_ns);
    let on = sample.waits_on.map(|id| trace.text(id)).transpose()?;
    Ok(json!({
        "pid": summary.thread.pid,
        "tid": summary.thread.tid,
        "name": summary.thread.shown_name(),
        "state": state_name(sample.state),
        "syscall": sample.syscall.map(call_name),
        "waits_on": on,
        "from_ns": times.covered_from(sample).map(since),
        "time_ns": since(sample.time_ns),
        "end": cut(sample.end_reason).unwrap_or("root"),
        "stack": writer.objects(stack)?,
    }))
}
