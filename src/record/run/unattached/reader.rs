//! The thread that reads the kernel's records of processes without an agent, unwinds their samples
//! and passes them to the writer.
//!
//! # Invariants
//! - Each sample belongs to the program and the mappings of its time: records are handled in their
//!   order, and a batch ends before one of them changes what its addresses mean.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::layout::DEPTH_MAX;
use traceprof_abi::sync::AtomicU64;

use super::Agents;
use super::exit_work::ExitWork;
use super::process::UnattachedProcess;
use super::report::{EndedUnattached, ReaderReport};
use super::thread::UnattachedThread;
use crate::proc::Mapping;
use crate::record::batch::Batch;
use crate::record::batch::threads::ThreadChange;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::run::common_state::CommonState;
use crate::record::source::kernel::{
    DescendantChange, DescendantEvents, DescendantRecord, DescendantSample, DescendantSetup,
};
use crate::record::source::task_record::{ForkedProcess, TaskChange, TaskEvent, TaskRecord};
use crate::record::target::modules::{ImageTables, ProcessImage};
use crate::record::weigh::remainder::Remainder;
use crate::record::write::writer::Tally;

/// The pause between two readings of the records while there are some, and else.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(50)];
/// How long the shorter pause goes on.
const BUSY: Duration = Duration::from_millis(200);
/// The longest time until samples are passed on.
const BATCH: Duration = Duration::from_millis(500);
/// The most messages about files.
const NOTICES_MAX: usize = 20;
/// How long after the last record of a process its exit is certainly reported, in nanoseconds.
const REPORTED_NS: u64 = 2_000_000_000;
/// Thousandths of the CPU time that can be sampled, if time in the kernel is sampled.
const ALL_TIME: u64 = 1000;

/// Reads until [`super::Unattached::end`], and reports each process that has ended.
pub(crate) fn read(common: &CommonState<'_>, mut report: impl FnMut(ReaderReport)) {
    let mut reader = Reader::new(common);
    let mut last_record: Option<Instant> = None;
    loop {
        let is_last = common.unattached.state().has_ended;
        if reader.turn(is_last) {
            last_record = Some(Instant::now());
        }
        let ended = std::mem::take(&mut reader.ended).into_iter();
        ended.for_each(|it| report(ReaderReport::Ended(Box::new(it))));
        reader.take_notices().into_iter().for_each(|text| report(ReaderReport::Notice(text)));
        if is_last {
            return;
        }
        let is_busy = last_record.is_some_and(|last| last.elapsed() < BUSY);
        std::thread::sleep(PAUSES[usize::from(!is_busy)]);
    }
}

/// Returns the name of a process, empty if it has exited.
fn name_of(pid: i32) -> String {
    crate::proc::status(pid).map(|status| status.name).unwrap_or_default()
}

struct Reader<'a> {
    common: &'a CommonState<'a>,
    /// The setup and the tables, once there are events.
    opened: Option<(DescendantSetup, ImageTables)>,
    processes: HashMap<i32, UnattachedProcess>,
    /// Processes that have ended, or have an agent now.
    leaving: Vec<UnattachedProcess>,
    /// Processes that have left and are to be reported.
    ended: Vec<EndedUnattached>,
    agents: Agents,
    records: Vec<DescendantRecord>,
    frames: Vec<AtomicU64>,
    period_ns: u64,
    remainder: Remainder,
    next_thread: u32,
    lost: u64,
    exit_work: ExitWork,
    /// Whether the counts of events have the time of processes with an agent.
    has_others: bool,
    last_batches: Instant,
    /// The messages so far, and why nothing can be read, until that is reported.
    noticed: BTreeSet<String>,
    failure: Option<String>,
}

