//! Selects threads, times and samples of a trace.

use std::collections::BTreeSet;

use crate::trace::meter::{self, PassUnit};
use crate::trace::{LazyTrace, RunState, TextId, Thread, ThreadSummary, Window};
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::select::context_filter::{ContextFilter, FindText, TagValue};
use crate::view::select::error::ViewError;
use crate::view::select::groups::{GroupBy, Grouping};
use crate::view::select::sample_filter::SampleFilter;
use crate::view::select::stack_filter::{FunctionPattern, StackFilter};
use crate::view::select::time_point::TimePoint;
use crate::view::text::number::counted;
use crate::view::text::span_id::{RootId, SpanId};

/// Maximum number of threads that a text names.
const NAMED_MAX: usize = 8;
/// Maximum number of groups that a tree keeps.
///
/// At most half of them can have `KEPT_PERCENT` of the total weight, so the other groups are light
/// even without idle threads.
const GROUPS_KEPT: usize = 10_000;
/// Minimum limit in percent for which a tree keeps only [`GROUPS_KEPT`] groups.
const KEPT_PERCENT: f64 = 0.02;
/// The message for a trace whose samples do not say who held a lock.
const NO_LOCK: &str = "no sample says whether its thread held the GIL: the program has no Python \
    whose lock is known, or an earlier version of traceprof recorded it";

/// The user's choice of a part of a trace. The default is all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// Kernel thread ids or names, in which `*` stands for any text. Empty selects all threads.
    pub threads: Vec<String>,
    /// Process ids or the names of first threads, with `*` as above. Empty selects all processes.
    pub processes: Vec<String>,
    /// The start of the selected time.
    pub from: Option<TimePoint>,
    /// The end of the selected time.
    pub to: Option<TimePoint>,
    /// The measured time. If unset, the mode of the trace.
    pub mode: Option<Mode>,
    /// The selected states of threads. Empty selects all.
    pub states: Vec<RunState>,
    /// The numbers of the selected system calls. Empty selects all samples.
    pub calls: Vec<u32>,
    /// The selected spans. Empty selects all samples.
    pub spans: Vec<SpanId>,
    /// The selected root spans. Empty selects all samples.
    pub roots: Vec<RootId>,
    /// The selected tags. Samples need one of the values of each name.
    pub tags: Vec<TagValue>,
    /// Stacks need at least one of these functions. Empty selects all stacks.
    pub include: Vec<FunctionPattern>,
    /// Stacks must not have any of these functions.
    pub exclude: Vec<FunctionPattern>,
    /// The grouping of the samples.
    pub by: Option<GroupBy>,
    /// Whether to show the native frames of interpreters.
    pub native_frames: bool,
    /// Whether to show the original functions of generated JavaScript.
    pub source_maps: bool,
    /// Whether to select only samples of threads that held the lock of their language's runtime.
    pub holders: bool,
}

/// A selection, resolved for one trace.
#[derive(Debug, Clone)]
pub struct Selected {
    /// The windows to read. No two contain the same sample.
    pub windows: Vec<Window>,
    /// The samples to keep in these windows.
    pub filter: SampleFilter,
    /// The grouping of the samples.
    pub by: Option<Grouping>,
    /// The selection as text, or `None` if it is everything.
    pub text: Option<String>,
}

impl Default for Selected {
    fn default() -> Self {
        let (filter, by, text) = Default::default();
        Self { windows: vec![Window::default()], filter, by, text }
    }
}

impl Selected {
    /// Returns whether the selection may have samples of this thread.
    pub fn covers(&self, thread: &ThreadSummary) -> bool {
        let covers = |threads: &BTreeSet<_>| threads.contains(&thread.id);
        self.windows.iter().any(|window| window.threads.as_ref().is_none_or(covers))
    }

