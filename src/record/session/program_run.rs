//! The totals of sampling one program, or a sum over programs and processes.
//!
//! A recording is a sequence of program runs, one for each program that the target executes. Each
//! program run has its own agent, storage and events, and all write to one trace. With several
//! processes, each process has its own sequence.

use crate::record::contract::sampling::{Choice, Setup};
use crate::record::name::NameTotals;
use crate::record::source::totals::SourceTotals;
use crate::record::store::StoreTotals;
use crate::record::store::liveness::Heavy;
use crate::record::store::threads::ThreadMetrics;
use crate::record::target::counters::HandlerCounts;
use crate::record::target::leftovers::Detached;
use crate::record::weigh::WeightTotals;
use crate::record::weigh::cpu_clock::CpuClock;
use crate::record::weigh::overhead::OverheadSummary;

/// The totals of a finished program run, or of several.
#[derive(Debug, Clone)]
pub(crate) struct ProgramRun {
    /// The start and the end of sampling, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) times_ns: (u64, u64),
    /// The sampling setup. In a sum, `kernel` is true if it is true for all program runs.
    pub(crate) setup: Setup,
    /// The engine, and the reason for it.
    pub(crate) choice: Choice,
    /// The agent's signals in the last program run.
    pub(crate) signals: Vec<i32>,
    /// The stops of a thread at the first attach, in nanoseconds.
    pub(crate) attach_stops_ns: Vec<u64>,
    /// The number of stops at later attaches, and the longest one in nanoseconds.
    pub(crate) later_stops_ns: (u64, u64),
    /// The number of stops of a thread while recording, and the longest one in nanoseconds.
    pub(crate) entries_ns: (u64, u64),
    /// The sum of all stops of the target, in nanoseconds.
    pub(crate) paused_ns: u64,
    /// How long the target was stopped for the restore, and what is left behind.
    pub(crate) detached: Detached,
    /// The counters of the handlers.
    pub(crate) counts: HandlerCounts,
    /// What the sampling cost.
    pub(crate) overhead: OverheadSummary,
    /// The CPU time that the target used.
    pub(crate) cpu: CpuClock,
    /// The part of this CPU time that falls between two program runs.
    pub(crate) between_ns: u64,
    /// Totals of the sources.
    pub(crate) source: SourceTotals,
    /// Totals of the store.
    pub(crate) store: StoreTotals,
    /// Totals of the weights.
    pub(crate) weights: WeightTotals,
    /// Totals of the names.
    pub(crate) names: NameTotals,
    /// The heaviest traces of all program runs so far, if the user asked for them.
    pub(crate) heaviest: Vec<Heavy>,
    /// The key of the next program run's first thread.
    pub(crate) next_thread: u32,
}

impl ProgramRun {
    /// Makes the totals of a process that the kernel sampled from outside: its start, its end and
    /// its CPU time in nanoseconds, its threads, the periods that were credited to threads that
    /// exited, and lost records. `setup` and `choice` are those of the recording's first process.
    pub(crate) fn unattached(
        (times_ns, cpu_ns): ((u64, u64), u64),
        (threads, credited, kernel_lost): (usize, u64, u64),
        (setup, choice): &(Setup, Choice),
    ) -> Self {
        Self {
            times_ns,
            setup: *setup,
            choice: choice.clone(),
            signals: Vec::new(),
            attach_stops_ns: Vec::new(),
            later_stops_ns: (0, 0),
            entries_ns: (0, 0),
            paused_ns: 0,
            detached: Detached::default(),
            counts: HandlerCounts::default(),
            overhead: OverheadSummary::without_agent(cpu_ns),
            cpu: CpuClock::of_exited(cpu_ns),
            between_ns: 0,
            source: SourceTotals { kernel_lost, ..SourceTotals::default() },
            store: StoreTotals {
                threads: ThreadMetrics { seen: threads, ..ThreadMetrics::default() },
                ..StoreTotals::default()
            },
            weights: WeightTotals { credited, ..WeightTotals::default() },
            names: NameTotals::default(),
            heaviest: Vec::new(),
            next_thread: 0,
        }
    }

