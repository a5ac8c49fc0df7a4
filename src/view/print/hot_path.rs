//! The hot path: the heaviest chain of calls, from the root to where it ends or spreads.
//!
//! Calls with nearly the same weight share a line, because a line for each of them would tell
//! nothing more. Of wall-clock time the path shows what threads ran or waited for a processor for:
//! otherwise it would mostly end in a wait for work.
//!
//! # Invariants
//! - The weights along a path never increase.

use std::io::{self, Write};

use crate::trace::RunState;
use crate::view::print::options::{Split, TreeOptions};
use crate::view::print::tree_columns::dash;
use crate::view::print::tree_sections::TreeSections;
use crate::view::profile::call_tree::{CallTree, StackStep};
use crate::view::profile::step_names::{NameId, StepNames};
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::mode::Mode;
use crate::view::text::number::{counted, percent, wall_seconds};
use crate::view::text::text_style::{Ink, TextStyle};
use unicode_width::UnicodeWidthStr;

/// The path ends before a call below this percentage of all.
const LEAST_PERCENT: f64 = 3.0;
/// A call of at least this percentage of its caller's weight shares the line of the caller.
const SAME_PERCENT: u64 = 98;
/// The percentage of wall-clock time below which running threads have no path of their own.
const RUN_PERCENT: f64 = 1.0;
/// Maximum number of calls in a line that are all named.
const NAMED_MAX: usize = 3;
/// Width of the numbers before the calls.
const NUMBERS: usize = 17;

/// The heaviest chain of calls of the threads that are not idle.
pub(super) struct HotPath {
    segments: Vec<PathSegment>,
    /// The weight that shares refer to.
    whole: u64,
    /// What the path is of, if it is only a part of the time.
    of: Option<String>,
}

/// Calls with nearly the same weight, each called by the one before it.
#[derive(Debug, Default)]
struct PathSegment {
    names: Vec<String>,
    /// The weight of the last call.
    total: u64,
    /// The weight in the calls themselves.
    own: u64,
    is_root: bool,
}

impl HotPath {
    /// Finds the path of a profile.
    pub(super) fn new(profile: &Profile, options: &TreeOptions) -> Self {
        let options = TreeOptions { split: Split::Together, inverted: false, ..*options };
        let forest = TreeSections::new(profile, &options);
        let Some(section) = forest.sections.first() else {
            return Self { segments: Vec::new(), whole: 0, of: None };
        };
        let tree = forest.tree(section);
        let all = weights(&tree, |_| true);
        let runs = |step: StackStep<NameId>| match step {
            StackStep::Wait(id) => {
                profile.waits.get(id).is_some_and(|it| it.state == RunState::Runnable as u8)
            }
            _ => true,
        };
        let running = weights(&tree, runs);
        let is_of_running =
            profile.mode == Mode::Wall && percent(running.0[0], all.0[0]) >= RUN_PERCENT;
        let shown = if is_of_running { running } else { all };
        let whole = shown.0[0];
        let time = || wall_seconds(whole);
        let of = is_of_running
            .then(|| format!(" of the {} s that threads ran or were runnable", time()));
        let least = options.rows_min_percent.max(LEAST_PERCENT);
        Self { segments: segments(&tree, &forest.names, shown, (whole, least)), whole, of }
    }

    /// Returns the number of lines that the path takes, without its heading.
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    /// Writes the heading and at most `most` lines.
    pub(super) fn write(
        &self,
        most: usize,
        style: &TextStyle,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut head = "total %  self %  hot path".to_owned();
        let of = self.of.as_deref().unwrap_or_default();
        if style.width.is_none_or(|width| head.width() + of.width() <= width) {
            head.push_str(of);
        }
        writeln!(out, "\n{}", style.paint(Some(Ink::Heading), &head))?;
        let most = most.max(1);
        // The last line is where the time goes. It is kept.
        let (first, rest) = match self.segments.len() > most {
            true => self.segments.split_at(most.saturating_sub(2)),
            false => self.segments.split_at(self.segments.len()),
        };
        for segment in first {
            self.line(segment, style, out)?;
        }
        let Some((last, left_out)) = rest.split_last() else { return Ok(()) };
        if most > 1 {
            let calls: usize = left_out.iter().map(|it| it.names.len()).sum();
            writeln!(out, "{:NUMBERS$}... {}", "", counted(calls as u64, "call"))?;
        }
        self.line(last, style, out)
    }

