//! A recording of several processes at the same time: one clock, one trace.
//!
//! Each process has its own recorder thread and guardian, and is recorded like a single process.
//! The main thread starts these threads, receives their reports, and scans for new children.
//!
//! # Invariants
//! - No process waits for another one. If one process exits or cannot be recorded, the others are
//!   not affected.
//! - When nothing more can be written, all processes end, and no new one starts.
//! - The recording ends when all its processes have ended.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use crate::fault::{self, FaultPoint, Party};
use crate::inject::ForkServer;
use crate::proc::{self, DescriptorUse};
use crate::record::batch::process::ProcessNumber;
use crate::record::contract::error::RecordError;
use crate::record::contract::event::{Event, Progress};
use crate::record::contract::observer::Observer;
use crate::record::contract::periodic::Periodic;
use crate::record::run::common_state::CommonState;
use crate::record::run::ended_process::{EndedProcess, Refused};
use crate::record::run::opened::{OpenedProcess, TargetProcess};
use crate::record::run::priority::Raised;
use crate::record::run::recording::{Recording, RecordingParts};
use crate::record::run::running_program::Recorded;
use crate::record::run::unattached::{self, EndedUnattached, ReaderReport};
use crate::record::run::{finish, report};
use crate::record::target::stop_turns::Preparation;

mod birth;
mod family;
mod members;
pub(crate) mod named;
pub(crate) mod search;
mod young;

use self::family::{Child, Family};
use self::members::Members;
use self::young::{GrownUp, Young};

/// Interval between scans for new children; longer if a scan takes long.
const SCAN_INTERVAL: Duration = Duration::from_millis(10);
/// Interval between two readings of the reports of new children.
const REPORT_INTERVAL: Duration = Duration::from_millis(5);
/// Interval between checks for the end, if there are no scans for children.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The most processes that are recorded at once. Each has a thread, a guardian, and its own shared
/// segments: some 20 MB of the recorder's memory.
const AT_ONCE_MAX: usize = 200;
/// The descriptors that each process takes in any case: its directories in `/proc`, its guardian's
/// socket, the ends of both, and its timers.
const DESCRIPTORS_EACH: u64 = 14;
/// The descriptors that all processes share, such as the files of the trace.
const DESCRIPTORS_SHARED: u64 = 26;

/// A report from the thread of one process.
enum ProcessReport {
    /// The process is opened, and nothing is changed in it yet.
    Opened(ProcessNumber, i32),
    Event(ProcessNumber, Event),
    /// The others stop waiting for the process, for this reason.
    Late(ProcessNumber, String),
    /// The recorder attaches to the process this long after it was found.
    AttachedLate(ProcessNumber, Duration),
    Tick(ProcessNumber, Progress),
    /// A process that the kernel sampled from outside has ended.
    Unattached(Box<EndedUnattached>),
    /// A message about the samples of such processes.
    Notice(String),
    /// The recording of the process has ended.
    Over(ProcessNumber, Box<Result<EndedProcess, RecordError>>),
}

/// Sends the reports of one process.
struct Reporter {
    number: ProcessNumber,
    reports: Sender<ProcessReport>,
}

impl Reporter {
    fn send(&self, report: ProcessReport) {
        // The receiver outlives all senders.
        let _ = self.reports.send(report);
    }
}

impl Observer for Reporter {
    fn event(&mut self, event: Event) {
        self.send(ProcessReport::Event(self.number, event));
    }

    fn tick(&mut self, progress: &Progress) {
        self.send(ProcessReport::Tick(self.number, *progress));
    }
}

/// Refuses more processes than can be recorded at once.
pub(crate) fn check_count(count: usize) -> Result<(), RecordError> {
    let most = at_once_max();
    if count <= most {
        return Ok(());
    }
    let why = limited_by(most);
    Err(RecordError::Usage(format!(
        "{count} processes match, but at most {most} can be recorded at once{why}: narrow --name, \
         or give fewer ids to --pid"
    )))
}

/// Returns the most processes that are recorded at once within the descriptors of this process.
fn at_once_max() -> usize {
    let room = DescriptorUse::Events.share().saturating_sub(DESCRIPTORS_SHARED);
    ((room / DESCRIPTORS_EACH) as usize).clamp(1, AT_ONCE_MAX)
}