    /// Adds the next program run of the same process.
    pub(crate) fn add(&mut self, later: ProgramRun) {
        self.sum(&later);
        let ProgramRun { times_ns, setup, choice, attach_stops_ns, later_stops_ns, .. } = later;
        self.times_ns.1 = times_ns.1;
        let frames = self.setup.frames.max(setup.frames);
        self.setup = Setup { kernel: self.setup.kernel && setup.kernel, frames, ..setup };
        self.choice = after(&self.choice, choice);
        self.signals = later.signals;
        let stops = attach_stops_ns.iter().fold((0, 0), |stops, ns| longest(stops, (1, *ns)));
        self.later_stops_ns = longest(longest(self.later_stops_ns, stops), later_stops_ns);
        self.detached = later.detached;
        self.overhead.add(later.overhead);
        self.between_ns += self.cpu.extend(&later.cpu);
        let known = &mut self.source.blocked;
        for thread in later.source.blocked {
            if !known.contains(&thread) {
                known.push(thread);
            }
        }
        self.heaviest = later.heaviest;
        self.next_thread = later.next_thread;
    }

    /// Replaces the list of attach stops by their number and the longest one.
    pub(crate) fn count_stops(&mut self) {
        let stops = std::mem::take(&mut self.attach_stops_ns);
        let stops = stops.into_iter().map(|ns| (1, ns));
        self.later_stops_ns = stops.fold(self.later_stops_ns, longest);
    }

    /// Adds a concurrent program run of another process.
    pub(crate) fn join(&mut self, other: &ProgramRun) {
        self.times_ns.0 = self.times_ns.0.min(other.times_ns.0);
        self.times_ns.1 = self.times_ns.1.max(other.times_ns.1);
        self.setup.kernel &= other.setup.kernel;
        self.setup.frames = self.setup.frames.max(other.setup.frames);
        self.choice = beside(&self.choice, &other.choice);
        self.attach_stops_ns.extend(&other.attach_stops_ns);
        self.later_stops_ns = longest(self.later_stops_ns, other.later_stops_ns);
        join_detached(&mut self.detached, &other.detached);
        self.cpu.join(&other.cpu);
        self.source.blocked.extend(other.source.blocked.iter().cloned());
        self.heaviest.extend(&other.heaviest);
        self.overhead.join(&other.overhead);
        self.sum(other);
    }

    /// Adds the totals that are summed in the same way for programs and for processes.
    fn sum(&mut self, other: &ProgramRun) {
        self.entries_ns = longest(self.entries_ns, other.entries_ns);
        self.paused_ns += other.paused_ns;
        self.counts.add(&other.counts);
        self.between_ns += other.between_ns;
        self.source.add(&other.source);
        self.store.add(&other.store);
        self.weights.add(&other.weights);
        self.names.add(&other.names);
    }
}

/// Keeps the longest stop, and everything that is left behind.
fn join_detached(sum: &mut Detached, other: &Detached) {
    sum.stopped_ns = sum.stopped_ns.max(other.stopped_ns);
    let residues = sum.residue.iter().chain(&other.residue).map(String::as_str);
    sum.residue = Some(residues.collect::<Vec<_>>().join("; ")).filter(|it| !it.is_empty());
}

/// Returns the engine of one process, with a note if another process has another engine.
fn beside(one: &Choice, other: &Choice) -> Choice {
    const BESIDE: &str = "for some processes";
    let why = match one.why.contains(BESIDE) || one.engine == other.engine {
        true => one.why.clone(),
        false => format!("{}; {} {BESIDE}: {}", one.why, other.engine.name(), other.why),
    };
    Choice { why, ..one.clone() }
}

/// Adds up two counts, and keeps the longer of two times.
fn longest((count, most): (u64, u64), (more, other): (u64, u64)) -> (u64, u64) {
    (count + more, most.max(other))
}

/// Returns the later engine, with a note if the earlier program had another engine.
fn after(before: &Choice, later: Choice) -> Choice {
    const UNTIL: &str = "until another program was executed";
    let (name, was) = (before.engine.name(), before.why.find(UNTIL));
    let why = match was {
        _ if before.engine != later.engine => format!("{name} {UNTIL}; {}", later.why),
        Some(_) => before.why.clone(),
        None => later.why,
    };
    Choice { why, ..later }
}

#[cfg(test)]
pub(crate) mod tests {
    use traceprof_abi::layout::Counter;

    use super::*;
    use crate::record::contract::sampling::Engine;
    use crate::record::target::shm::own_data;

