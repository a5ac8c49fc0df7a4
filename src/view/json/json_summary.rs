//! The summary of a view as JSON: the recording, the selected samples, and their quality.

use serde_json::{Map, Value as Json, json};
use traceprof_abi::unwind::EndReason;

use crate::trace::Value;
use crate::view::profile::call_tree::Count;
use crate::view::profile::sample_totals::SampleTotals;
use crate::view::recording::mode::Mode;
use crate::view::recording::rate_changes;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::unit::WeightUnit;
use crate::view::text::number::percent;

/// Builds JSON objects of the selected samples.
pub(in crate::view) struct JsonSummary<'a> {
    recording: &'a RecordingInfo,
    totals: SampleTotals,
    unit: WeightUnit,
}

impl<'a> JsonSummary<'a> {
    /// Creates the summary of a recording and its totals.
    pub(in crate::view) fn new(recording: &'a RecordingInfo, totals: SampleTotals) -> Self {
        let unit = WeightUnit::new(totals.mode, recording);
        Self { recording, totals, unit }
    }

    /// Returns the complete object.
    pub(in crate::view) fn object(&self) -> Map<String, Json> {
        let unit = if self.totals.mode == Mode::Cpu { "periods" } else { "microseconds" };
        let mut object = Map::new();
        for (key, value) in [
            ("recording", recording(self.recording)),
            ("mode", json!(self.totals.mode.name())),
            ("weight_unit", json!(unit)),
            ("all", self.count(self.totals.count)),
            ("threads", json!(self.totals.threads)),
            ("processes", self.processes()),
            ("quality", self.quality()),
            ("strip", self.activity()),
        ] {
            object.insert(key.to_owned(), value);
        }
        if let Some(name) = self.recording.lock() {
            let held = self.count(self.totals.held);
            let waited = (self.totals.mode == Mode::Wall).then(|| self.count(self.totals.waited));
            let in_kernel = self.recording.tells_lock_in_kernel();
            let lock = json!({
                "name": name, "held": held, "waited": waited, "known_in_kernel": in_kernel,
            });
            object.insert("lock".to_owned(), lock);
        }
        // A trace of native code only says nothing about languages.
        if let Some(languages) = self.totals.languages.heaviest_first() {
            let languages = languages.into_iter();
            let of = languages.map(|(language, it)| (language.name().to_owned(), self.count(it)));
            object.insert("languages".to_owned(), Json::Object(of.collect()));
            object.insert(
                "interpreters_left_out".to_owned(),
                json!(self.recording.leaves_frames_out),
            );
        }
        object
    }

    /// Returns a count as JSON.
    pub(in crate::view) fn count(&self, count: Count) -> Json {
        json!({
            "weight": count.weight,
            "seconds": self.seconds(count.weight),
            "percent": percent(count.weight, self.totals.count.weight),
            "samples": count.samples,
        })
    }

    fn seconds(&self, weight: u64) -> Option<f64> {
        match self.unit {
            WeightUnit::Periods(period_ns) => Some(weight as f64 * period_ns? / 1e9),
            WeightUnit::Microseconds => Some(weight as f64 / 1e6),
        }
    }

    /// Returns the processes with samples, by their ids.
    fn processes(&self) -> Json {
        let sampled = self.totals.processes.iter().filter(|(_, it)| it.threads > 0);
        let listed = self.recording.processes();
        let name = |pid: u32, own: &str| {
            let known = listed.iter().rev().find(|it| it.pid == u64::from(pid));
            known.map_or(own, |it| it.name).to_owned()
        };
        let processes = sampled.map(|(pid, it)| {
            json!({
                "pid": pid,
                "name": name(*pid, &it.name),
                "threads": it.threads,
                "total": self.count(it.count),
            })
        });
        processes.collect()
    }