/// Returns why there are no more, if that can be changed.
fn limited_by(most: usize) -> String {
    let limit = proc::descriptor_limit();
    match most {
        AT_ONCE_MAX => String::new(),
        _ => format!(" with a limit of {limit} descriptors (see `ulimit -Hn`)"),
    }
}

/// Records processes, and their descendants if these are requested.
pub(crate) fn record(
    common: &CommonState<'_>,
    fork_server: ForkServer,
    chosen: &[TargetProcess],
    observer: &mut dyn Observer,
) -> Result<Recorded, RecordError> {
    let fork_server = Mutex::new(fork_server);
    let (sender, reports) = channel();
    let mut members = std::thread::scope(|scope| {
        let start = Launcher { scope, common, fork_server: &fork_server, reports: sender };
        let processes = ProcessThreads::new(start, chosen);
        processes.run(&reports, observer)
    });
    // No guardian is needed any more, and a started program may run on for long.
    drop(fork_server);
    let late = members.late_lines();
    let Members { ended_processes, refused, missed, .. } = members;
    if ended_processes.is_empty() {
        return Err(none_of(refused));
    }
    let mut over = finish(common, ended_processes)?;
    (over.refused, over.missed, over.late) = (refused, missed, late);
    fault::at(FaultPoint::RecordWritten);
    report::conclude(over, common.named())
}

/// Returns why no process was recorded: of several errors, the one that the user can fix best.
fn none_of(mut refused: Vec<Refused>) -> RecordError {
    let of_use = |error: &RecordError| match error {
        // Sampling may have caused it.
        RecordError::TargetDied(_) => 0,
        RecordError::Usage(_) => 1,
        RecordError::Output(_) => 2,
        RecordError::NotPermitted(_) => 3,
        RecordError::Other(_) | RecordError::NotExecutable(_) | RecordError::NoCommand(_) => 4,
        RecordError::TargetGone(_) => 5,
    };
    refused.sort_by_key(|it| (of_use(&it.error), it.pid));
    let texts: Vec<String> = refused.iter().map(Refused::line).collect();
    let count = refused.len();
    match (refused.into_iter().next(), count) {
        (None, _) => {
            RecordError::TargetGone(anyhow!("all processes exited before they were sampled"))
        }
        (Some(only), 1) => only.error,
        (Some(first), _) => first.error.saying(format!(
            "none of these {count} processes can be recorded: {}",
            texts.join("; ")
        )),
    }
}

/// Starts the threads of processes.
struct Launcher<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    common: &'scope CommonState<'scope>,
    fork_server: &'scope Mutex<ForkServer>,
    reports: Sender<ProcessReport>,
}

impl Launcher<'_, '_> {
    /// Starts a thread that records a process.
    fn begin(&self, number: ProcessNumber, process: TargetProcess, is_initial: bool) {
        let (common, fork_server) = (self.common, self.fork_server);
        let preparation = is_initial.then(|| common.turns.announce());
        let mut reporter = Reporter { number, reports: self.reports.clone() };
        let failed = Reporter { number, reports: self.reports.clone() };
        let work = move || {
            let one = || run(common, fork_server, (process, preparation), &mut reporter);
            let outcome = catch_panic(one);
            reporter.send(ProcessReport::Over(number, Box::new(outcome)));
        };
        let builder = std::thread::Builder::new().name(format!("process {number}"));
        if let Err(error) = builder.spawn_scoped(self.scope, work) {
            failed
                .send(ProcessReport::Over(number, Box::new(Err(RecordError::Other(error.into())))));
        }
    }
}

/// Runs `work` and turns a panic into an error of this process. The others go on, and their trace
/// is finished. The unwinding dropped the process's guardian, which removes the agent.
fn catch_panic<T>(work: impl FnOnce() -> Result<T, RecordError>) -> Result<T, RecordError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic_message(&*panic);
        Err(RecordError::Other(anyhow!(
            "traceprof failed while it recorded this process; please report the panic: {text}"
        )))
    })
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