impl<'a> Reader<'a> {
    fn new(common: &'a CommonState<'a>) -> Self {
        let period_ns = common.options.period_ns();
        Self {
            common,
            opened: None,
            processes: HashMap::new(),
            leaving: Vec::new(),
            ended: Vec::new(),
            agents: Agents::default(),
            records: Vec::new(),
            frames: (0..DEPTH_MAX).map(|_| AtomicU64::new(0)).collect(),
            period_ns,
            remainder: Remainder::new(period_ns),
            next_thread: 0,
            lost: 0,
            exit_work: ExitWork::default(),
            has_others: false,
            noticed: BTreeSet::new(),
            failure: None,
            last_batches: Instant::now(),
        }
    }

    /// Handles the records that have arrived, and returns whether there were any.
    fn turn(&mut self, is_last: bool) -> bool {
        // The records wait in their buffers until there is a trace.
        if self.common.first().is_none() || !self.open() {
            return false;
        }
        let began = Instant::now();
        let mut records = std::mem::take(&mut self.records);
        self.lost += self.common.unattached.drain(is_last, &mut records);
        // After that: an agent that is not known yet took none of the samples.
        self.agents = self.common.unattached.agents();
        let is_any = !records.is_empty();
        let mut seen = Vec::new();
        for record in records.drain(..) {
            self.handle(record, &mut seen);
        }
        self.records = records;
        self.common.unattached.note_read(&seen, began);
        self.read_exit_times();
        if is_last {
            self.leaving.extend(self.processes.drain().map(|(_, process)| process));
        }
        for mut process in std::mem::take(&mut self.leaving) {
            if let Some(since_ns) = self.agents.since_ns(process.pid).filter(|_| process.has_agent)
            {
                process.drop_samples_from(since_ns);
            }
            self.pass_on(&mut process);
            self.leave(process);
        }
        if self.last_batches.elapsed() >= BATCH {
            self.last_batches = Instant::now();
            let mut processes = std::mem::take(&mut self.processes);
            let ready = processes.values_mut().filter(|it| !self.agents.is_about(it.pid));
            ready.collect::<Vec<_>>().into_iter().for_each(|process| self.pass_on(process));
            self.processes = processes;
            self.leave_to_agents();
            self.leave_dead();
        }
        is_any
    }

    /// Takes leave of processes that have an agent, and of which no record says so.
    fn leave_to_agents(&mut self) {
        let (agents, now_ns) = (&self.agents, monotonic_now_ns());
        for (_, mut process) in self.processes.extract_if(|pid, _| agents.hold(*pid, now_ns)) {
            process.has_agent = true;
            self.leaving.push(process);
        }
    }

    /// Takes leave of processes whose exit is not reported: the report was lost.
    fn leave_dead(&mut self) {
        let now_ns = monotonic_now_ns();
        let is_dead = |pid: &i32, process: &UnattachedProcess| {
            let is_quiet = now_ns.saturating_sub(process.last_ns) > REPORTED_NS;
            is_quiet && crate::proc::start_time(*pid).ok() != Some(process.start_ticks)
        };
        let dead = self.processes.extract_if(|pid, process| is_dead(pid, process));
        self.leaving.extend(dead.map(|(_, process)| process));
    }

    /// Makes the tables once there are events. Returns false if there are none.
    fn open(&mut self) -> bool {
        if self.opened.is_some() || self.failure.is_some() {
            return self.opened.is_some();
        }
        let (setup, root) = {
            let state = self.common.unattached.state();
            let root = (state.root, state.root_directory.clone());
            (state.source.as_ref().map(DescendantEvents::setup), root)
        };
        let Some(setup) = setup else { return false };
        let (files, fetch) = (Arc::clone(&self.common.files), self.common.options.debuginfod);
        match ImageTables::new(root, files, fetch) {
            Ok(tables) => self.opened = Some((setup, tables)),
            Err(error) => self.failure = Some(error.text()),
        }
        self.opened.is_some()
    }

    fn thread(&mut self, tid: i32, name: String, start_ns: u64) -> UnattachedThread {
        self.next_thread += 1;
        UnattachedThread::new(self.next_thread, tid, name, start_ns)
    }

