//! The timeline: the calls of each thread in time order, as a tree.
//!
//! # Invariants
//! - Memory holds a limited number of nodes, and some for each open level of the tree, whatever the
//!   size of the trace. If the selection or the weights can only be read from the samples, it also
//!   holds some bytes for each selected sample of a thread.
//! - Every child of a shown call has a line or is counted in one, unless it has no selected sample.
//! - A call that is left out, of an interpreter's own code, is transparent: its children are those
//!   of its caller. If it is too light for a line, it is one of the hidden children of its caller.
//! - In any window, the self weights of calls and the hidden weights add up to the weights of the
//!   calls, and these to the weights of their threads.
//! - The summary comes from one pass over all samples before the first call. It lists no functions,
//!   which would need memory for all of them.

mod call_line;
mod call_names;
mod folded_children;
mod json;
mod leaf_line;
mod thread_samples;

use std::io::{self, Write};

use crate::trace::{LazyCall, LazyNode, LazyTrace, ThreadSummary, Window};
use crate::view::print::options::PrintLimits;
use crate::view::print::summary;
use crate::view::profile::sample_totals::SampleTotals;
use crate::view::recording::context::ContextTags;
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::select::error::ViewError;
use crate::view::select::sample_filter::SampleFilter;
use crate::view::select::selection::Selected;
use crate::view::text::escape::escaped;
use crate::view::text::text_style::{Ink, TextStyle};
use call_line::LineWriter;
pub(in crate::view) use call_names::CallNames;
pub use call_names::duration;
use folded_children::FoldedChildren;
use json::ObjectWriter;
use leaf_line::time_us;
use thread_samples::{SampleShare, TimelineSamples};

/// Maximum number of children of a call that are loaded at once.
const AT_ONCE: u32 = 1000;
/// Approximate number of nodes below the children that are loaded with them, at the outermost
/// level.
///
/// Each level that is loaded separately gets half the number of the level outside it, so that all
/// levels together stay below twice this number.
const DEEP_NODES: usize = 32 << 10;
/// Maximum number of samples of calls that are loaded ahead. Larger calls are rarely complete in
/// one block.
const SMALL: f64 = 2000.0;
/// Maximum number of samples for which it is tried whether the whole timeline is short.
const WHOLE_SAMPLES: u64 = 10_000;

/// The options of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TimelineOptions {
    /// Whether to show every sample and the location of each call.
    pub verbose: bool,
    /// Whether to write JSON Lines, in which gaps and state changes always have their own objects.
    pub json: bool,
    /// The limits. Shares refer to the selected samples of the thread.
    pub limits: PrintLimits,
    /// The style of the text.
    pub style: TextStyle,
    /// Nothing is left out, whatever the limits are, if the text then has at most this number of
    /// lines.
    pub whole_lines: usize,
}

/// Writes the summary and the timelines.
pub fn write(
    trace: &LazyTrace,
    selected: &Selected,
    options: &TimelineOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    if !selected.filter.stacks.is_empty() {
        return Err(ViewError::NoStacks);
    }
    let (totals, shown) = SampleTotals::selected(trace, selected)?;
    let is_even = !totals.uneven;
    // Losses are known only after reading.
    let recording = RecordingInfo::of(trace).showing(selected.text.clone());
    selected.check_contexts(&recording, totals.has_contexts)?;
    if options.json {
        json::recording(&recording, totals, out)?;
        write_threads(trace, selected, (options, is_even), out)?;
    } else {
        let used = summary::write_with_activity(&recording, &totals, (&options.style, out))?;
        let lines = match totals.count.samples {
            ..=WHOLE_SAMPLES => options.whole_lines.saturating_sub(used),
            _ => 0,
        };
        match whole(trace, selected, (options, is_even), lines)? {
            Some(text) => out.write_all(&text)?,
            None => write_threads(trace, selected, (options, is_even), out)?,
        }
    }
    let covered = trace.threads().iter().filter(|thread| selected.covers(thread));
    let without = covered.filter(|thread| !shown.contains(&thread.id));
    if options.json {
        for summary in without {
            json::line(json::thread(summary, SampleShare::default()), out)?;
        }
        return Ok(());
    }
    let without: Vec<_> = without.map(|summary| &summary.thread).collect();
    crate::view::print::tree::idle_threads(out, without.into_iter())?;
    Ok(())
}

