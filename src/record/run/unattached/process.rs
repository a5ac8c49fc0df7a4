//! A process without an agent, and its samples.

use std::collections::HashMap;
use std::ffi::OsString;

use traceprof_abi::storage::log::{Sample, flags};

use super::thread::UnattachedThread;
use crate::proc;
use crate::record::batch::process::ProcessNumber;
use crate::record::batch::threads::ThreadChange;
use crate::record::batch::traces::{Collection, Distinct};
use crate::record::source::exit_times::ExitTimes;
use crate::record::source::kernel::SampledStack;
use crate::record::store::threads::Exit;
use crate::record::target::modules::ProcessImage;
use crate::record::write::writer::Writer;

/// A process from the start of its sampling on.
pub(super) struct UnattachedProcess {
    pub(super) pid: i32,
    /// The start of the process in ticks since boot; 0 if it exited before that was read.
    pub(super) start_ticks: u64,
    pub(super) start_ns: u64,
    pub(super) name: String,
    pub(super) command_line: Vec<OsString>,
    pub(super) image: ProcessImage,
    pub(super) threads: HashMap<i32, UnattachedThread>,
    pub(super) threads_ever: usize,
    /// The writer, once there is something to write.
    pub(super) writer: Option<(ProcessNumber, Writer)>,
    /// The samples of the next batch, whose traces are numbers, and these traces.
    samples: Vec<Sample>,
    traces: Distinct,
    pub(super) news: Vec<ThreadChange>,
    pub(super) exits: Vec<Exit>,
    /// The number of these exits that got their CPU time in this turn.
    reported: usize,
    /// The event whose samples count, by core. A process that had inherited an event when another
    /// one was opened on it passes both on.
    accepted: HashMap<u32, u64>,
    /// Whether an agent takes the samples.
    pub(super) has_agent: bool,
    /// The CPU time of threads that have exited, in nanoseconds, as far as the kernel reports it.
    pub(super) exited_ns: u64,
    /// The periods that samples stand for, and those of them that are estimated.
    pub(super) weights: (u64, u64),
    pub(super) last_ns: u64,
}

impl UnattachedProcess {
    /// Makes a process that starts with this image and one thread.
    pub(super) fn new(
        pid: i32,
        start_ns: u64,
        image: ProcessImage,
        first: UnattachedThread,
    ) -> Self {
        Self {
            pid,
            start_ticks: proc::start_time(pid).unwrap_or(0),
            start_ns,
            name: first.name().to_owned(),
            command_line: Vec::new(),
            image,
            threads: HashMap::from([(first.tid(), first)]),
            threads_ever: 1,
            writer: None,
            samples: Vec::new(),
            traces: Distinct::default(),
            news: Vec::new(),
            exits: Vec::new(),
            reported: 0,
            accepted: HashMap::new(),
            has_agent: false,
            exited_ns: 0,
            weights: (0, 0),
            last_ns: start_ns,
        }
    }

    /// Returns whether samples of this event count.
    pub(super) fn accepts(&mut self, (cpu, event): (u32, u64)) -> bool {
        *self.accepted.entry(cpu).or_insert(event) == event
    }

    /// Returns whether samples wait for the next batch.
    pub(super) fn has_samples(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Starts another program, whose thread has this name.
    pub(super) fn execute(&mut self, tid: i32, name: &str, time_ns: u64) {
        self.image = self.image.next_program();
        let others: Vec<i32> = self.threads.keys().copied().filter(|it| *it != tid).collect();
        others.into_iter().for_each(|other| self.end_thread(other, time_ns));
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.rename(name.to_owned(), &mut self.news);
        }
        self.name = name.to_owned();
        self.command_line = proc::command_line(self.pid).unwrap_or_default();
    }

    pub(super) fn end_thread(&mut self, tid: i32, time_ns: u64) {
        self.last_ns = self.last_ns.max(time_ns);
        if let Some(thread) = self.threads.remove(&tid) {
            self.exits.push(thread.exit(time_ns));
            // Its CPU time may be credited to it.
            let mut thread = thread;
            thread.announce(self.pid, &mut self.news);
        }
    }

    /// Adds a sample of a thread that is known.
    pub(super) fn sample(&mut self, tid: i32, stack: &SampledStack, (time_ns, weight): (u64, u32)) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.announce(self.pid, &mut self.news);
        let first = if thread.is_sampled { 0 } else { flags::FIRST };
        thread.is_sampled = true;
        let (slot, generation) = thread.key();
        let trace = self.traces.number(&stack.words, stack.flags);
        self.traces.weigh(trace, u64::from(weight));
        self.last_ns = self.last_ns.max(time_ns);
        self.samples.push(Sample {
            time: time_ns,
            trace_id: u64::from(trace),
            slot,
            generation,
            tid: tid as u32,
            weight,
            flags: first | if stack.is_user { 0 } else { flags::KERNEL },
            reason: stack.reason,
            ..Sample::default()
        });
    }

    /// Drops the samples from this time on: an agent has them.
    pub(super) fn drop_samples_from(&mut self, time_ns: u64) {
        self.samples.retain(|sample| sample.time < time_ns);
    }

    /// Returns the periods that its samples stand for so far.
    pub(super) fn weight(&self) -> u64 {
        self.weights.0 + self.samples.iter().map(|sample| u64::from(sample.weight)).sum::<u64>()
    }

    /// Gives exits the CPU times that the kernel reports, and returns these, in nanoseconds.
    pub(super) fn take_exit_times(&mut self, times: &mut ExitTimes) -> Vec<u64> {
        let mut reported = Vec::new();
        for exit in self.exits.iter_mut().filter(|exit| exit.cpu_ns.is_none()) {
            exit.cpu_ns = times.take(self.pid, exit.tid);
            reported.extend(exit.cpu_ns);
        }
        // An agent's recorder needs the times of its process as well.
        if self.threads.is_empty() && !self.has_agent {
            times.remove(self.pid);
        }
        self.reported = reported.len();
        self.exited_ns += reported.iter().sum::<u64>();
        reported
    }

    /// Adds the CPU time that is not reported to each exit of this turn.
    pub(super) fn add_exit_work(&mut self, work_ns: i64) {
        let reported = std::mem::take(&mut self.reported);
        for cpu_ns in
            self.exits.iter_mut().filter_map(|exit| exit.cpu_ns.as_mut()).rev().take(reported)
        {
            let with_work_ns = cpu_ns.saturating_add_signed(work_ns);
            self.exited_ns = self.exited_ns.saturating_sub(*cpu_ns).saturating_add(with_work_ns);
            *cpu_ns = with_work_ns;
        }
    }

    /// Takes the exits. Without the kernel's time, it is not known how much of their CPU time can
    /// be sampled.
    pub(super) fn take_exits(&mut self, has_kernel: bool) -> Vec<Exit> {
        let exits = std::mem::take(&mut self.exits).into_iter();
        exits.map(|exit| Exit { cpu_ns: exit.cpu_ns.filter(|_| has_kernel), ..exit }).collect()
    }

    /// Takes the samples; `upper` becomes the upper half of the ids of their traces.
    pub(super) fn take_samples(&mut self, upper: u64, traces: &mut Collection) -> Vec<Sample> {
        let own = self.traces.traces();
        for entry in own.entries() {
            traces.copy(own, entry.with_id(upper | entry.id));
        }
        self.traces.clear();
        let mut samples = std::mem::take(&mut self.samples);
        samples.iter_mut().for_each(|sample| sample.trace_id |= upper);
        samples
    }
}