    /// Returns a process, and adds one that was not known.
    fn process(&mut self, pid: i32, time_ns: u64) -> &mut UnattachedProcess {
        if !self.processes.contains_key(&pid) {
            let image = self.image_now(pid, time_ns);
            self.add(pid, image, name_of(pid), time_ns);
        }
        // It is there now.
        self.processes.entry(pid).or_insert_with(|| unreachable!())
    }

    /// Returns the code of a process of which no record has said it.
    fn image_now(&mut self, pid: i32, time_ns: u64) -> ProcessImage {
        self.opened
            .as_mut()
            .map_or_else(ProcessImage::default, |(_, tables)| tables.image_now(pid, time_ns))
    }

    fn add(&mut self, pid: i32, image: ProcessImage, name: String, time_ns: u64) {
        if let Some(times) = self.common.tasks.exit_times().as_mut() {
            times.add(pid);
        }
        let thread = self.thread(pid, name, time_ns);
        let process = UnattachedProcess::new(pid, time_ns, image, thread);
        if let Some(before) = self.processes.insert(pid, process) {
            // Its end was lost.
            self.leaving.push(before);
        }
    }

    fn handle(&mut self, record: DescendantRecord, seen: &mut Vec<i32>) {
        let DescendantRecord { time_ns, change } = record;
        if self.has_agent(&change, time_ns) {
            return;
        }
        match change {
            DescendantChange::Sampled(sample) => self.sample(&sample, time_ns),
            DescendantChange::Mapped(pid, mapping) => self.mapped(pid, &mapping, time_ns),
            DescendantChange::Task(TaskRecord::Forked(fork)) => {
                seen.push(fork.pid);
                self.forked(fork);
            }
            DescendantChange::Task(TaskRecord::Changed(pid, event)) => {
                if matches!(event.change, TaskChange::Executed(_)) {
                    seen.push(pid);
                }
                self.changed(pid, event);
            }
            DescendantChange::Task(TaskRecord::Lost(_)) => {}
        }
    }

    /// Returns whether an agent's recorder has this record as well, and takes leave of the process.
    fn has_agent(&mut self, change: &DescendantChange, time_ns: u64) -> bool {
        let pid = match change {
            DescendantChange::Sampled(sample) => sample.pid,
            DescendantChange::Mapped(pid, _) => *pid,
            DescendantChange::Task(TaskRecord::Changed(pid, _)) => *pid,
            DescendantChange::Task(_) => return false,
        };
        let is_its = self.agents.hold(pid, time_ns);
        // It may be a process of the recording, which executes a program.
        self.has_others |= is_its;
        if is_its && let Some(mut process) = self.processes.remove(&pid) {
            process.has_agent = true;
            self.leaving.push(process);
        }
        is_its
    }

    fn forked(&mut self, fork: ForkedProcess) {
        let (image, name) = match self.processes.get(&fork.parent) {
            Some(parent) => (parent.image.clone(), parent.name.clone()),
            // Its parent has an agent. The child has exited, or runs the same program.
            None => match crate::proc::mappings(fork.pid).is_ok_and(|it| !it.is_empty()) {
                true => (self.image_now(fork.pid, fork.time_ns), name_of(fork.pid)),
                false => (self.image_now(fork.parent, fork.time_ns), name_of(fork.parent)),
            },
        };
        self.add(fork.pid, image, name, fork.time_ns);
    }

