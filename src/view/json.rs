//! A profile as one JSON object: the summary, and the trees or the heaviest of something.
//!
//! Percentages are of all samples that are looked at. Calls are a flat list, in which `caller` is the
//! index of the caller: stacks may be deeper than any reader nests.

use std::io::{self, Write};

use serde_json::{Map, Value as Json, json};
use traceprof_abi::unwind::EndReason;

use super::calls::{Count, Step};
use super::escape::json_escaped;
use super::forest::{Forest, Section, TreeOptions};
use super::functions::{Rest, RowOf, Table, TableRow};
use super::mode::{Mode, Unit};
use super::profile::{Profile, ThreadProfile};
use super::ranking::{Top, nouns};
use super::recording::Recording;
use super::rows::{Rows, percent};
use super::summary::Seen;
use crate::trace::Value;

/// What follows the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Nothing.
    Summary,
    /// The call trees.
    Trees,
    /// The heaviest rows, no more than so many.
    Top(usize),
}

/// Writes the object.
pub fn write(
    profile: &Profile,
    part: Part,
    options: &TreeOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let writer = Objects { unit: Unit::new(profile.mode, &profile.recording), profile };
    let mut all = json!({
        "recording": recording(&profile.recording),
        "mode": profile.mode.name(),
        "weight_unit": if profile.mode == Mode::Cpu { "periods" } else { "microseconds" },
        "all": writer.count(profile.count()),
        "threads": profile.threads.iter().filter(|thread| thread.count.samples > 0).count(),
        "quality": writer.quality(),
        "strip": writer.strip(),
    });
    match part {
        Part::Summary => all["functions"] = writer.functions(options),
        Part::Trees => {
            all["functions"] = writer.functions(options);
            writer.trees(&mut all, options)?;
        }
        Part::Top(most) => all["top"] = writer.top(most, options),
    }
    writeln!(out, "{}", json_escaped(&all.to_string()))
}

/// What the recorder said.
fn recording(recording: &Recording) -> Json {
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
    let changes = super::rate::divisors(&recording.metadata).into_iter();
    let changes = changes.map(|(ns, divisor)| json!({ "time_ns": since(ns), "divisor": divisor }));
    object.insert("rate_changes".to_owned(), changes.collect());
    let executed = recording
        .executed()
        .into_iter()
        .map(|(name, ns, why)| json!({ "name": name, "time_ns": since(ns), "not_sampled": why }));
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

/// Makes objects of the parts of a profile.
struct Objects<'a> {
    unit: Unit,
    profile: &'a Profile,
}