/// Records one process, from its attach to its end.
fn run(
    common: &CommonState<'_>,
    fork_server: &Mutex<ForkServer>,
    (process, preparation): (TargetProcess, Option<Preparation>),
    reporter: &mut Reporter,
) -> Result<EndedProcess, RecordError> {
    // First: work of this thread before its process is sampled is charged to no process.
    let _worker = common.ledger.enter(reporter.number);
    if let TargetProcess::Child { pid, parent, is_new } = process {
        let late = |text| reporter.send(ProcessReport::Late(reporter.number, text));
        if let Some(after) = birth::wait((pid, parent), is_new, &common.stop, late)? {
            reporter.send(ProcessReport::AttachedLate(reporter.number, after));
        }
    }
    let guardian = fork_server.lock().unwrap_or_else(PoisonError::into_inner).guardian();
    let mut guardian =
        guardian.context("starting a guardian process").map_err(RecordError::Other)?;
    fault::at(FaultPoint::RecordStarted);
    let raised = Raised::raise();
    let opened = OpenedProcess::open(common.options, process, &mut guardian, &raised)?;
    fault::set_party(Party::Target, opened.pid);
    fault::at(FaultPoint::RecordOpened);
    // Others have inherited the events. What a child waits for is seen after the attach only.
    let is_cpu_alone = common.options.measure.wall_interval().is_none();
    if common.options.children.are_recorded()
        && is_cpu_alone
        && preparation.is_some()
        && let Err(error) = common.unattached.cover(opened.pid, common.options)
    {
        let text = format!("short child processes are not sampled: {error}");
        reporter.event(Event::Notice(text));
    }
    reporter.send(ProcessReport::Opened(reporter.number, opened.pid));
    let number = reporter.number;
    let begun = RecordingParts { number, guardian, opened, raised, preparation };
    Recording::new(begun, common, reporter)?.run()
}

/// The threads of all processes, as the main thread sees them.
struct ProcessThreads<'scope, 'env> {
    start: Launcher<'scope, 'env>,
    members: Members,
    family: Option<Family>,
    scan_due: Periodic,
    /// Children that the recorder has not attached to.
    young: Young,
}

impl<'scope, 'env> ProcessThreads<'scope, 'env> {
    /// Starts the threads of the chosen processes and of their current descendants.
    fn new(start: Launcher<'scope, 'env>, chosen: &[TargetProcess]) -> Self {
        let pids: Vec<i32> = chosen.iter().filter_map(|process| process.pid()).collect();
        let common = start.common;
        let family =
            common.options.children.are_recorded().then(|| Family::of(&pids, &common.tasks));
        let mut processes = Self {
            start,
            members: Members::default(),
            family,
            scan_due: Periodic::new(SCAN_INTERVAL),
            young: Young::default(),
        };
        chosen.iter().for_each(|process| processes.add(*process));
        let children = processes.family.as_mut().map_or_else(Vec::new, Family::scan);
        processes.add_children(children, false);
        processes.members.initial_are_added();
        processes
    }

    fn add(&mut self, process: TargetProcess) {
        let number = self.start.common.next_number();
        let is_initial = self.members.add(number, process.pid());
        self.start.begin(number, process, is_initial);
    }

    /// Finds children that appeared since the last call.
    fn find_children(&mut self) {
        let Some(family) = &mut self.family else { return };
        if !family.has_reports() && !self.scan_due.is_due() {
            return;
        }
        let begin = Instant::now();
        let children = family.turn();
        self.scan_due.spare(begin.elapsed());
        if !self.start.common.unattached.is_complete() {
            self.add_children(children, true);
            return;
        }
        children.into_iter().for_each(|child| self.young.add(child));
        let GrownUp { attach, missed } = self.young.turn(&self.start.common.unattached);
        self.members.missed += missed;
        self.add_children(attach, false);
    }

    /// Returns how long the thread may wait for reports of processes.
    fn patience(&self) -> Duration {
        match &self.family {
            None => POLL_INTERVAL,
            Some(family) if family.has_reports() => REPORT_INTERVAL,
            Some(_) => SCAN_INTERVAL,
        }
    }

    /// Starts the threads of children.
    fn add_children(&mut self, children: Vec<Child>, are_new: bool) {
        for Child { pid, parent } in children {
            let most = at_once_max();
            if self.members.running() >= most {
                let why = limited_by(most);
                let why = anyhow!("{most} processes are recorded already, the maximum{why}");
                self.members.refuse(pid, RecordError::Other(why));
            } else {
                self.add(TargetProcess::Child { pid, parent, is_new: are_new });
            }
        }
    }

