//! The printed trace: a summary, then for each thread its call tree, heaviest first.

use std::cmp::Reverse;
use std::io::{self, Write};

use super::calls::{CallTree, Count, Grower};
use super::escape::escaped;
use super::idle;
use super::mode::{Mode, Unit};
use super::names::{NameId, Names};
use super::profile::{Profile, ThreadProfile};
use super::rows::{Limits, Rows, Scale, counted, percent};
use super::summary::{self, Seen};
use crate::trace::{LocationId, Thread};

/// How a trace is printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TreeOptions {
    /// By place in the source or the module, not by function.
    pub verbose: bool,
    /// What is left out.
    pub limits: Limits,
    /// Show the trees of idle threads too; of CPU time there are none.
    pub idle: bool,
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
        scale: Scale {
            all: profile.count().weight,
            unit: Unit::new(profile.mode, &profile.recording),
        },
        mode: profile.mode,
    };
    let loops = if options.idle { Vec::new() } else { idle::idle_threads(profile) };
    let is_loop = |place: usize| loops.get(place).copied().unwrap_or(false);
    let of_kind = |wanted: bool| -> Vec<&ThreadProfile> {
        let some = profile.threads.iter().enumerate();
        some.filter(|(place, _)| is_loop(*place) == wanted).map(|(_, thread)| thread).collect()
    };
    let mut threads = of_kind(false);
    threads
        .sort_by_key(|thread| (Reverse(thread.count.weight), thread.thread.pid, thread.thread.tid));
    let idle = threads.iter().position(|thread| thread.count.samples == 0);
    let (sampled, idle) = threads.split_at(idle.unwrap_or(threads.len()));
    if let Some(groups) = names.groups() {
        sections.all_threads(out, sampled, groups.noun())?;
        idle::write(profile, &of_kind(true), sections.scale.all, out)?;
        return idle_threads(out, idle.iter().map(|profile| &profile.thread));
    }
    // Idle threads are no measure: beside a thousand of them every other one would be light.
    let shown: u64 = sampled.iter().map(|thread| thread.count.weight).sum();
    let least = options.limits.min_percent / 100.0 * shown as f64;
    let heavy = sampled.partition_point(|thread| thread.count.weight as f64 >= least);
    let (heavy, light) = match sampled.split_at(heavy) {
        (_, [_]) => (sampled, &[][..]),
        split => split,
    };
    for thread in heavy {
        sections.thread(out, thread)?;
    }
    let of = if shown == sections.scale.all { "all" } else { "all but the idle" };
    sections.light_threads(out, light, of)?;
    idle::write(profile, &of_kind(true), sections.scale.all, out)?;
    idle_threads(out, idle.iter().map(|profile| &profile.thread))
}

/// Writes the parts of the print that hold a tree.
struct Sections<'a> {
    names: &'a Names,
    limits: Limits,
    verbose: bool,
    scale: Scale,
    mode: Mode,
}

impl Sections<'_> {
    fn thread(&self, out: &mut dyn Write, profile: &ThreadProfile) -> io::Result<()> {
        let mut title = describe(profile);
        if let Some((pid, tid)) = profile.inner_ids.filter(|_| self.verbose) {
            title.push_str(&format!(" (thread {tid} of process {pid} in its namespace)"));
        }
        self.title(out, &title, profile.count)?;
        if self.verbose && self.mode == Mode::Wall {
            writeln!(out, "  {}", profile.states.of_thread())?;
        }
        self.rows(out, &[&profile.tree])
    }

    /// One tree for all threads, whose first level is what their samples are grouped by: what is done
    /// for one request may be done by several.
    fn all_threads(
        &self,
        out: &mut dyn Write,
        threads: &[&ThreadProfile],
        noun: &str,
    ) -> io::Result<()> {
        if threads.is_empty() {
            return Ok(());
        }
        let number = counted(threads.len() as u64, "thread");
        self.together(out, threads, &format!("{number} by {noun}"))
    }

    /// Threads that are too light for a tree of their own: one tree for all of them.
    fn light_threads(
        &self,
        out: &mut dyn Write,
        threads: &[&ThreadProfile],
        of: &str,
    ) -> io::Result<()> {
        if threads.is_empty() {
            return Ok(());
        }
        let number = counted(threads.len() as u64, "thread");
        let title = format!("{number} below {} % of {of}, together", self.limits.min_percent);
        self.together(out, threads, &title)
    }

    fn together(
        &self,
        out: &mut dyn Write,
        threads: &[&ThreadProfile],
        title: &str,
    ) -> io::Result<()> {
        let mut count = Count::default();
        for thread in threads {
            count += thread.count;
        }
        let trees: Vec<_> = threads.iter().map(|thread| &thread.tree).collect();
        self.title(out, title, count)?;
        self.rows(out, &trees)
    }

    fn title(&self, out: &mut dyn Write, title: &str, count: Count) -> io::Result<()> {
        write!(out, "\n{title}: {:.1} % of all", percent(count.weight, self.scale.all))?;
        if let Some(time) = self.scale.unit.seconds(count.weight) {
            write!(out, ", {time} s")?;
        }
        if self.mode == Mode::Cpu {
            write!(out, ", {}", counted(count.weight, "period"))?;
        }
        writeln!(out, " in {}", counted(count.samples, "sample"))
    }

    fn rows(&self, out: &mut dyn Write, trees: &[&CallTree<LocationId>]) -> io::Result<()> {
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