    fn line(
        &self,
        segment: &PathSegment,
        style: &TextStyle,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let share = percent(segment.total, self.whole);
        let total = format!("{share:7.1}");
        let own = format!("{:.1}", percent(segment.own, self.whole));
        let own_share = percent(segment.own, self.whole);
        let own = format!("{:>8}", dash(segment.own, own));
        let text = segment.text(style.width.map(|width| width.saturating_sub(NUMBERS)));
        let text = style.fit(&text, NUMBERS);
        let total = style.paint(Ink::of_share(share), &total);
        let own = style.paint(Ink::of_share(own_share), &own);
        writeln!(out, "{total}{own}  {text}")
    }
}

impl PathSegment {
    /// Returns the names of the calls, or as many as fit into `room` columns.
    fn text(&self, room: Option<usize>) -> String {
        let all = self.names.join(" > ");
        let fits = |text: &str| room.is_none_or(|room| text.width() <= room);
        let (Some(first), Some(last)) = (self.names.first(), self.names.last()) else {
            return all;
        };
        let inner = self.names.len().saturating_sub(2);
        let outer = self.names.len().saturating_sub(1);
        let folded = format!("({}) > {last}", counted(outer as u64, "call"));
        // The outermost calls are the same in all programs.
        if self.is_root && outer > 1 {
            return folded;
        }
        if self.names.len() <= NAMED_MAX && fits(&all) || outer == 0 {
            return all;
        }
        let both = format!("{first} > ({}) > {last}", counted(inner as u64, "call"));
        if inner > 0 && fits(&both) { both } else { folded }
    }
}

/// Returns the weight of each call with its callees, and without, of the steps that count.
fn weights(
    tree: &CallTree<NameId>,
    counts: impl Fn(StackStep<NameId>) -> bool,
) -> (Vec<u64>, Vec<u64>) {
    let calls = tree.calls();
    let own: Vec<u64> =
        calls.iter().map(|call| if counts(call.step) { call.own.weight } else { 0 }).collect();
    let mut totals = own.clone();
    for index in (1..calls.len()).rev() {
        let total = totals[index];
        let caller = &mut totals[calls[index].caller()];
        *caller = caller.saturating_add(total);
    }
    (totals, own)
}

/// Follows the heaviest calls from the root, down to `least` percent of `whole`.
fn segments(
    tree: &CallTree<NameId>,
    names: &StepNames,
    (totals, own): (Vec<u64>, Vec<u64>),
    (whole, least): (u64, f64),
) -> Vec<PathSegment> {
    let callees = tree.callees();
    let mut segments: Vec<PathSegment> = Vec::new();
    // The weight of the first call of the last segment.
    let mut begin = 0u64;
    let mut at = 0;
    loop {
        // Of equally heavy calls, the first one in the order of the tree's stacks.
        let heaviest = callees[at].iter().copied().rev().max_by_key(|index| totals[*index]);
        let Some(next) = heaviest else { break };
        let total = totals[next];
        // The path ends where most of the time is spent in the call itself.
        if total == 0 || total < own[at] || percent(total, whole) < least {
            break;
        }
        let step = tree.calls()[next].step;
        let is_same = total.saturating_mul(100) >= begin.saturating_mul(SAME_PERCENT);
        let is_wait = matches!(step, StackStep::Wait(_));
        if segments.is_empty() || !is_same || is_wait {
            begin = total;
            segments.push(PathSegment { is_root: segments.is_empty(), ..PathSegment::default() });
        }
        if let Some(segment) = segments.last_mut() {
            segment.names.push(names.text(step).to_owned());
            segment.total = total;
            segment.own = segment.own.saturating_add(own[next]);
        }
        at = next;
    }
    segments
}
