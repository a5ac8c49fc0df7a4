//! The header of the page's data: the recording, and the texts that its numbers refer to.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::byte_columns::ByteColumns;
use super::page_samples::{ModeSamples, PageSamples};
use super::stack_tables::StackTables;
use crate::trace::LazyTrace;
use crate::view::print::summary;
use crate::view::profile::processes::Processes;
use crate::view::profile::sample_totals::SampleTotals;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::mode::Mode;
use crate::view::select::error::ViewError;
use crate::view::select::selection::Selected;
use crate::view::text::escape::escaped;

/// The width of the labels of a summary.
const LABEL: usize = 10;

/// Returns everything except the columns, but with the names and lengths of the columns.
pub(super) fn head(
    trace: &LazyTrace,
    sides: &[(&Selected, &Profile)],
    (gathered, tables): (&PageSamples<'_>, &StackTables),
    columns: &ByteColumns,
) -> Result<Value, ViewError> {
    let profile = sides.first().map(|(_, profile)| *profile);
    let recording = profile.map(|profile| &profile.recording);
    let modes: Result<Vec<Value>, ViewError> =
        sides.iter().zip(&gathered.modes).map(|((_, profile), it)| mode(profile, it)).collect();
    let (from_ns, to_ns) = bounds(trace, sides);
    let since = |ns: u64| ns.saturating_sub(gathered.begin_ns) / 1000;
    let start_ns = recording.and_then(|it| it.number("start_realtime_ns"));
    Ok(json!({
        "title": profile.and_then(|it| Processes::of(it).subject()),
        "startMs": start_ns.map(|ns| ns as f64 / 1e6),
        "fromUs": since(from_ns),
        "toUs": since(to_ns).max(last_us(gathered)),
        "window": recording.and_then(|it| it.window.as_deref()).map(escaped),
        "threads": threads(gathered),
        "programs": profile.map(|profile| programs(profile, gathered)),
        "contexts": contexts(gathered),
        "texts": tables.texts(),
        "modes": modes?,
        "columns": columns.lengths(),
    }))
}

/// Returns the selected time, limited to the time of the recording.
fn bounds(trace: &LazyTrace, sides: &[(&Selected, &Profile)]) -> (u64, u64) {
    let recording = crate::view::RecordingInfo::of(trace);
    let windows = || sides.iter().flat_map(|(selected, _)| &selected.windows);
    let from_ns = windows().map(|window| window.from_ns).min().unwrap_or(0);
    let to_ns = windows().map(|window| window.to_ns).max().unwrap_or(u64::MAX);
    let begin_ns = recording.begin_ns().unwrap_or(0);
    (from_ns.max(begin_ns), to_ns.min(recording.end_ns().unwrap_or(begin_ns)))
}

/// Returns the time of the last sample. It may be later than the recorder's end time.
fn last_us(gathered: &PageSamples<'_>) -> u64 {
    let all = gathered.modes.iter().flat_map(ModeSamples::all);
    all.map(|entry| entry.time_us).max().unwrap_or(0)
}

fn mode(profile: &Profile, entries: &ModeSamples) -> Result<Value, ViewError> {
    let mut text = Vec::new();
    summary::write(&profile.recording, &SampleTotals::in_profile(profile), &mut text)?;
    let text = String::from_utf8_lossy(&text);
    let about: Vec<[&str; 2]> = text
        .lines()
        .map(|line| line.split_at_checked(LABEL).unwrap_or(("", line)))
        .map(|(label, text)| [label.trim_end(), text])
        .collect();
    let unit_ns = match profile.mode {
        Mode::Cpu => profile.recording.period_ns(),
        Mode::Wall => Some(1e3),
    };
    let weight = entries.all().fold(0u64, |sum, entry| sum.saturating_add(entry.weight));
    let samples: u64 = entries.all().map(|entry| entry.samples).sum();
    Ok(json!({
        "name": profile.mode.name(),
        "unitNs": unit_ns,
        "weight": weight,
        "samples": samples,
        "entries": entries.threads.iter().map(Vec::len).collect::<Vec<_>>(),
        "cellUs": entries.cell_us,
        "large": entries.excess(),
        "about": about,
    }))
}

fn threads(gathered: &PageSamples<'_>) -> Vec<Value> {
    // The kernel may reuse a thread id, but ids in the page must be unique.
    let mut lives: HashMap<u32, u32> = HashMap::new();
    let of = |shown: &super::page_samples::PageThread<'_>| {
        let thread = &shown.summary.thread;
        let life = lives.entry(thread.tid).or_default();
        let id = match *life {
            0 => thread.tid.to_string(),
            again => format!("{}.{again}", thread.tid),
        };
        *life += 1;
        let name = escaped(thread.shown_name());
        json!({ "id": id, "pid": thread.pid, "name": name, "idle": shown.idle })
    };
    gathered.threads.iter().map(of).collect()
}

/// Returns the program of each process by the process's label, if stacks begin with processes.
fn programs(profile: &Profile, gathered: &PageSamples<'_>) -> BTreeMap<String, String> {
    let processes = Processes::of(profile);
    let pids = gathered.threads.iter().map(|shown| shown.summary.thread.pid);
    let of = |pid| Some((processes.label(pid)?, processes.name(pid)?.to_owned()));
    let all: BTreeMap<_, _> = pids.filter_map(of).collect();
    if gathered.processes.is_empty() { BTreeMap::new() } else { all }
}

/// Returns the contexts by number, from 1 on, and the context that stands for all others.
fn contexts(gathered: &PageSamples<'_>) -> Vec<Value> {
    let of = |number: usize| {
        let Some(context) = gathered.contexts.context_at(number) else {
            return json!({ "others": true });
        };
        let tags: Vec<[String; 2]> = context
            .tags
            .iter()
            .map(|(name, value)| [name.to_string(), value.to_string()])
            .collect();
        json!({
            "span": context.span.map(|id| id.to_string()),
            "root": context.root.map(|id| id.to_string()),
            "tags": tags,
        })
    };
    (0..=gathered.context_count).map(of).collect()
}