/// Returns the timelines with nothing left out, or `None` if they have more lines than this.
fn whole(
    trace: &LazyTrace,
    selected: &Selected,
    (options, is_even): (&TimelineOptions, bool),
    lines: usize,
) -> Result<Option<Vec<u8>>, ViewError> {
    let limits = PrintLimits::default();
    if lines == 0 || options.limits == limits {
        return Ok(None);
    }
    let mut screen = LimitedLines { text: Vec::new(), left: lines, is_full: false };
    let options = TimelineOptions { limits, ..*options };
    match write_threads(trace, selected, (&options, is_even), &mut screen) {
        Err(ViewError::Output(_)) if screen.is_full => Ok(None),
        written => written.map(|()| Some(screen.text)),
    }
}

/// A text in memory with a limited number of lines. Writing more fails.
struct LimitedLines {
    text: Vec<u8>,
    left: usize,
    is_full: bool,
}

impl Write for LimitedLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        if lines > self.left {
            self.is_full = true;
            return Err(io::Error::other("too many lines"));
        }
        self.left -= lines;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the timelines of new samples without a summary.
///
/// As JSON Lines, an object with their time range comes first.
pub fn write_new_samples(
    trace: &LazyTrace,
    selected: &Selected,
    options: &TimelineOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    if options.json {
        json::window(&RecordingInfo::of(trace), selected, out)?;
    }
    // The new samples have not been examined yet.
    write_threads(trace, selected, (options, false), out)
}

/// Writes the timelines. `is_even` says that every sample has the weight of one period.
fn write_threads(
    trace: &LazyTrace,
    selected: &Selected,
    (options, is_even): (&TimelineOptions, bool),
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    let recording = RecordingInfo::of(trace);
    let filter = &selected.filter;
    let shared = TimelineContext {
        trace,
        names: CallNames::new(trace),
        filter,
        options,
        names_processes: are_of_several(trace.threads()),
        tags: ContextTags::new(trace, &recording.tags()),
        base_ns: recording.begin_ns().unwrap_or(0),
        period_ns: recording.period_ns().unwrap_or(0.0) as u64,
    };
    for window in &selected.windows {
        for thread in trace.threads() {
            let chosen = window.threads.as_ref().is_none_or(|chosen| chosen.contains(&thread.id));
            let later = thread.first_ns.is_none_or(|first_ns| first_ns > window.to_ns);
            let earlier = thread.last_ns.is_none_or(|last_ns| last_ns < window.from_ns);
            if !chosen || later || earlier {
                continue;
            }
            // Otherwise the sample counts of the calls are sufficient.
            let needs_samples = recording.has_wall()
                || selected.filter.is_narrow()
                || !is_even
                || !is_whole(window, thread);
            let tally = match needs_samples {
                true => Some(TimelineSamples::new(trace, (thread.id, window), filter)?),
                false => None,
            };
            let all = tally
                .as_ref()
                .map_or_else(|| SampleShare::even(thread.samples), TimelineSamples::all);
            if all.samples > 0 || tally.is_none() {
                ThreadWalk { shared: &shared, window, thread, tally, all }.write(out)?;
            }
        }
    }
    Ok(())
}

fn are_of_several(threads: &[ThreadSummary]) -> bool {
    let mut pids = threads.iter().map(|summary| summary.thread.pid);
    let first = pids.next();
    pids.any(|pid| Some(pid) != first)
}

/// Returns whether all samples of a thread are in a window.
fn is_whole(window: &Window, thread: &ThreadSummary) -> bool {
    thread.first_ns.is_some_and(|first_ns| window.from_ns <= first_ns)
        && thread.last_ns.is_some_and(|last_ns| last_ns <= window.to_ns)
}

/// The data that the timelines of all threads share.
struct TimelineContext<'a> {
    trace: &'a LazyTrace,
    names: CallNames<'a>,
    filter: &'a SampleFilter,
    tags: ContextTags<'a>,
    options: &'a TimelineOptions,
    /// Whether there are threads of several processes.
    names_processes: bool,
    /// The time that printed times count from.
    base_ns: u64,
    /// The time that the first or last sample of a call stands for. It is added to the time between
    /// them.
    period_ns: u64,
}

/// The timeline of one thread.
struct ThreadWalk<'a> {
    shared: &'a TimelineContext<'a>,
    window: &'a Window,
    thread: &'a ThreadSummary,
    /// The selected samples and their weights, or `None` if all samples are selected and have the
    /// weight of one period.
    tally: Option<TimelineSamples>,
    /// The sum of the thread's samples in the window.
    all: SampleShare,
}