    fn changed(&mut self, pid: i32, event: TaskEvent) {
        let TaskEvent { time_ns, tid, change } = event;
        let is_exit = matches!(change, TaskChange::Exited { .. });
        if is_exit && !self.processes.contains_key(&pid) {
            return;
        }
        if matches!(change, TaskChange::Executed(_)) {
            if !self.processes.contains_key(&pid) {
                // Its code comes with the next records.
                self.add(pid, ProcessImage::default(), String::new(), time_ns);
            }
            self.pass_on_by_pid(pid);
        }
        self.process(pid, time_ns);
        let started = match &change {
            TaskChange::Started { parent } => {
                let name =
                    self.process(pid, time_ns).threads.get(parent).map(UnattachedThread::name);
                let name = name.unwrap_or_default().to_owned();
                Some(self.thread(tid, name, time_ns))
            }
            _ => None,
        };
        let process = self.process(pid, time_ns);
        match change {
            TaskChange::Started { .. } => {
                process.threads_ever += 1;
                process.threads.extend(started.map(|thread| (tid, thread)));
            }
            TaskChange::Executed(name) => process.execute(tid, &name, time_ns),
            TaskChange::Renamed(name) => {
                if tid == pid {
                    process.name.clone_from(&name);
                }
                if let Some(thread) = process.threads.get_mut(&tid) {
                    thread.rename(name, &mut process.news);
                }
            }
            TaskChange::Exited { .. } => {
                process.end_thread(tid, time_ns);
                if process.threads.is_empty() {
                    self.leaving.extend(self.processes.remove(&pid));
                }
            }
            TaskChange::Mapped { .. } => {}
        }
    }

    fn mapped(&mut self, pid: i32, mapping: &Mapping, time_ns: u64) {
        let is_replaced = self.process(pid, time_ns).image.has_code(mapping.start, mapping.end);
        if is_replaced {
            self.pass_on_by_pid(pid);
        }
        let Some((_, tables)) = &mut self.opened else { return };
        if let Some(process) = self.processes.get_mut(&pid) {
            tables.map(&mut process.image, mapping, (pid, time_ns));
        }
    }

    fn sample(&mut self, sample: &DescendantSample, time_ns: u64) {
        let (pid, tid) = (sample.pid, sample.tid);
        if !self.process(pid, time_ns).threads.contains_key(&tid) {
            let thread = self.thread(tid, String::new(), time_ns);
            self.process(pid, time_ns).threads.insert(tid, thread);
        }
        let (Some((setup, tables)), Some(process)) =
            (&mut self.opened, self.processes.get_mut(&pid))
        else {
            return;
        };
        if !process.accepts(sample.event) {
            return;
        }
        let Some(tables) = tables.publish(&process.image) else { return };
        let Some(snapshot) = tables.snapshot() else { return };
        if let Some(stack) = sample.unwind(&snapshot, &self.frames) {
            process.sample(tid, &stack, (time_ns, setup.weight));
        }
    }

    /// Gives threads that have exited their CPU times.
    fn read_exit_times(&mut self) {
        let of_living = self.processes.values_mut().filter(|process| !process.exits.is_empty());
        let mut with_exits: Vec<_> = of_living.chain(&mut self.leaving).collect();
        if with_exits.is_empty() {
            return;
        }
        let exits = {
            let mut exit_times = self.common.tasks.exit_times();
            let Some(times) = exit_times.as_mut() else { return };
            if times.drain().is_err() {
                *exit_times = None;
                return;
            }
            let mut exits = 0;
            for process in &mut with_exits {
                let reported_ns = process.take_exit_times(times);
                self.exit_work.add(reported_ns.iter().sum(), reported_ns.len());
                exits += reported_ns.len();
            }
            exits
        };
        let work_ns = self.exit_work_ns(exits);
        self.leaving.iter_mut().chain(self.processes.values_mut()).for_each(|process| {
            process.add_exit_work(work_ns);
        });
    }

    /// Returns the CPU time that the kernel's reports of these exits leave out, for each.
    fn exit_work_ns(&mut self, exits: usize) -> i64 {
        // The events go on counting in processes that have an agent, for good.
        self.has_others |= self.agents.has_any();
        if self.has_others || exits == 0 {
            return self.exit_work.share(None, exits);
        }
        let living: u64 = self.processes.values().map(UnattachedProcess::weight).sum();
        let living_ns = living.saturating_mul(self.period_ns);
        let all_ns = self.common.unattached.cpu_ns();
        self.exit_work.share(all_ns.map(|ns| ns.saturating_sub(living_ns)), exits)
    }

