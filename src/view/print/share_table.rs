//! The shares of threads, or of processes if several have samples, as a short table.
//!
//! Equal ones share a line: the threads of a pool, and processes of one name. Of wall-clock time
//! the shares are of the time in which threads ran or waited for a processor. All threads have
//! about the same share of the whole time.
//!
//! # Invariants
//! - The weights of all lines, shown or summed up, add up to those of the profile.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use crate::trace::RunState;
use crate::view::print::options::TreeOptions;
use crate::view::print::tree_sections::stem;
use crate::view::profile::idle;
use crate::view::profile::processes::Processes;
use crate::view::profile::states::StateTimes;
use crate::view::profile::thread_profile::{Profile, ThreadProfile};
use crate::view::recording::mode::Mode;
use crate::view::recording::unit::WeightUnit;
use crate::view::text::escape::escaped;
use crate::view::text::number::{counted, percent, wall_seconds};
use crate::view::text::text_style::{Ink, TextStyle};

/// The threads that are not idle or the processes, the heaviest first, and the sum of the idle
/// threads.
pub(super) struct ShareTable {
    rows: Vec<ShareRow>,
    idle: (u64, u64),
    of_processes: bool,
    mode: Mode,
    unit: WeightUnit,
    whole: u64,
}

/// Equal threads, or equal processes.
#[derive(Debug, Default)]
struct ShareRow {
    label: String,
    weight: u64,
    states: StateTimes,
    /// The number of threads or processes.
    number: u64,
}

impl ShareRow {
    fn add(&mut self, thread: &ThreadProfile) {
        self.weight = self.weight.saturating_add(thread.count.weight);
        self.states += thread.states;
    }

    /// Returns the weight that its share is of.
    fn share(&self, mode: Mode) -> u64 {
        let of = |state| self.states.of(state);
        match mode {
            Mode::Cpu => self.weight,
            Mode::Wall => of(RunState::Running).saturating_add(of(RunState::Runnable)),
        }
    }
}

impl ShareTable {
    /// Creates the table of a profile.
    pub(super) fn new(profile: &Profile, options: &TreeOptions) -> Self {
        let processes = Processes::of(profile);
        let of_processes = processes.are_several_shown();
        // A process has a row whatever its threads do.
        let loops = match options.idle || of_processes {
            true => Vec::new(),
            false => idle::idle_threads(profile),
        };
        let (mut busy, mut idle) = (Vec::new(), (0u64, 0u64));
        for (index, thread) in profile.threads.iter().enumerate() {
            if loops.get(index).copied().unwrap_or(false) {
                idle = (idle.0 + 1, idle.1.saturating_add(thread.count.weight));
            } else if thread.count.samples > 0 {
                busy.push(thread);
            }
        }
        let mut rows = match of_processes {
            true => of_equal_processes(&busy, &processes),
            false => of_pools(&busy),
        };
        let mode = profile.mode;
        // Rows of equal weight stay in the order of their names.
        rows.sort_by_key(|row| Reverse((row.share(mode), row.weight)));
        let whole = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.share(mode)));
        let unit = WeightUnit::new(profile.mode, &profile.recording);
        Self { rows, idle, of_processes, mode, unit, whole }
    }

    /// Returns whether the rows are processes.
    pub(super) fn is_of_processes(&self) -> bool {
        self.of_processes
    }

    /// Returns the number of lines below the heading, or 0 if the table would tell nothing.
    pub(super) fn len(&self) -> usize {
        match self.rows.len() + usize::from(self.idle.0 > 0) {
            1 => 0,
            lines => lines,
        }
    }

    /// Writes the table with at most `most` lines below the heading.
    pub(super) fn write(
        &self,
        most: usize,
        style: &TextStyle,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let noun = if self.of_processes { "process" } else { "thread" };
        let head = format!("{}  {noun}", self.head());
        writeln!(out, "\n{}", style.paint(Some(Ink::Heading), &head))?;
        let room = most.saturating_sub(usize::from(self.idle.0 > 0)).max(1);
        let shown = match self.rows.len() > room {
            true => room - 1,
            false => self.rows.len(),
        };
        let (shown, others) = self.rows.split_at(shown);
        for row in shown {
            self.line(row, style, out)?;
        }
        if !others.is_empty() {
            let mut rest = ShareRow::default();
            for row in others {
                rest.weight = rest.weight.saturating_add(row.weight);
                rest.states += row.states;
                rest.number += row.number;
            }
            let nouns = if self.of_processes { "processes" } else { "threads" };
            let nouns = if rest.number == 1 { noun } else { nouns };
            rest.label = format!("... {} other {nouns}", rest.number);
            self.line(&rest, style, out)?;
        }
        if self.idle.0 > 0 {
            let width = self.head().len() + 2;
            let text = counted(self.idle.0, "idle thread");
            writeln!(out, "{:width$}... {text} left out, {} s", "", wall_seconds(self.idle.1))?;
        }
        Ok(())
    }

    /// Returns the headings of the numbers.
    fn head(&self) -> &'static str {
        match (self.mode, self.unit) {
            (Mode::Wall, _) => " busy %  running (s)  runnable (s)  waiting (s)",
            (Mode::Cpu, WeightUnit::Periods(None)) => "share %   periods",
            (Mode::Cpu, _) => "share %  time (s)",
        }
    }

    fn line(&self, row: &ShareRow, style: &TextStyle, out: &mut dyn Write) -> io::Result<()> {
        let share = percent(row.share(self.mode), self.whole);
        let numbers = match self.mode {
            Mode::Wall => {
                let [running, runnable] =
                    [RunState::Running, RunState::Runnable].map(|state| row.states.of(state));
                let waiting = row.weight.saturating_sub(running.saturating_add(runnable));
                let [running, runnable, waiting] = [running, runnable, waiting].map(wall_seconds);
                format!("{running:>13}{runnable:>14}{waiting:>13}")
            }
            Mode::Cpu => {
                let time = self.unit.seconds(row.weight);
                format!("{:>10}", time.unwrap_or_else(|| row.weight.to_string()))
            }
        };
        let text = style.fit(&row.label, self.head().len() + 2);
        let share_text = format!("{share:7.1}");
        writeln!(out, "{}{numbers}  {text}", style.paint(Ink::of_share(share), &share_text))
    }
}