    /// Starts the progress meter for a pass over all selected samples.
    pub(in crate::view) fn meter(&self, trace: &LazyTrace) {
        let is_whole = |window: &Window| (window.from_ns, window.to_ns) == (0, u64::MAX);
        let whole = match self.windows.iter().all(is_whole) {
            true => {
                let threads = trace.threads().iter();
                let times = |thread: &ThreadSummary| {
                    self.windows.iter().filter(|window| window.has_thread(thread.id)).count() as u64
                };
                threads.fold(0u64, |sum, it| sum.saturating_add(it.samples * times(it)))
            }
            // The index finds these samples; their number is known only at the end.
            false => 0,
        };
        meter::pass("reading", PassUnit::Samples, whole);
    }

    /// Returns the selection for a tree that shows shares of at least `min_percent`.
    ///
    /// Lighter groups are summed up and need no memory.
    pub fn for_tree(&self, min_percent: f64) -> Self {
        let by = self.by.as_ref();
        let is_limited = min_percent >= KEPT_PERCENT;
        let heaviest = by.filter(|_| is_limited).map(|by| by.heaviest(GROUPS_KEPT));
        Self { by: heaviest.or_else(|| by.cloned()), ..self.clone() }
    }

    /// Returns the selection for a table of `rows` rows.
    pub fn for_table(&self, rows: usize) -> Self {
        let by = self.by.as_ref().map(|by| by.heaviest(GROUPS_KEPT.max(rows)));
        Self { by, ..self.clone() }
    }

    /// Returns whether the user asks for contexts.
    pub fn asks_for_contexts(&self) -> bool {
        let by = self.by.as_ref().is_some_and(Grouping::is_asked_for);
        by || !self.filter.context.is_empty()
    }

    /// Returns an error for a trace without contexts if the user asks for them. An empty view would
    /// look as if nothing matched.
    ///
    /// A running recording is accepted, because contexts may still arrive.
    pub(in crate::view) fn check_contexts(
        &self,
        recording: &RecordingInfo,
        has_contexts: bool,
    ) -> Result<(), ViewError> {
        match self.asks_for_contexts() && !has_contexts && !recording.running {
            true => Err(ViewError::NoContext),
            false => Ok(()),
        }
    }
}

impl Selection {
    /// Resolves the selection for a trace.
    ///
    /// # Errors
    /// A message for the user: no thread or tag has this name, or the time range is empty.
    pub fn resolve(&self, trace: &LazyTrace) -> Result<Selected, String> {
        let recording = RecordingInfo::of(trace);
        let filter = self.filter_in(trace, &recording)?;
        self.resolve_in(&recording, trace.threads(), filter)
    }

    /// Resolves the selection for these threads.
    fn resolve_in(
        &self,
        recording: &RecordingInfo,
        threads: &[ThreadSummary],
        filter: SampleFilter,
    ) -> Result<Selected, String> {
        let keys = recording.tags();
        for tag in &self.tags {
            tag.check(&keys)?;
        }
        if let Some(by) = &self.by {
            Grouping::check(by, &keys)?;
        }
        for pattern in &self.threads {
            if !threads.iter().any(|summary| is_called(&summary.thread, pattern)) {
                let there = named(threads.iter().map(|summary| &summary.thread));
                return Err(format!("no thread is called {pattern:?}; there are {there}"));
            }
        }
        for pattern in &self.processes {
            if !threads.iter().any(|summary| is_of(&summary.thread, pattern, threads)) {
                let first = threads.iter().map(|it| &it.thread).filter(|it| it.tid == it.pid);
                let there = named(first);
                return Err(format!("no process is called {pattern:?}; there are {there}"));
            }
        }
        let (from_ns, to_ns) = self.times(recording)?;
        let chosen = self.choose(threads);
        let mut parts = self.times_text(recording, from_ns, to_ns);
        if let Some(chosen) = &chosen {
            let threads = threads.iter().filter(|summary| chosen.contains(&summary.id));
            let some = if chosen.len() == 1 { "thread" } else { "threads" };
            parts.push(format!("{some} {}", named(threads.map(|summary| &summary.thread))));
        }
        parts.extend(filter.texts());
        let text = (!parts.is_empty()).then(|| parts.join(", "));
        let windows = vec![Window { threads: chosen, from_ns, to_ns }];
        Ok(Selected { windows, filter, by: self.grouping(recording), text })
    }

