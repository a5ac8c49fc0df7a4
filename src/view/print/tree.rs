//! The printed trace: call trees, heaviest first, one per pool of threads, per thread, or for all
//! threads.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::trace::Thread;
pub use crate::view::print::options::TreeOptions;
use crate::view::print::summary_screen;
use crate::view::print::tree_rows::TreeRows;
use crate::view::print::tree_sections::{TreeSection, TreeSections, stem};
use crate::view::profile::idle;
use crate::view::profile::states::StateTimes;
use crate::view::profile::thread_profile::{Profile, ThreadProfile};
use crate::view::recording::mode::Mode;
use crate::view::text::escape::escaped;
use crate::view::text::number::{counted, percent};
use crate::view::text::text_style::Ink;

/// Writes the summary and the call trees.
pub fn write(profile: &Profile, options: &TreeOptions, out: &mut dyn Write) -> io::Result<()> {
    summary_screen::write(profile, true, options, out)?;
    write_threads(profile, options, out)
}

/// Writes the call trees alone.
pub fn write_threads(
    profile: &Profile,
    options: &TreeOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let forest = TreeSections::new(profile, options);
    for section in &forest.sections {
        write_section(&forest, section, out)?;
    }
    idle::write(profile, &forest.idle, forest.scale.all, (&options.style, out))?;
    idle_threads(out, forest.without.iter().map(|profile| &profile.thread))
}

fn write_section(
    forest: &TreeSections<'_>,
    section: &TreeSection<'_>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let TreeSections { profile, options, scale, .. } = forest;
    let TreeSection { title, count, .. } = section;
    let mut text = title.clone();
    if let Some((pid, tid)) = alone(section).and_then(|it| it.inner_ids).filter(|_| options.verbose)
    {
        text.push_str(&format!(" (thread {tid} of process {pid} in its namespace)"));
    }
    text.push_str(&format!(": {:.1} % of all", percent(count.weight, scale.all)));
    if let Some(time) = scale.unit.seconds(count.weight) {
        text.push_str(&format!(", {time} s"));
    }
    if profile.mode == Mode::Cpu {
        text.push_str(&format!(", {}", counted(count.weight, "period")));
    }
    text.push_str(&format!(" in {}", counted(count.samples, "sample")));
    writeln!(out)?;
    for line in options.style.wrapped(&text, 0) {
        writeln!(out, "{}", options.style.paint(Some(Ink::Heading), &line))?;
    }
    if options.verbose && profile.mode == Mode::Wall && !forest.is_one() {
        let mut states = StateTimes::default();
        section.threads.iter().for_each(|thread| states += thread.states);
        writeln!(out, "  {}", states.of_thread())?;
    }
    let tree = forest.tree(section);
    TreeRows::new(&tree, &forest.names, options, *scale).write(options, out)
}

/// Returns the thread of a tree with only one thread.
fn alone<'a>(section: &TreeSection<'a>) -> Option<&'a ThreadProfile> {
    match section.threads[..] {
        [thread] => Some(thread),
        _ => None,
    }
}

/// Lists threads without a sample.
pub(in crate::view) fn idle_threads<'a>(
    out: &mut dyn Write,
    threads: impl ExactSizeIterator<Item = &'a Thread>,
) -> io::Result<()> {
    if threads.len() == 0 {
        return Ok(());
    }
    write!(out, "\n{} without a sample:", counted(threads.len() as u64, "thread"))?;
    let mut pools: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for thread in threads {
        pools.entry(stem(thread.shown_name())).or_default().push(thread.shown_name());
    }
    for (stem, names) in pools {
        let is_one = names.iter().all(|name| *name == names[0]);
        let (name, star) = if is_one { (names[0], "") } else { (stem, "*") };
        let times = if names.len() == 1 { String::new() } else { format!(" x{}", names.len()) };
        write!(out, " \"{}{star}\"{times}", escaped(name))?;
    }
    writeln!(out)
}