impl Objects<'_> {
    fn count(&self, count: Count) -> Json {
        let whole = self.profile.count().weight;
        json!({
            "weight": count.weight,
            "seconds": self.seconds(count.weight),
            "percent": percent(count.weight, whole),
            "samples": count.samples,
        })
    }

    fn seconds(&self, weight: u64) -> Option<f64> {
        match self.unit {
            Unit::Periods(period_ns) => Some(weight as f64 * period_ns? / 1e9),
            Unit::Microseconds => Some(weight as f64 / 1e6),
        }
    }

    fn quality(&self) -> Json {
        let recording = &self.profile.recording;
        let seen = Seen::in_profile(self.profile);
        let name =
            |reason| EndReason::from_number(reason).map_or("unknown reason", EndReason::name);
        let mut ends = Map::new();
        for (reason, samples) in seen.ends() {
            // Two numbers that this version does not know have one name.
            let entry = ends.entry(name(*reason).to_owned()).or_insert(json!(0));
            *entry = json!(entry.as_u64().unwrap_or(0) + samples);
        }
        let all: u64 = seen.ends().values().sum();
        let rooted = seen.ends().get(&(EndReason::Root as u16)).copied().unwrap_or(0);
        let lost = recording.metadata.iter().filter_map(|(key, number)| {
            Some((key.strip_prefix("lost.")?.to_owned(), value(number)))
        });
        let states = (self.profile.mode == Mode::Wall).then(|| self.profile.states());
        let states = states.map(|states| {
            let us = states.all().map(|(state, us)| (state.to_owned(), json!(us)));
            us.collect::<Map<_, _>>()
        });
        json!({
            "rooted_samples": rooted,
            "rooted_percent": percent(rooted, all),
            "ends": ends,
            "lost": lost.collect::<Map<_, _>>(),
            "unreadable_places": recording.losses.len(),
            "cpu_time_ns": recording.number("cpu_time_ns"),
            "state_us": states,
            "attach_stops_ns": recording.metadata.get("attach_stops_ns").map(value),
            "detach_stopped_ns": recording.number("detach_stopped_ns"),
        })
    }

    /// Times count from the begin of the recording.
    fn strip(&self) -> Json {
        let strip = &self.profile.strip;
        if strip.cells.is_empty() {
            return Json::Null;
        }
        let base_ns = self.profile.recording.begin_ns().unwrap_or(0);
        let running = self.profile.mode == Mode::Wall;
        let running = running.then(|| strip.cells.iter().map(|it| it.running).collect::<Vec<_>>());
        json!({
            "from_ns": strip.from_ns.saturating_sub(base_ns),
            "to_ns": strip.to_ns.saturating_sub(base_ns),
            "weights": strip.cells.iter().map(|cell| cell.weight).collect::<Vec<_>>(),
            "running": running,
        })
    }

    /// Those above the threshold, and what the others come to.
    fn functions(&self, options: &TreeOptions) -> Json {
        let table = Table::new(self.profile, RowOf::Function);
        let least = options.limits.min_percent / 100.0 * table.all.weight as f64;
        let mut rest = Rest::default();
        let mut rows = Vec::new();
        for row in &table.rows {
            match row.total.weight as f64 >= least {
                true => rows.push(self.row(row)),
                false => rest.add(row),
            }
        }
        json!({ "rows": rows, "others": self.rest(&rest) })
    }

    fn top(&self, most: usize, options: &TreeOptions) -> Json {
        let top = Top::new(self.profile, options);
        let (rows, rest) = top.table.heaviest(most);
        let [noun, _] = nouns(self.profile, top.of);
        json!({
            "of": noun,
            "rows": rows.into_iter().map(|row| self.row(row)).collect::<Vec<_>>(),
            "others": self.rest(&rest),
            "idle": { "number": top.idle.len(), "self": self.count(top.idle_count()) },
        })
    }

    fn row(&self, row: &TableRow) -> Json {
        json!({
            "name": row.name,
            "module": (!row.qualifier.is_empty()).then_some(&row.qualifier),
            "self": self.count(row.own),
            "total": self.count(row.total),
        })
    }

    fn rest(&self, rest: &Rest) -> Json {
        json!({ "number": rest.number, "self": self.count(rest.own) })
    }

    fn trees(&self, all: &mut Json, options: &TreeOptions) -> io::Result<()> {
        let forest = Forest::new(self.profile, options);
        let trees = forest.sections.iter().map(|section| self.tree(&forest, section));
        all["trees"] = Json::Array(trees.collect::<io::Result<_>>()?);
        all["inverted"] = json!(options.inverted);
        let threads = |threads: &[&ThreadProfile]| threads.iter().map(|it| thread(it)).collect();
        let mut count = Count::default();
        forest.idle.iter().for_each(|thread| count += thread.count);
        let idle: Vec<Json> = threads(&forest.idle);
        all["idle"] = json!({ "threads": idle, "self": self.count(count) });
        all["threads_without_sample"] = Json::Array(threads(&forest.without));
        Ok(())
    }

    fn tree(&self, forest: &Forest<'_>, section: &Section<'_>) -> io::Result<Json> {
        let mut calls = Vec::new();
        let tree = forest.tree(section);
        let rows = Rows::new(&tree, &forest.names, forest.options, forest.scale);
        rows.for_each(&mut |line| {
            let kind = line.what.ok().map(kind_of);
            let module = line.what.ok().map_or("", |step| forest.names.qualifier(step));
            calls.push(json!({
                "caller": line.caller,
                "kind": kind.unwrap_or("others"),
                "name": line.text,
                "module": (!module.is_empty()).then_some(module),
                "number": line.what.err().unwrap_or(1),
                "total": self.count(line.total),
                "self": (!forest.options.inverted).then(|| self.count(line.own)),
            }));
            Ok(())
        })?;
        Ok(json!({
            "title": section.title,
            "threads": section.threads.iter().map(|it| thread(it)).collect::<Vec<_>>(),
            "total": self.count(section.count),
            "calls": calls,
        }))
    }
}

fn thread(profile: &ThreadProfile) -> Json {
    let thread = &profile.thread;
    json!({ "pid": thread.pid, "tid": thread.tid, "name": thread.name })
}

/// What a step is.
fn kind_of<Id>(step: Step<Id>) -> &'static str {
    match step {
        Step::Frame(_) => "call",
        Step::Group(_) => "group",
        Step::Context(_) => "context",
        Step::Wait(_) => "wait",
        Step::Thread | Step::Truncated | Step::Dropped | Step::Empty => "mark",
    }
}