    /// Resolves the filter and the grouping. Missing tags are no error, because they may still
    /// appear.
    pub fn resolve_filter(
        &self,
        trace: &LazyTrace,
    ) -> Result<(SampleFilter, Option<Grouping>), String> {
        let recording = RecordingInfo::of(trace);
        let filter = self.filter_in(trace, &recording)?;
        Ok((filter, self.grouping(&recording)))
    }

    fn grouping(&self, recording: &RecordingInfo) -> Option<Grouping> {
        self.by.as_ref().map(|by| Grouping::new(by, &recording.tags()))
    }

    fn filter_in(
        &self,
        trace: &LazyTrace,
        recording: &RecordingInfo,
    ) -> Result<SampleFilter, String> {
        let stacks = StackFilter::new(&self.include, &self.exclude, trace);
        let stacks = stacks.map_err(|error| format!("the names of functions: {error}"))?;
        Ok(SampleFilter { stacks, ..self.filter(recording, &texts_of(trace))? })
    }

    fn filter(
        &self,
        recording: &RecordingInfo,
        find: FindText<'_>,
    ) -> Result<SampleFilter, String> {
        let states = self.states.iter().copied().collect();
        let calls = self.calls.iter().copied().collect();
        let usual = if recording.has_wall() { Mode::Wall } else { Mode::Cpu };
        let context = ContextFilter::new(&self.spans, &self.roots);
        let context = context.with_tags(&self.tags, &recording.tags(), find)?;
        let mode = self.mode.unwrap_or(usual);
        let filter = SampleFilter { mode, states, calls, context, ..SampleFilter::default() };
        let filter = SampleFilter { holders: self.holders, ..filter };
        if self.holders && recording.lock().is_none() && !recording.running {
            return Err(NO_LOCK.to_owned());
        }
        match (recording.has_wall(), filter.mode) {
            (false, Mode::Wall) => Err("the trace holds CPU time only: record it with \
                `--mode wall` or `--mode cpu,wall`"
                .to_owned()),
            (false, Mode::Cpu) if filter.is_of_waits() => Err("the trace holds CPU time only, \
                without states and system calls: record it with `--mode wall` or `--mode cpu,wall`"
                .to_owned()),
            (true, Mode::Cpu) if filter.is_of_waits() => {
                Err("CPU time has no states and system calls: leave out `--mode cpu`".to_owned())
            }
            _ => Ok(filter),
        }
    }

    /// Returns the selected threads, or `None` for all.
    pub fn choose(&self, threads: &[ThreadSummary]) -> Option<BTreeSet<crate::trace::ThreadId>> {
        let meant = |summary: &&ThreadSummary| {
            let thread = &summary.thread;
            let mut processes = self.processes.iter();
            (self.threads.is_empty() || self.threads.iter().any(|it| is_called(thread, it)))
                && (self.processes.is_empty() || processes.any(|it| is_of(thread, it, threads)))
        };
        let chosen = || threads.iter().filter(meant).map(|summary| summary.id).collect();
        (!self.threads.is_empty() || !self.processes.is_empty()).then(chosen)
    }

    /// Returns the selected times on the clock of the samples, both inclusive.
    pub fn times(&self, recording: &RecordingInfo) -> Result<(u64, u64), String> {
        let begin_ns = recording.begin_ns().unwrap_or(0);
        let end_ns = recording.end_ns().unwrap_or(begin_ns);
        if let Some(TimePoint::Later(_)) = self.from {
            return Err("--from cannot be after itself: +TIME is for --to".to_owned());
        }
        let from_ns = self.from.map_or(Ok(0), |from| from.of(recording, 0))?;
        let to_ns = self.to.map_or(Ok(u64::MAX), |to| to.of(recording, from_ns))?;
        if from_ns > to_ns {
            return Err("nothing is between --from and --to: the first is later".to_owned());
        }
        if self.from.is_some() && from_ns > end_ns && recording.closed {
            let length = seconds(end_ns.saturating_sub(begin_ns));
            return Err(format!("the recording ends before --from: it lasts {length}"));
        }
        Ok((from_ns, to_ns))
    }