    /// Handles reports and scans for children until all processes have ended.
    fn run(mut self, reports: &Receiver<ProcessReport>, observer: &mut dyn Observer) -> Members {
        let (scope, common) = (self.start.scope, self.start.common);
        let options = common.options;
        let ended = self.start.reports.clone();
        let reader = options.children.are_recorded().then(|| {
            scope.spawn(move || {
                unattached::read(common, |it| {
                    let report = match it {
                        ReaderReport::Ended(it) => ProcessReport::Unattached(it),
                        ReaderReport::Notice(text) => ProcessReport::Notice(text),
                    };
                    // As in `Reporter::send`.
                    let _ = ended.send(report);
                });
            })
        });
        let mut is_ending = false;
        while self.members.running() > 0 || !is_ending && self.young.is_any_alive() {
            match reports.recv_timeout(self.patience()) {
                Ok(report) => self.handle(report, observer),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if !is_ending && self.start.common.stop.is_due() {
                is_ending = true;
                observer.event(Event::Detaching);
            }
            if !is_ending {
                self.find_children();
            }
            if let Some(progress) = self.members.progress(options.duration) {
                observer.tick(&progress);
                if observer.wants_end() {
                    common.stop.end();
                }
            }
        }
        common.unattached.end();
        if let Some(reader) = reader
            && let Err(panic) = reader.join()
        {
            let why = panic_message(&*panic);
            let text = format!("traceprof failed while it read samples of child processes: {why}");
            observer.event(Event::Notice(text));
        }
        reports.try_iter().for_each(|report| self.handle(report, observer));
        self.members.missed += self.young.missed_at_end(&common.unattached);
        self.members
    }

    fn handle(&mut self, report: ProcessReport, observer: &mut dyn Observer) {
        match report {
            ProcessReport::Opened(number, pid) => {
                self.members.opened(number, pid);
                if let Some(family) = &mut self.family {
                    family.add(pid);
                }
            }
            ProcessReport::Event(_, Event::Detaching) => {}
            ProcessReport::Event(number, event) => self.members.event(number, event),
            ProcessReport::Late(number, text) => self.members.late(number, text),
            ProcessReport::AttachedLate(number, after) => self.members.attached_late(number, after),
            ProcessReport::Tick(number, progress) => self.members.tick(number, progress),
            ProcessReport::Notice(text) => observer.event(Event::Notice(text)),
            ProcessReport::Unattached(ended) => {
                if let Some(first) = self.start.common.first() {
                    let ended = EndedProcess::unattached(*ended, first);
                    let preserve = self.start.common.options.preserve;
                    self.members.ended_processes.add(ended, preserve);
                }
            }
            ProcessReport::Over(number, outcome) => {
                if let Some(pid) = self.members.pid(number) {
                    let common = self.start.common;
                    common.unattached.detached(pid, common.stop.is_due());
                }
                let children = self.start.common.options.children;
                if outcome.as_ref().as_ref().is_ok_and(|ended| ended.is_end_of_all(children)) {
                    self.start.common.stop.end();
                }
                // The kernel may have sampled it. That is known a moment later.
                let has_other_samples = self.start.common.unattached.is_complete();
                match self.members.over(number, *outcome, self.start.common.options.preserve) {
                    Some(gone) if has_other_samples => self.young.add_ended(gone),
                    Some(_) => self.members.missed += 1,
                    None => {}
                }
            }
        }
        self.members.take_events().into_iter().for_each(|event| observer.event(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_processes_than_fit_are_refused_with_what_to_do() {
        assert!(check_count(AT_ONCE_MAX).is_ok());
        let error = check_count(AT_ONCE_MAX + 1).unwrap_err();
        assert!(matches!(error, RecordError::Usage(_)), "{error:?}");
        let text = error.text();
        assert!(text.starts_with("201 processes") && text.contains("narrow --name"), "{text}");
    }

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        let of = |work: fn() -> Result<(), RecordError>| catch_panic(work).unwrap_err().text();
        assert!(of(|| panic!("a plain text")).ends_with(": a plain text"));
        let number = || panic!("number {}", std::process::id());
        assert!(of(number).contains(": number "));
        assert!(of(|| std::panic::panic_any(1u8)).ends_with(": no reason given"));
        assert_eq!(of(|| Err(RecordError::Usage("an error".to_owned()))), "an error");
    }
}