/// A call whose children are being written.
struct WalkLevel {
    call: LazyCall,
    next: u32,
    /// The number of nodes that may be loaded ahead.
    deep_nodes: usize,
    /// Whether the call has no line of its own.
    is_left_out: bool,
    /// The start of the innermost call with a line, which its first callee need not repeat.
    begin_ns: Option<u64>,
}

impl WalkLevel {
    fn new(call: LazyCall, deep_nodes: usize) -> Self {
        Self { call, next: 0, deep_nodes, is_left_out: false, begin_ns: None }
    }

    /// Returns the level of a child that was taken out.
    fn inside(&self, mut call: LazyCall, walk: &ThreadWalk) -> Self {
        walk.narrow(&mut call);
        let is_loaded = call.is_loaded();
        Self::new(call, if is_loaded { self.deep_nodes } else { self.deep_nodes / 2 })
    }

    /// Takes the next child out of the tree.
    fn next_child(&mut self, walk: &ThreadWalk) -> Result<Option<LazyNode>, ViewError> {
        let mut child = self.call.take(self.next);
        let ended = self.call.child_count().is_some_and(|count| self.next >= count);
        if child.is_none() && !ended {
            walk.load_ahead(self)?;
            child = self.call.take(self.next);
        }
        self.next = self.next.saturating_add(1);
        Ok(child)
    }
}