    fn times_text(&self, recording: &RecordingInfo, from_ns: u64, to_ns: u64) -> Vec<String> {
        if self.from.is_none() && self.to.is_none() {
            return Vec::new();
        }
        let begin_ns = recording.begin_ns().unwrap_or(0);
        let since = |time_ns: u64| time_ns.saturating_sub(begin_ns);
        let end_ns = recording.end_ns().unwrap_or(begin_ns);
        let (from, to) = (seconds(since(from_ns)), seconds(since(to_ns.min(end_ns))));
        vec![format!("{from} to {to} of {}", seconds(since(end_ns)))]
    }
}

/// Returns a function that finds the ids of texts of a trace.
fn texts_of(trace: &LazyTrace) -> impl Fn(&str) -> Result<BTreeSet<TextId>, String> {
    |text| trace.find_text(text).map_err(|error| format!("the texts of the trace: {error}"))
}

fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

fn is_called(thread: &Thread, pattern: &str) -> bool {
    pattern.parse() == Ok(thread.tid)
        || matches(pattern, thread.shown_name())
        || matches(pattern, &thread.name)
}

/// Returns whether a thread belongs to a process with this id, or with this name of its first
/// thread.
fn is_of(thread: &Thread, pattern: &str, threads: &[ThreadSummary]) -> bool {
    let is_first = |it: &&ThreadSummary| it.thread.pid == thread.pid && it.thread.tid == thread.pid;
    pattern.parse() == Ok(thread.pid)
        || threads.iter().filter(is_first).any(|first| {
            matches(pattern, &first.thread.name) || matches(pattern, first.thread.shown_name())
        })
}