    const MS: u64 = 1_000_000;

    /// Returns a program run with 100 ms of CPU time.
    pub(crate) fn made_up() -> ProgramRun {
        let why = "made up".to_owned();
        let setup = Setup { period_ns: MS, cookie: 1, ..Setup::default() };
        let choice = Choice { engine: Engine::Perf, why, is_free: true, is_started: false };
        ProgramRun {
            signals: vec![5, 0],
            next_thread: 5,
            ..ProgramRun::unattached(((0, 200 * MS), 100 * MS), (5, 0, 0), &(setup, choice))
        }
    }

    fn counting(counter: Counter, count: u64) -> HandlerCounts {
        let data = own_data();
        data.control().count_by(counter, count);
        HandlerCounts::read(data.control())
    }

    #[test]
    fn program_runs_of_processes_side_by_side_add_up() {
        let mut sum = ProgramRun { counts: counting(Counter::Samples, 90), ..made_up() };
        let timer =
            Choice { engine: Engine::Timer, why: "it waits".to_owned(), ..made_up().choice };
        let other = ProgramRun {
            times_ns: (50 * MS, 300 * MS),
            choice: timer,
            cpu: CpuClock::made_up(1000 * MS, 1030 * MS),
            counts: counting(Counter::Samples, 30),
            attach_stops_ns: vec![7],
            ..made_up()
        };
        sum.join(&other);
        sum.join(&other);
        assert_eq!((sum.cpu.used_ns(), sum.between_ns), (160 * MS, 0));
        assert_eq!((sum.times_ns, sum.store.threads.seen), ((0, 300 * MS), 15));
        assert_eq!(sum.counts.of(Counter::Samples), 150);
        assert_eq!(sum.attach_stops_ns, [7, 7]);
        let name = Engine::Timer.name();
        let why = format!("made up; {name} for some processes: it waits");
        assert_eq!((sum.choice.engine, sum.choice.why), (Engine::Perf, why));
    }

    /// Returns the totals of sources that found signal-blocked threads with these names.
    fn blocked(names: &[&str]) -> SourceTotals {
        let blocked = names.iter().map(|name| (7, (*name).to_owned())).collect();
        SourceTotals { blocked, ..SourceTotals::default() }
    }

    #[test]
    fn program_runs_add_up_and_the_time_between_them_is_known() {
        let timer = Choice { engine: Engine::Timer, why: "a start".to_owned(), ..made_up().choice };
        let mut sum = ProgramRun {
            counts: counting(Counter::Samples, 90),
            attach_stops_ns: vec![40, 30],
            weights: WeightTotals { system_ns: Some(3), ..WeightTotals::default() },
            source: blocked(&["a"]),
            ..made_up()
        };
        sum.setup.kernel = true;
        let later = ProgramRun {
            times_ns: (230 * MS, 300 * MS),
            choice: timer,
            signals: vec![0, 23],
            cpu: CpuClock::made_up(112 * MS, 180 * MS),
            counts: counting(Counter::Samples, 60),
            attach_stops_ns: vec![20, 70],
            source: blocked(&["a", "b"]),
            next_thread: 8,
            ..made_up()
        };
        sum.add(later.clone());
        assert_eq!((sum.cpu.used_ns(), sum.between_ns), (180 * MS, 12 * MS));
        assert_eq!((sum.times_ns, sum.signals.as_slice()), ((0, 300 * MS), &[0, 23][..]));
        assert_eq!((sum.counts.of(Counter::Samples), sum.store.threads.seen), (150, 10));
        assert_eq!((sum.attach_stops_ns.as_slice(), sum.later_stops_ns), (&[40, 30][..], (2, 70)));
        assert_eq!(
            (sum.setup.kernel, sum.weights.system_ns, sum.source.blocked.len()),
            (false, Some(3), 2)
        );
        assert_eq!(sum.next_thread, 8);
        assert_eq!(sum.choice.engine, Engine::Timer);
        let why = "perf task clock until another program was executed; a start";
        assert_eq!(sum.choice.why, why);
        sum.add(ProgramRun { cpu: CpuClock::made_up(181 * MS, 190 * MS), ..later });
        assert_eq!((sum.choice.why.as_str(), sum.between_ns), (why, 13 * MS));
    }
}
