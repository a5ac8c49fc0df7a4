//! Threads that come, go or change their name, from what the kernel tells and from /proc.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use crate::proc;
use crate::record::batch::mapped::Mapped;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::source::program::TargetThreads;
use crate::record::store::threads::lives::Life;
use crate::record::store::threads::{Registry, TaskChange, TaskEvent, Turn, UNKNOWN_NS};

impl Registry {
    /// To be called in each turn of the loop: listens, and looks at the list of threads when it is
    /// time.
    pub(crate) fn turn(&mut self, now: Instant) -> Turn {
        if self.watch.is_due(now) {
            self.scan(false);
        } else {
            self.listen();
        }
        Turn { new: std::mem::take(&mut self.new) }
    }

    /// Code that was mapped since the last call.
    pub(crate) fn mapped(&mut self) -> &mut Vec<Mapped> {
        &mut self.mapped
    }

    /// Takes in what the kernel has told.
    pub(super) fn listen(&mut self) {
        let mut told = std::mem::take(&mut self.told);
        self.watch.drain(&mut told);
        for event in told.drain(..) {
            self.hear(event);
        }
        self.told = told;
    }

    pub(super) fn hear(&mut self, event: TaskEvent) {
        let TaskEvent { time_ns, tid, change } = event;
        if self.executed_ns.is_some_and(|executed_ns| time_ns >= executed_ns) {
            // Of the next program's threads.
            return;
        }
        match change {
            TaskChange::Mapped { range, is_anonymous } => {
                self.mapped.push(Mapped { time_ns, range, is_anonymous });
            }
            TaskChange::Executed => self.executed_ns = Some(time_ns),
            TaskChange::Started { parent } => self.hear_start(time_ns, tid, parent),
            TaskChange::Renamed(name) => {
                if let Some(number) = self.lives.last(tid) {
                    self.rename(number, name);
                }
            }
            TaskChange::Ended { cpu_ns } => match self.lives.latest(tid) {
                Some(number) if self.lives.last(tid).is_some() => {
                    self.end(number, time_ns, true, cpu_ns);
                }
                // A scan has missed it before, or its start is still to be told.
                Some(number) if self.lives.get(number).is_some_and(|it| !it.is_end_exact) => {
                    self.end(number, time_ns, true, cpu_ns);
                }
                _ => {
                    self.early_ends.insert(tid, (time_ns, cpu_ns));
                }
            },
        }
    }

    fn hear_start(&mut self, time_ns: u64, tid: i32, parent: i32) {
        let last = self.lives.last(tid);
        if let Some(number) = last
            && let Some(life) = self.lives.get_mut(number)
            && life.start_slack_ns > 0
            && life.start_slack_ns != UNKNOWN_NS
            && time_ns.saturating_sub(life.start_ns) < 2 * life.start_slack_ns
        {
            // A scan has seen it before its start was taken out of the ring.
            life.start_ns = time_ns;
            life.start_slack_ns = 0;
            return;
        }
        let inner = match self.same_namespace {
            true => tid as u32,
            false => proc::task_status(self.pid, tid).map_or(0, |status| status.inner_pid as u32),
        };
        let parent = self.lives.latest(parent).and_then(|number| self.lives.get_mut(number));
        let name = parent.map_or(String::new(), |parent| {
            parent.is_parent = true;
            parent.name.clone()
        });
        let number = self.begin(Life { tid, inner, name, start_ns: time_ns, ..Life::default() });
        match self.early_ends.remove(&tid) {
            Some((end_ns, cpu_ns)) if end_ns >= time_ns => {
                self.end(number, end_ns, true, cpu_ns);
            }
            _ => self.new.push(tid),
        }
    }

    pub(super) fn begin(&mut self, life: Life) -> u32 {
        if let Some(last) = self.lives.latest(life.tid) {
            self.ids_reused += 1;
            if self.lives.last(life.tid).is_some() {
                self.ended.push(last);
            }
        }
        self.lives.begin(life)
    }