/// Returns whether `name` matches `pattern`, in which `*` stands for any text. Backtracks only to
/// the last `*`, so that no pattern takes long.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut in_name) = (0, 0);
    let mut star = None;
    while in_name < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, in_name));
            at += 1;
        } else if pattern.get(at) == Some(&name[in_name]) {
            at += 1;
            in_name += 1;
        } else if let Some((star_at, taken)) = star {
            star = Some((star_at, taken + 1));
            at = star_at + 1;
            in_name = taken + 1;
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Lists threads in a message, at most [`NAMED_MAX`].
fn named<'a>(threads: impl Iterator<Item = &'a Thread>) -> String {
    let all: Vec<&Thread> = threads.collect();
    let some = all
        .iter()
        .take(NAMED_MAX)
        .map(|thread| format!("{} {:?}", thread.tid, thread.shown_name()));
    let some = some.collect::<Vec<_>>().join(", ");
    match all.len() {
        0 => "none".to_owned(),
        1..=NAMED_MAX => some,
        more => format!("{some} and {}", counted((more - NAMED_MAX) as u64, "other")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{ThreadId, Value};

    fn recording() -> RecordingInfo {
        let mut recording = RecordingInfo { closed: true, ..RecordingInfo::default() };
        for (key, ns) in
            [("start_monotonic_ns", 10_000_000_000), ("end_monotonic_ns", 14_000_000_000)]
        {
            recording.metadata.insert(key.to_owned(), Value::Unsigned(ns));
        }
        recording
    }

    fn threads(count: u32) -> Vec<ThreadSummary> {
        let thread = |id: u32| Thread {
            pid: 7,
            tid: 7 + id,
            name: format!("work-{id}"),
            ..Thread::default()
        };
        let summary = |id: u32| ThreadSummary {
            id: ThreadId(id),
            thread: thread(id),
            samples: 1,
            first_ns: None,
            last_ns: None,
        };
        (0..count).map(summary).collect()
    }

    fn resolve(selection: &Selection, threads: &[ThreadSummary]) -> Result<Selected, String> {
        let filter = selection.filter(&recording(), &|_| Ok(BTreeSet::new()))?;
        selection.resolve_in(&recording(), threads, filter)
    }

    fn times(from: &str, to: &str) -> Result<(u64, u64), String> {
        let moment = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        let (from, to) = (moment(from), moment(to));
        let selection = Selection { from, to, ..Selection::default() };
        let selected = resolve(&selection, &threads(1))?;
        Ok((selected.windows[0].from_ns, selected.windows[0].to_ns))
    }

    #[test]
    fn times_count_from_the_begin_of_the_recording() {
        assert_eq!(times("", ""), Ok((0, u64::MAX)));
        assert_eq!(times("1s", "1500ms"), Ok((11_000_000_000, 11_500_000_000)));
        assert_eq!(times("50%", ""), Ok((12_000_000_000, u64::MAX)));
        assert_eq!(times("", "25%"), Ok((0, 11_000_000_000)));
        assert!(times("3s", "2s").unwrap_err().contains("--from"));
        assert!(times("5s", "").unwrap_err().contains("lasts 4.000 s"));
        assert!(times("", "1h").is_ok());
        assert_eq!(times("-3s", "+1s"), Ok((11_000_000_000, 12_000_000_000)));
        assert!(times("+1s", "").unwrap_err().contains("for --to"));
    }

    #[test]
    fn threads_are_chosen_by_their_process() {
        let mut threads = threads(2);
        for (id, pid, tid, name) in [(2, 20, 20, "server"), (3, 20, 21, "work-0")] {
            let thread = Thread { pid, tid, name: name.to_owned(), ..Thread::default() };
            threads.push(ThreadSummary { id: ThreadId(id), thread, ..threads[0].clone() });
        }
        let choose = |processes: &[&str], names: &[&str]| {
            let [processes, names] = [processes, names]
                .map(|patterns| patterns.iter().map(|it| (*it).to_owned()).collect());
            let selection = Selection { threads: names, processes, ..Selection::default() };
            let selected = resolve(&selection, &threads)?;
            let ids = selected.windows[0].threads.clone().unwrap();
            Ok::<Vec<u32>, String>(ids.into_iter().map(|id| id.0).collect())
        };
        assert_eq!(choose(&["20"], &[]), Ok(vec![2, 3]));
        assert_eq!(choose(&["work*"], &[]), Ok(vec![0, 1]), "the name of a first thread");
        assert_eq!(choose(&["s*", "7"], &["work-0"]), Ok(vec![0, 3]));
        let error = choose(&["21"], &[]).unwrap_err();
        assert!(error.contains("there are 7 \"work-0\", 20 \"server\""), "{error}");
    }

    #[test]
    fn threads_are_chosen_by_id_or_name() {
        let choose = |patterns: &[&str]| {
            let threads = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
            let selection = Selection { threads, ..Selection::default() };
            let selected = resolve(&selection, &self::threads(12))?;
            let ids = selected.windows[0].threads.clone().unwrap();
            Ok::<Vec<u32>, String>(ids.into_iter().map(|id| id.0).collect())
        };
        assert_eq!(choose(&["9"]), Ok(vec![2]));
        assert_eq!(choose(&["work-3", "9"]), Ok(vec![2, 3]));
        assert_eq!(choose(&["*-1*"]), Ok(vec![1, 10, 11]));
        let error = choose(&["work"]).unwrap_err();
        assert!(error.contains("7 \"work-0\"") && error.ends_with("and 4 others"), "{error}");
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name) in [("*", ""), ("a*", "a"), ("*b*d", "abcbd"), ("**x", "x"), ("", "")] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", ""), ("a*b", "abc"), ("", "a"), ("?", "a"), ("*b*d*e", "bd")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn the_selection_is_described() {
        let text = |selection: Selection| {
            resolve(&selection, &threads(2)).unwrap().text.unwrap_or_default()
        };
        assert_eq!(text(Selection::default()), "");
        let from = Some(TimePoint::Percent(50.0));
        let both = Selection { threads: vec!["7".into()], from, ..Selection::default() };
        assert_eq!(text(both), "2.000 s to 4.000 s of 4.000 s, thread 7 \"work-0\"");
    }
}
