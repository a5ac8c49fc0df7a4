//! The timeline: per thread its calls in the order of their times, as a tree.
//!
//! # Invariants
//! - A limited number of nodes is in memory, besides some for each open level of the tree, whatever
//!   the size of the trace.
//! - Every child of a call that is shown has a line, or is counted in one.

mod folded;
mod names;

use std::io::{self, Write};

use super::error::ViewError;
use super::escape::escaped;
use super::recording::Recording;
use super::rows::{Limits, counted};
use super::selection::Selected;
use super::summary::{self, Seen};
use crate::trace::{LazyCall, LazyNode, LazyTrace, Sample, ThreadSummary, Window};
use folded::Folded;
use names::CallNames;
pub use names::duration;

/// How many children of a call are loaded at once.
const AT_ONCE: u32 = 1000;
/// About how many nodes below them are loaded with them, at the outermost level. Each level that has
/// to be loaded on its own gets half of what the one outside it got, so that all of them together
/// stay below twice this.
const DEEP_NODES: usize = 32 << 10;
/// Calls of more samples than this are rarely found whole in one block: where only these are shown,
/// nothing is loaded ahead.
const SMALL: f64 = 2000.0;
/// Deeper than this, lines are not indented further: the depth is the target's choice, and a line
/// of thousands of spaces is of no use. The depth is written instead.
const INDENT_MAX: usize = 128;

/// How a timeline is printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimelineOptions {
    /// Every sample, and where each call is.
    pub verbose: bool,
    /// What is left out; shares are of the samples of the thread that are looked at.
    pub limits: Limits,
}

/// Writes the summary and the timelines.
pub fn write(
    trace: &LazyTrace,
    selected: &Selected,
    options: &TimelineOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    let recording = Recording::of(trace).showing(selected);
    let covered = || trace.threads().iter().filter(|thread| selected.covers(thread));
    summary::write(&recording, &Seen::in_threads(covered()), out)?;
    write_threads(trace, selected, options, out)?;
    let idle: Vec<_> = covered().filter(|thread| thread.samples == 0).collect();
    super::tree::idle_threads(out, idle.iter().map(|summary| &summary.thread))?;
    Ok(())
}

/// Writes the timelines alone.
pub fn write_threads(
    trace: &LazyTrace,
    selected: &Selected,
    options: &TimelineOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    let recording = Recording::of(trace);
    let base_ns = recording.begin_ns().unwrap_or(0);
    let period_ns = recording.period_ns().unwrap_or(0.0) as u64;
    let names = CallNames::new(trace);
    for window in &selected.windows {
        for thread in trace.threads() {
            let chosen = window.threads.as_ref().is_none_or(|chosen| chosen.contains(&thread.id));
            let later = thread.first_ns.is_none_or(|first_ns| first_ns > window.to_ns);
            let earlier = thread.last_ns.is_none_or(|last_ns| last_ns < window.from_ns);
            if chosen && !later && !earlier {
                let shown = samples_in(trace, window, thread)?;
                let least = options.limits.min_percent / 100.0 * shown as f64;
                let names = &names;
                let walk =
                    Walk { trace, names, window, options, thread, base_ns, period_ns, least };
                walk.write(out)?;
            }
        }
    }
    Ok(())
}

/// How many samples of a thread lie in a window.
fn samples_in(
    trace: &LazyTrace,
    window: &Window,
    thread: &ThreadSummary,
) -> Result<u64, ViewError> {
    let starts = thread.first_ns.is_some_and(|first_ns| window.from_ns <= first_ns);
    if starts && thread.last_ns.is_some_and(|last_ns| last_ns <= window.to_ns) {
        return Ok(thread.samples);
    }
    let window = Window { threads: Some([thread.id].into()), ..window.clone() };
    let mut count = 0;
    trace.for_each_sample(&window, &mut |_, _, _| count += 1)?;
    Ok(count)
}