/// Returns a row for each name of processes.
fn of_equal_processes(threads: &[&ThreadProfile], processes: &Processes) -> Vec<ShareRow> {
    let mut rows: BTreeMap<String, (ShareRow, BTreeSet<(u32, u32)>)> = BTreeMap::new();
    for thread in threads {
        let pid = thread.thread.pid;
        let name = processes.name(pid).map_or_else(|| processes.title(pid.into()), str::to_owned);
        let (row, ids) = rows.entry(name).or_default();
        row.add(thread);
        // A thread that executed another program is two threads of the trace.
        ids.insert((pid, thread.thread.tid));
    }
    let named = |(name, (row, ids)): (String, (ShareRow, BTreeSet<(u32, u32)>))| {
        let pids: BTreeSet<u32> = ids.iter().map(|(pid, _)| *pid).collect();
        let number = pids.len() as u64;
        let label = match pids.first() {
            Some(pid) if number == 1 => processes.title((*pid).into()),
            _ => format!("{name} x{number}"),
        };
        let threads = match ids.len() as u64 {
            count if count > number => format!(", {count} threads"),
            _ => String::new(),
        };
        ShareRow { label: format!("{label}{threads}"), number, ..row }
    };
    rows.into_iter().map(named).collect()
}

/// Returns a row for each pool of threads, as trees have it.
fn of_pools(threads: &[&ThreadProfile]) -> Vec<ShareRow> {
    let mut pools: BTreeMap<(bool, &str), Vec<&ThreadProfile>> = BTreeMap::new();
    for profile in threads {
        let thread = &profile.thread;
        let key = (thread.pid == thread.tid, stem(thread.shown_name()));
        pools.entry(key).or_default().push(profile);
    }
    let named = |((_, stem), threads): ((bool, &str), Vec<&ThreadProfile>)| {
        let mut row = ShareRow { number: threads.len() as u64, ..ShareRow::default() };
        threads.iter().for_each(|thread| row.add(thread));
        let first = &threads[0].thread;
        let name = first.shown_name();
        row.label = match threads.len() {
            1 => format!("{} ({})", escaped(name), first.tid),
            count if threads.iter().all(|it| it.thread.shown_name() == name) => {
                format!("{} x{count}", escaped(name))
            }
            count => format!("{}* x{count}", escaped(stem)),
        };
        row
    };
    pools.into_iter().map(named).collect()
}
