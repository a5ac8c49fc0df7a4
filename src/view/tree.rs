//! The printed trace: a summary, then for each thread its call tree, heaviest first.

use std::cmp::Reverse;
use std::io::{self, Write};

use super::calls::{CallTree, Count, Grower};
use super::escape::escaped;
use super::names::{NameId, Names};
use super::profile::{Profile, ThreadProfile};
use super::rows::{Limits, Rows, Scale, counted, percent, seconds};
use super::summary::{self, Seen};
use crate::trace::{LocationId, Thread};

/// How a trace is printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TreeOptions {
    /// By place in the source or the module, not by function.
    pub verbose: bool,
    /// What is left out.
    pub limits: Limits,
}

/// Writes the summary and the call trees.
pub fn write(profile: &Profile, options: &TreeOptions, out: &mut dyn Write) -> io::Result<()> {
    summary::write(&profile.recording, &Seen::in_profile(profile), out)?;
    write_threads(profile, options, out)
}

/// Writes the call trees alone.
pub fn write_threads(
    profile: &Profile,
    options: &TreeOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let names =
        if options.verbose { Names::of_places(profile) } else { Names::of_functions(profile) };
    let sections = Sections {
        names: &names,
        limits: options.limits,
        verbose: options.verbose,
        scale: Scale { all: profile.count().weight, period_ns: profile.recording.period_ns() },
    };
    let mut threads: Vec<&ThreadProfile> = profile.threads.iter().collect();
    threads
        .sort_by_key(|thread| (Reverse(thread.count.weight), thread.thread.pid, thread.thread.tid));
    let idle = threads.iter().position(|thread| thread.count.samples == 0);
    let (sampled, idle) = threads.split_at(idle.unwrap_or(threads.len()));
    let least = options.limits.min_percent / 100.0 * sections.scale.all as f64;
    let heavy = sampled.partition_point(|thread| thread.count.weight as f64 >= least);
    let (heavy, light) = match sampled.split_at(heavy) {
        (_, [_]) => (sampled, &[][..]),
        split => split,
    };
    for thread in heavy {
        sections.thread(out, thread)?;
    }
    sections.light_threads(out, light)?;
    idle_threads(out, idle.iter().map(|profile| &profile.thread))
}

/// Writes the parts of the print that hold a tree.
struct Sections<'a> {
    names: &'a Names,
    limits: Limits,
    verbose: bool,
    scale: Scale,
}

impl Sections<'_> {
    fn thread(&self, out: &mut dyn Write, profile: &ThreadProfile) -> io::Result<()> {
        let mut title = describe(profile);
        if let Some((pid, tid)) = profile.inner_ids.filter(|_| self.verbose) {
            title.push_str(&format!(" (thread {tid} of process {pid} in its namespace)"));
        }
        self.section(out, &title, profile.count, &[&profile.tree])
    }

    /// Threads that are too light for a tree of their own: one tree for all of them.
    fn light_threads(&self, out: &mut dyn Write, threads: &[&ThreadProfile]) -> io::Result<()> {
        if threads.is_empty() {
            return Ok(());
        }
        let mut count = Count::default();
        for thread in threads {
            count += thread.count;
        }
        let trees: Vec<_> = threads.iter().map(|thread| &thread.tree).collect();
        let number = counted(threads.len() as u64, "thread");
        let title = format!("{number} below {} % of all, together", self.limits.min_percent);
        self.section(out, &title, count, &trees)
    }

    fn section(
        &self,
        out: &mut dyn Write,
        title: &str,
        count: Count,
        trees: &[&CallTree<LocationId>],
    ) -> io::Result<()> {
        write!(out, "\n{title}: {:.1} % of all", percent(count.weight, self.scale.all))?;
        if let Some(period_ns) = self.scale.period_ns {
            write!(out, ", {} s", seconds(count.weight, period_ns))?;
        }
        let periods = counted(count.weight, "period");
        writeln!(out, ", {periods} in {}", counted(count.samples, "sample"))?;
        let mut grower = Grower::<NameId>::default();
        for tree in trees {
            grower.graft(tree, |location| self.names.id(location));
        }
        Rows::new(&grower.finish(), self.names, self.limits, self.scale).write(out)
    }
}

/// A thread in one phrase.
fn describe(profile: &ThreadProfile) -> String {
    let thread = &profile.thread;
    let name = escaped(&thread.name);
    let process = if thread.pid == thread.tid {
        String::new()
    } else {
        format!(" of process {}", thread.pid)
    };
    format!("thread {} \"{name}\"{process}", thread.tid)
}

/// Threads that there is nothing else to say of.
pub(super) fn idle_threads<'a>(
    out: &mut dyn Write,
    threads: impl ExactSizeIterator<Item = &'a Thread>,
) -> io::Result<()> {
    if threads.len() == 0 {
        return Ok(());
    }
    write!(out, "\n{} without a sample:", counted(threads.len() as u64, "thread"))?;
    let mut names: Vec<_> = threads.map(|thread| escaped(&thread.name)).collect();
    names.sort();
    for group in names.chunk_by(|a, b| a == b) {
        let name = &group[0];
        let times = if group.len() == 1 { String::new() } else { format!(" x{}", group.len()) };
        write!(out, " \"{name}\"{times}")?;
    }
    writeln!(out)
}