    fn end(&mut self, number: u32, time_ns: u64, is_exact: bool, cpu_ns: Option<u64>) {
        let is_first = self.lives.get(number).is_some_and(|life| life.end_ns.is_none());
        self.lives.end(number, time_ns, is_exact);
        if let Some(life) = self.lives.get_mut(number) {
            life.cpu_ns = life.cpu_ns.or(cpu_ns);
        }
        if is_first {
            self.ended.push(number);
        }
    }

    /// The process has executed another program: the threads of this one have ended, whoever is
    /// there now. When that was, as exactly as it is known.
    pub(crate) fn end_all(&mut self) -> u64 {
        self.listen();
        let time_ns = self.executed_ns.unwrap_or_else(monotonic_now_ns);
        let alive: Vec<u32> = self.lives.alive().map(|(number, _)| number).collect();
        for number in alive {
            self.end(number, time_ns, false, None);
        }
        time_ns
    }

    fn rename(&mut self, number: u32, name: String) {
        if let Some(life) = self.lives.get_mut(number)
            && life.name != name
            && !name.is_empty()
        {
            life.name = name;
            if life.is_told {
                self.renamed.push(number);
            }
        }
    }

    /// Reads the list of threads anew; with `names` the names of all, too, unless they are told.
    pub(crate) fn scan(&mut self, names: bool) {
        let before = Instant::now();
        // First: what a thread in the list has done by now is told before it is looked at.
        self.listen();
        self.early_ends.clear();
        let tids = match proc::tasks(self.pid) {
            Ok(tids) => tids,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            // Any other failure is ours (no descriptor left) and says nothing of the threads: to
            // take them for gone would retire slots that are in use.
            Err(_) => return,
        };
        let now_ns = monotonic_now_ns();
        let listed: HashSet<i32> = tids.iter().copied().collect();
        let missed = self.lives.alive().filter(|(_, life)| !listed.contains(&life.tid));
        let missed: Vec<u32> = missed.map(|(number, _)| number).collect();
        let known = self.lives.count_ever();
        for number in &missed {
            self.end(*number, now_ns, false, None);
        }
        let names = names && !self.watch.has_events();
        for tid in tids {
            if names || self.lives.last(tid).is_none() {
                self.look(tid);
            }
        }
        let changes = missed.len() + self.lives.count_ever() - known;
        self.watch.note_scan(before, listed.len(), changes);
    }

    /// Looks at threads for a time, unless names are told: at one at least, and at all of them in
    /// turn.
    pub(crate) fn look_at_names(&mut self, time: Duration) {
        if self.watch.has_events() {
            return;
        }
        let start = Instant::now();
        let alive = self.lives.alive().map(|(number, life)| (number, life.tid));
        let mut round: Vec<(u32, i32)> = alive.collect();
        let first = round.partition_point(|(number, _)| *number < self.next_name);
        round.rotate_left(first);
        for (number, tid) in round {
            self.look(tid);
            self.next_name = number + 1;
            if start.elapsed() >= time {
                break;
            }
        }
    }

    /// Reads one thread's name and start; begins a life if it is not the thread that is known.
    pub(super) fn look(&mut self, tid: i32) {
        // Gone meanwhile: the next look at the list will miss it.
        let Ok(stat) = proc::task_stat(self.pid, tid) else { return };
        let latest = self.lives.latest(tid);
        if let Some(number) = latest
            && let Some(life) = self.lives.get_mut(number)
            && life.is_of(stat.start_time)
        {
            life.start_ticks = Some(stat.start_time);
            // A name that has changed may be the next program's.
            let is_open = life.end_ns.is_none() && life.name != stat.name;
            if is_open && !self.is_program_gone() {
                self.rename(number, stat.name);
            }
            return;
        }
        if proc::has_ended(stat.state) {
            return;
        }
        let inner = if self.same_namespace {
            tid as u32
        } else {
            match proc::task_status(self.pid, tid) {
                Ok(status) => status.inner_pid as u32,
                Err(_) => return,
            }
        };
        self.begin(Life {
            tid,
            inner,
            name: stat.name,
            start_ns: proc::start_ns(stat.start_time),
            start_ticks: Some(stat.start_time),
            start_slack_ns: proc::tick_ns(),
            ..Life::default()
        });
        self.new.push(tid);
    }
}