impl ThreadWalk<'_> {
    fn write(&self, out: &mut dyn Write) -> Result<(), ViewError> {
        match self.shared.options.json {
            true => json::line(json::thread(self.thread, self.all), out)?,
            false => self.title(out)?,
        }
        let mut root = self.shared.trace.roots(self.thread.id)?;
        self.narrow(&mut root);
        let mut levels = vec![WalkLevel::new(root, DEEP_NODES)];
        // One for each level that is not left out.
        let mut folded = vec![FoldedChildren::default()];
        while let (Some(level), depth, Some(children)) =
            (levels.last_mut(), folded.len(), folded.last_mut())
        {
            match level.next_child(self)? {
                None if level.is_left_out => drop(levels.pop()),
                None => {
                    self.flush(children, depth, out)?;
                    levels.pop();
                    folded.pop();
                }
                Some(LazyNode::Call(call)) if self.is_transparent(&call)? => {
                    let begin_ns = level.begin_ns;
                    let level = level.inside(*call, self);
                    levels.push(WalkLevel { is_left_out: true, begin_ns, ..level });
                }
                Some(LazyNode::Call(call)) if self.is_shown(&call) => {
                    self.flush(children, depth, out)?;
                    let share = self.share(&call);
                    let begin_ns = Some(share.begin_ns(self.shared.filter.mode));
                    let own_begin_ns = begin_ns.filter(|_| begin_ns != level.begin_ns);
                    match self.shared.options.json {
                        true => self.objects().call((&call, share), depth, out)?,
                        false => self.lines().call((&call, share), own_begin_ns, depth, out)?,
                    }
                    let level = level.inside(*call, self);
                    levels.push(WalkLevel { begin_ns, ..level });
                    folded.push(FoldedChildren::default());
                }
                Some(LazyNode::Call(call)) => {
                    let share = self.share(&call);
                    if share.samples > 0 {
                        children.children(1, share);
                    }
                }
                Some(leaf) if self.is_dropped(&leaf) => {}
                Some(leaf) => {
                    if !self.fold(&leaf, children) {
                        self.flush(children, depth, out)?;
                        match self.shared.options.json {
                            true => self.objects().leaf(&leaf, depth, out)?,
                            false => self.lines().leaf(&leaf, depth, out)?,
                        }
                    }
                }
            }
            self.end_at_limit((&mut levels, &mut folded), out)?;
        }
        Ok(())
    }

    fn lines(&self) -> LineWriter<'_> {
        LineWriter { shared: self.shared }
    }

    fn objects(&self) -> ObjectWriter<'_> {
        let Self { shared, window, thread, .. } = self;
        ObjectWriter { shared, thread, from_ns: window.from_ns }
    }

    fn title(&self, out: &mut dyn Write) -> io::Result<()> {
        let thread = &self.thread.thread;
        let number = u64::from(self.thread.id.0) + 1;
        let mut title =
            format!("# Thread {number} ({}, tid {}", escaped(thread.shown_name()), thread.tid);
        if self.shared.names_processes {
            title.push_str(&format!(" of process {}", thread.pid));
        }
        title.push(')');
        if let (true, Mode::Wall, Some(tally)) =
            (self.shared.options.verbose, self.shared.filter.mode, &self.tally)
        {
            title.push_str(&format!(": {}", tally.states.of_thread()));
        }
        let style = self.shared.options.style;
        writeln!(out)?;
        for line in style.wrapped(&title, 0) {
            writeln!(out, "{}", style.paint(Some(Ink::Heading), &line))?;
        }
        Ok(())
    }

    /// Folds all children of a call at the depth limit.
    fn end_at_limit(
        &self,
        (levels, folded): (&mut Vec<WalkLevel>, &mut Vec<FoldedChildren>),
        out: &mut dyn Write,
    ) -> Result<(), ViewError> {
        let depth = folded.len();
        let too_deep = self.shared.options.limits.depth.is_some_and(|limit| depth > limit);
        if let (true, Some(mut level), Some(mut hidden)) =
            (too_deep, levels.pop_if(|_| too_deep), folded.pop_if(|_| too_deep))
        {
            let children = self.shared.trace.count_children(&mut level.call)?;
            let share = self.share(&level.call);
            hidden.children(children, share);
            self.flush(&mut hidden, depth, out)?;
        }
        Ok(())
    }

    /// Loads the next children, and for the shown ones also their descendants.
    fn load_ahead(&self, level: &mut WalkLevel) -> Result<(), ViewError> {
        let WalkLevel { call, next, deep_nodes, .. } = level;
        let children = *next..next.saturating_add(AT_ONCE);
        let samples = self.shared.options.limits.min_percent / 100.0 * self.all.samples as f64;
        if samples > SMALL {
            return Ok(self.shared.trace.load_range(call, children)?);
        }
        Ok(self.shared.trace.load_small(call, children, *deep_nodes)?)
    }

    /// Drops the nodes outside the window from a call that extends beyond it.
    fn narrow(&self, call: &mut LazyCall) {
        let Window { from_ns, to_ns, .. } = *self.window;
        if call.first_ns() < from_ns || call.last_ns() > to_ns {
            call.narrow(self.window);
        }
    }

    fn is_shown(&self, call: &LazyCall) -> bool {
        let share = self.share(call);
        let least = self.shared.options.limits.min_percent / 100.0;
        let all = self.all.weight as f64;
        (share.samples > 0 || self.tally.is_none()) && share.weight as f64 >= least * all
    }

    /// Returns the selected samples in a call.
    fn share(&self, call: &LazyCall) -> SampleShare {
        let span_ns = call.last_ns().saturating_sub(call.first_ns());
        let first_ns = call.first_ns();
        let all = || SampleShare { span_ns, first_ns, ..SampleShare::even(call.samples()) };
        self.tally.as_ref().map_or_else(all, |tally| tally.of(call))
    }

    /// Returns whether a call is left out, and its children are shown in its place.
    fn is_transparent(&self, call: &LazyCall) -> Result<bool, ViewError> {
        let Some(location) = call.location() else { return Ok(false) };
        let is_read = call.is_loaded() || self.is_shown(call);
        Ok(is_read && self.shared.trace.is_left_out(location)?)
    }

    /// Returns whether a leaf is a sample that the filter drops.
    fn is_dropped(&self, leaf: &LazyNode) -> bool {
        let LazyNode::Sample(sample) = leaf else { return false };
        self.tally.is_some() && !self.shared.filter.has(sample)
    }

    /// Counts a leaf that gets no line. Returns whether it did.
    fn fold(&self, leaf: &LazyNode, folded: &mut FoldedChildren) -> bool {
        let TimelineOptions { verbose, json, .. } = *self.shared.options;
        match leaf {
            _ if verbose => return false,
            LazyNode::Sample(sample) => folded.sample(sample.weight, time_us(sample)),
            _ if json => return false,
            LazyNode::Gap { from_ns, to_ns } => folded.gap(to_ns.saturating_sub(*from_ns)),
            _ => return false,
        }
        true
    }

    fn flush(
        &self,
        folded: &mut FoldedChildren,
        depth: usize,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let whole = self.all.weight;
        if self.shared.options.json {
            return self.objects().folded(folded, (whole, depth), out);
        }
        folded.write(whole, &self.lines().indent(depth), (&self.shared.options.style, out))
    }
}