    fn quality(&self) -> Json {
        let (recording, totals) = (self.recording, &self.totals);
        let name =
            |reason| EndReason::from_number(reason).map_or("unknown reason", EndReason::name);
        let mut ends = Map::new();
        for (reason, samples) in &totals.ends {
            // Unknown numbers share one name.
            let entry = ends.entry(name(*reason).to_owned()).or_insert(json!(0));
            *entry = json!(entry.as_u64().unwrap_or(0) + samples);
        }
        let (rooted, all) = totals.rooted();
        let lost = recording.metadata.iter().filter_map(|(key, number)| {
            Some((key.strip_prefix("lost.")?.to_owned(), value(number)))
        });
        let states = totals.states().map(|states| {
            let us = states.all().map(|(state, us)| (state.to_owned(), json!(us)));
            us.collect::<Map<_, _>>()
        });
        let named = self.totals.languages.named().map(|(language, samples, named)| {
            let share = json!({
                "samples": samples,
                "named_samples": named,
                "named_percent": percent(named, samples),
            });
            (language.name().to_owned(), share)
        });
        let named: Map<String, Json> = named.collect();
        let mut quality = json!({
            "rooted_samples": rooted,
            "rooted_percent": percent(rooted, all),
            "ends": ends,
            "lost": lost.collect::<Map<_, _>>(),
            "unreadable_places": recording.losses.len().max(recording.bad.len()),
            "cpu_time_ns": recording.number("cpu_time_ns"),
            "state_us": states,
            "attach_stops_ns": recording.metadata.get("attach_stops_ns").map(value),
            "detach_stopped_ns": recording.number("detach_stopped_ns"),
        });
        // A trace of native code only says nothing about languages.
        if !named.is_empty() {
            quality["named"] = Json::Object(named);
        }
        quality
    }

    /// Returns the activity. Times count from the start of the recording.
    fn activity(&self) -> Json {
        let activity = &self.totals.activity;
        if activity.cells.is_empty() {
            return Json::Null;
        }
        let base_ns = self.recording.begin_ns().unwrap_or(0);
        let running = self.totals.mode == Mode::Wall;
        let running =
            running.then(|| activity.cells.iter().map(|it| it.running).collect::<Vec<_>>());
        json!({
            "from_ns": activity.from_ns.saturating_sub(base_ns),
            "to_ns": activity.to_ns.saturating_sub(base_ns),
            "weights": activity.cells.iter().map(|cell| cell.weight).collect::<Vec<_>>(),
            "running": running,
        })
    }
}

/// Returns the recorder's metadata.
fn recording(recording: &RecordingInfo) -> Json {
    let known = |key: &str| recording.metadata.get(key).map(value);
    let mut object = Map::new();
    for key in [
        "pid",
        "command_line",
        "host",
        "kernel",
        "cpus",
        "start_realtime_ns",
        "engine",
        "mode",
        "freq_hz",
        "period_ns",
        "wall_interval_ns",
        "kernel_included",
        "traceprof_version",
        "executions",
        "write_error",
        "recovered_from",
    ] {
        object.insert(key.to_owned(), known(key).unwrap_or(Json::Null));
    }
    let length_ns = || recording.end_ns()?.checked_sub(recording.begin_ns()?);
    let processes = recording.processes().into_iter();
    let processes = processes
        .map(|it| json!({ "pid": it.pid, "name": it.name, "cpu_time_ns": it.cpu_time_ns }));
    object.insert("processes".to_owned(), processes.collect());
    let since = |ns: u64| ns.saturating_sub(recording.begin_ns().unwrap_or(0));
    let changes = rate_changes::divisors(&recording.metadata).into_iter();
    let changes = changes.map(|(ns, divisor)| json!({ "time_ns": since(ns), "divisor": divisor }));
    object.insert("rate_changes".to_owned(), changes.collect());
    let executed = recording.executed().into_iter().map(|it| {
        let time_ns = since(it.time_ns);
        json!({ "pid": it.pid, "name": it.name, "time_ns": time_ns, "not_sampled": it.not_sampled })
    });
    object.insert("executed".to_owned(), executed.collect());
    object.insert("duration_ns".to_owned(), json!(length_ns()));
    object.insert("selection".to_owned(), json!(recording.window));
    object.insert("closed".to_owned(), json!(recording.closed));
    object.insert("running".to_owned(), json!(recording.running));
    Json::Object(object)
}

fn value(value: &Value) -> Json {
    match value {
        Value::Unsigned(number) => json!(number),
        Value::Text(text) => json!(text),
        Value::List(list) => list.iter().map(self::value).collect(),
    }
}