/// The timeline of one thread.
struct Walk<'a> {
    trace: &'a LazyTrace,
    names: &'a CallNames<'a>,
    window: &'a Window,
    options: &'a TimelineOptions,
    thread: &'a ThreadSummary,
    /// What the times of samples are relative to.
    base_ns: u64,
    /// Added to the time between the first and the last sample of a call: either stands for one.
    period_ns: u64,
    /// Calls of fewer samples are folded.
    least: f64,
}

/// A call whose children are being written.
struct Level {
    call: LazyCall,
    next: u32,
    /// How many nodes may be loaded ahead.
    deep_nodes: usize,
    folded: Folded,
}

impl Level {
    fn new(call: LazyCall, deep_nodes: usize) -> Self {
        Self { call, next: 0, deep_nodes, folded: Folded::default() }
    }

    /// The next child, taken out of the tree.
    fn next_child(&mut self, walk: &Walk) -> Result<Option<LazyNode>, ViewError> {
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

impl Walk<'_> {
    fn write(&self, out: &mut dyn Write) -> Result<(), ViewError> {
        let thread = &self.thread.thread;
        let number = u64::from(self.thread.id.0) + 1;
        writeln!(out, "\n# Thread {number} ({}, tid {})", escaped(&thread.name), thread.tid)?;
        let mut root = self.trace.roots(self.thread.id)?;
        self.narrow(&mut root);
        let mut levels = vec![Level::new(root, DEEP_NODES)];
        while !levels.is_empty() {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { break };
            match level.next_child(self)? {
                None => {
                    self.flush(level, depth, out)?;
                    levels.pop();
                }
                Some(LazyNode::Call(mut call)) if self.is_shown(&call) => {
                    self.flush(level, depth, out)?;
                    self.call(&call, depth, out)?;
                    self.narrow(&mut call);
                    let deep_nodes = match call.is_loaded() {
                        true => level.deep_nodes,
                        false => level.deep_nodes / 2,
                    };
                    levels.push(Level::new(*call, deep_nodes));
                }
                Some(LazyNode::Call(call)) => level.folded.call(call.samples()),
                Some(leaf) => {
                    if !self.fold(&leaf, &mut level.folded) {
                        self.flush(level, depth, out)?;
                        self.leaf(&leaf, depth, out)?;
                    }
                }
            }
            self.end_at_limit(&mut levels, out)?;
        }
        Ok(())
    }

    /// Folds all children of a call that is as deep as is shown.
    fn end_at_limit(&self, levels: &mut Vec<Level>, out: &mut dyn Write) -> Result<(), ViewError> {
        let depth = levels.len();
        let too_deep = self.options.limits.depth.is_some_and(|limit| depth > limit);
        if let Some(level) = levels.last_mut().filter(|_| too_deep) {
            let children = self.trace.count_children(&mut level.call)?;
            level.folded.children(children, level.call.samples());
            level.folded.write(self.thread.samples, &indent(depth), out)?;
            levels.pop();
        }
        Ok(())
    }

    /// Loads the next children, those of them that are shown with what is in them.
    fn load_ahead(&self, level: &mut Level) -> Result<(), ViewError> {
        let Level { call, next, deep_nodes, .. } = level;
        let children = *next..next.saturating_add(AT_ONCE);
        if self.least > SMALL {
            return Ok(self.trace.load_range(call, children)?);
        }
        Ok(self.trace.load_small(call, children, *deep_nodes)?)
    }

    /// Leaves of a call that reaches beyond the window what lies in it.
    fn narrow(&self, call: &mut LazyCall) {
        let Window { from_ns, to_ns, .. } = *self.window;
        if call.first_ns() < from_ns || call.last_ns() > to_ns {
            call.narrow(self.window);
        }
    }

    fn is_shown(&self, call: &LazyCall) -> bool {
        call.samples() as f64 >= self.least
    }

    /// Whether a leaf is only counted.
    fn fold(&self, leaf: &LazyNode, folded: &mut Folded) -> bool {
        let verbose = self.options.verbose;
        match leaf {
            LazyNode::Sample(_) if !verbose => folded.sample(),
            LazyNode::Gap { from_ns, to_ns } if !verbose => {
                folded.gap(to_ns.saturating_sub(*from_ns));
            }
            LazyNode::State { .. } if !verbose => folded.state(),
            _ => return false,
        }
        true
    }

    fn flush(&self, level: &mut Level, depth: usize, out: &mut dyn Write) -> io::Result<()> {
        level.folded.write(self.thread.samples, &indent(depth), out)
    }

    fn call(&self, call: &LazyCall, depth: usize, out: &mut dyn Write) -> Result<(), ViewError> {
        let length_ns = call.last_ns().saturating_sub(call.first_ns());
        let observed = duration(length_ns.saturating_add(self.period_ns));
        let samples = counted(call.samples(), "sample");
        let known = call.location().map(|location| self.names.of(location)).transpose()?;
        let name = known.as_ref().map_or("[unknown]", |known| &known.name);
        let place =
            known.as_ref().filter(|_| self.options.verbose).map_or("", |known| &known.place);
        let lead = indent(depth);
        write!(out, "{lead}{name}: {samples}, ~{observed}")?;
        for (is_so, mark) in [
            (call.begin_lost(), " <begin lost>"),
            (call.end_lost(), " <end lost>"),
            (call.unfinished(), " <unfinished>"),
        ] {
            write!(out, "{}", if is_so { mark } else { "" })?;
        }
        writeln!(out, "{place}")?;
        Ok(())
    }

    fn leaf(&self, leaf: &LazyNode, depth: usize, out: &mut dyn Write) -> io::Result<()> {
        let lead = indent(depth);
        let at =
            |time_ns: u64| format!("{:.6} s", time_ns.saturating_sub(self.base_ns) as f64 / 1e9);
        match leaf {
            // The walk takes calls itself.
            LazyNode::Call(_) => Ok(()),
            LazyNode::Sample(sample) => {
                writeln!(out, "{lead}sample at {}: {}", at(sample.time_ns), describe(sample))
            }
            LazyNode::Gap { from_ns, to_ns } => {
                writeln!(out, "{lead}... <gap {}>", duration(to_ns.saturating_sub(*from_ns)))
            }
            LazyNode::ThreadStart { time_ns } => {
                writeln!(out, "{lead}... <thread began at {}>", at(*time_ns))
            }
            LazyNode::ThreadExit { time_ns } => {
                writeln!(out, "{lead}... <thread ended at {}>", at(*time_ns))
            }
            LazyNode::State { time_ns, state, syscall } => {
                let state = state_name(*state, *syscall);
                writeln!(out, "{lead}... <{state} from {}>", at(*time_ns))
            }
            LazyNode::Lost { from_ns, to_ns, samples } => {
                let samples = match samples {
                    Some(samples) => counted(*samples, "sample"),
                    None => "samples".to_owned(),
                };
                let length = match to_ns.checked_sub(*from_ns) {
                    Some(length_ns) if *to_ns != u64::MAX => duration(length_ns),
                    _ => "up to the end".to_owned(),
                };
                writeln!(out, "{lead}... <lost {samples}, {length}>")
            }
        }
    }
}

/// What is known of a sample, apart from its time.
fn describe(sample: &Sample) -> String {
    let mut text =
        format!("weight {}, {}", sample.weight, state_name(sample.state, sample.syscall));
    if sample.trace_id != 0 {
        text.push_str(&format!(", trace {:#x}", sample.trace_id));
    }
    for (name, id) in [("span", sample.span), ("root span", sample.root_span)] {
        if id != 0 {
            text.push_str(&format!(", {name} {id}"));
        }
    }
    for (number, tag) in sample.tags.iter().enumerate().filter(|(_, tag)| **tag != 0) {
        text.push_str(&format!(", tag {number} = {tag}"));
    }
    text
}

fn state_name(state: u8, syscall: Option<u32>) -> String {
    let state = if state == 0 { "running".to_owned() } else { format!("state {state}") };
    match syscall {
        Some(number) => format!("{state} in system call {number}"),
        None => state,
    }
}

fn indent(depth: usize) -> String {
    match depth {
        ..=INDENT_MAX => "  ".repeat(depth),
        deeper => format!("{}[{deeper}] ", "  ".repeat(INDENT_MAX)),
    }
}