    fn pass_on_by_pid(&mut self, pid: i32) {
        if let Some(mut process) = self.processes.remove(&pid) {
            self.pass_on(&mut process);
            self.processes.insert(pid, process);
        }
    }

    /// Sends the samples of a process to the writer, with what its threads used before they exited.
    fn pass_on(&mut self, process: &mut UnattachedProcess) {
        if !process.has_samples() && process.exits.is_empty() {
            return;
        }
        let Some(instance) = self.common.instances.take() else { return };
        let mut batch = Batch::default();
        batch.samples = process.take_samples(u64::from(instance) << 32, &mut batch.traces);
        batch.sort();
        self.remainder.note(&batch.samples);
        let before = self.remainder.credited;
        let has_kernel = self.opened.as_ref().is_some_and(|(setup, _)| setup.has_kernel);
        let exits = process.take_exits(has_kernel);
        if self.remainder.settle(&exits, ALL_TIME, u64::MAX, &mut batch) {
            batch.sort();
        }
        process.weights.1 += self.remainder.credited - before;
        process.weights.0 += batch.samples.iter().map(|it| u64::from(it.weight)).sum::<u64>();
        if batch.samples.is_empty() && process.writer.is_none() {
            return;
        }
        batch.threads = std::mem::take(&mut process.news);
        batch.threads.extend(
            exits.iter().map(|exit| ThreadChange::Exited { key: exit.key, time_ns: exit.time_ns }),
        );
        batch.addresses = Some(Arc::clone(process.image.addresses()));
        if process.writer.is_none() {
            process.writer = self.common.join_unattached(process.pid);
            if process.command_line.is_empty() {
                process.command_line = crate::proc::command_line(process.pid).unwrap_or_default();
            }
        }
        match &process.writer {
            Some((_, writer)) => writer.send(Arc::new(batch)),
            None => self.lost += batch.samples.len() as u64,
        }
    }

    /// Takes leave of a process whose samples have been sent.
    fn leave(&mut self, process: UnattachedProcess) {
        // Its CPU time counts, even if there was no sample.
        let none = || (self.common.next_number(), Tally::default());
        let (number, tally) =
            process.writer.map_or_else(none, |(number, writer)| (number, writer.tally()));
        let sampled_ns = process.weights.0.saturating_mul(self.period_ns);
        let has_exited = process.threads.is_empty();
        // All its samples may be from before the attach.
        let is_before = self.agents.since_ns(process.pid).is_some_and(|it| it > process.last_ns);
        let has_agent = process.has_agent || is_before && !has_exited;
        let is_known = has_exited && process.exited_ns > 0;
        self.ended.push(EndedUnattached {
            number,
            pid: process.pid,
            start_ticks: process.start_ticks,
            name: process.name,
            command_line: process.command_line,
            times_ns: (process.start_ns, process.last_ns),
            threads: process.threads_ever,
            cpu_ns: if is_known { process.exited_ns } else { sampled_ns },
            credited: process.weights.1,
            lost: std::mem::take(&mut self.lost),
            has_agent,
            has_exited,
            tally,
        });
    }

    /// Returns new messages for the user.
    fn take_notices(&mut self) -> Vec<String> {
        let Some((_, tables)) = &mut self.opened else {
            let failure = self.failure.as_mut().map(std::mem::take).filter(|text| !text.is_empty());
            let what = |text| format!("short child processes are not sampled: {text}");
            return failure.map(what).into_iter().collect();
        };
        let mut new = Vec::new();
        for notice in std::mem::take(&mut tables.notices) {
            if self.noticed.len() < NOTICES_MAX && self.noticed.insert(notice.clone()) {
                new.push(format!("child processes: {notice}"));
            }
        }
        new
    }
}
