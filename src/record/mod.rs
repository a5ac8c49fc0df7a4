//! A recording from attach to detach.

mod account;
mod aftermath;
mod attach;
mod balance;
mod batch;
mod blocked;
mod clock;
mod collect;
mod collections;
mod common;
mod contexts;
mod counts;
mod crash_reporter;
mod detach;
mod doctor;
mod dry_run;
mod ended;
mod engine;
mod executions;
mod exit_times;
mod failures;
mod file;
mod ground;
mod heaviest;
mod instances;
mod jit;
mod jvm;
mod kernel;
mod lease;
mod liveness;
mod modules;
mod names;
mod naming;
mod options;
mod output;
mod overhead;
mod parents;
mod pattern;
mod perf;
mod priority;
mod processes;
mod program;
mod prospect;
mod recording;
mod remainder;
mod remaps;
mod report;
mod rescue;
mod ring;
mod roll;
mod roster;
mod scribe;
mod session;
mod shm;
mod shortfall;
mod signals;
mod silence;
mod slices;
mod spawn;
pub mod stacks;
mod stint;
mod stop;
mod symbolizers;
mod tally;
mod task_events;
mod threads;
mod timer;
mod trigger;
mod wall;
mod watch;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use self::aftermath::Footprint;
use self::attach::Attached;
use self::common::Common;
use self::ended::Over;
use self::priority::Raised;
use self::processes::search::{Failed, Search};
use self::prospect::Sampled;
use self::recording::{Begun, Recording};
use self::roster::Roster;
use self::spawn::{Held, Started};
use self::stop::Stop;
use crate::fault::{self, Party, Point};
use crate::inject::{Guardian, Nursery};
use crate::proc;
use crate::trace::{TraceError, TraceSeries, Value};

pub use detach::{Removed, detach};
pub use doctor::{Diagnosis, Examined, Finding, Prospect, SIGTRAP_WINDOW, State, diagnose};
pub use dry_run::dry_run;
pub use naming::addresses_named;
pub use options::{EngineChoice, Files, Measure, Named, Options, Target};
pub use pattern::{Occasion, OutputPattern};
pub use priority::Priority;
use report::inject_error;
pub use report::{Event, Observer, Progress, RecordError, Summary};
pub use stop::{before_exit, is_end_requested, take_signals};
pub use trigger::Trigger;

/// Records a target until its end, the asked duration or a signal. A signal asks all recordings of the
/// process to end, those too that begin later.
///
/// # Errors
/// [`RecordError`] tells by its kind which exit code fits; the target is as it was before.
pub fn record(options: &Options, observer: &mut dyn Observer) -> Result<Summary, RecordError> {
    output::check_early(options)?;
    check_proc()?;
    let stop = Arc::new(Stop::install().map_err(|error| RecordError::Other(error.into()))?);
    if let Some(text) = output::notice(options) {
        observer.event(Event::Notice(text));
    }
    let (usual, mut search) = (Priority::of_this_thread(), Search::begin());
    loop {
        let chosen = choose(options, &search, &stop, observer)?;
        match attempt(options, &stop, &chosen, observer) {
            Err(failed) if search.goes_on(options, &failed, &stop, observer) => usual.assume(),
            outcome => return outcome.map_err(|failed| failed.error),
        }
    }
}

/// Records what was chosen.
fn attempt(
    options: &Options,
    stop: &Arc<Stop>,
    chosen: &[Process],
    observer: &mut dyn Observer,
) -> Result<Summary, Failed> {
    let &[process] = chosen else { return several(options, stop, chosen, observer) };
    if options.subprocesses {
        return several(options, stop, chosen, observer);
    }
    // Forked first, while this process has one thread and nothing open.
    let mut guardian = Guardian::start().context(NO_GUARDIAN).map_err(RecordError::Other)?;
    fault::at(Point::RecordBegun);
    // After the fork of the guardian, and before the first of the target's threads is looked at.
    let raised = Raised::raise();
    let opened = Opened::open(options, process, &mut guardian, &raised)?;
    let options = match output::named(options, opened.pid) {
        Ok(options) => options,
        Err(error) => {
            opened.abandon(guardian);
            return Err(error.into());
        }
    };
    let options = &*options;
    fault::is(Party::Target, opened.pid);
    fault::at(Point::RecordOpened);
    let common = Common::new(options, Arc::clone(stop), false);
    let begun = Begun { number: 0, guardian, opened, raised };
    let ended = Recording::new(begun, &common, observer)?.run();
    let ended = ended.map_err(|error| common.failed(error))?;
    let over =
        finish(&common, Roster::of_one(ended), observer).map_err(|error| common.failed(error))?;
    fault::at(Point::RecordWritten);
    report::conclude(over, common.named()).map_err(|error| common.failed(error))
}

/// What is to be recorded. Nothing is started yet, and this process has one thread.
fn choose(
    options: &Options,
    search: &Search,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Vec<Process>, RecordError> {
    let running = |pid: i32| Process::Running { pid, is_new: false };
    Ok(match &options.target {
        Target::Pid(pid) => vec![running(*pid)],
        Target::Pids(pids) => pids.iter().copied().map(running).collect(),
        Target::Name(named) => search.next(named, stop, observer)?,
        Target::Command(_) => vec![Process::Started],
    })
}

/// Records more processes than one, or one and its descendants.
fn several(
    options: &Options,
    stop: &Arc<Stop>,
    chosen: &[Process],
    observer: &mut dyn Observer,
) -> Result<Summary, Failed> {
    processes::check_count(chosen.len())?;
    // Forked first, as a guardian is.
    let nursery = Nursery::start().context(NO_GUARDIAN);
    let nursery = nursery.map_err(RecordError::Other)?;
    let common = Common::new(options, Arc::clone(stop), true);
    let outcome = processes::record(&common, nursery, chosen, observer);
    outcome.map_err(|error| common.failed(error))
}

/// A process that is to be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    /// One that is started for it.
    Started,
    /// One that runs.
    Running {
        pid: i32,
        /// It has just been started by somebody.
        is_new: bool,
    },
    /// One that another one has started which is recorded.
    Child {
        pid: i32,
        parent: i32,
        /// It has just been started.
        is_new: bool,
    },
}

impl Process {
    /// Its id, if it is there.
    fn pid(self) -> Option<i32> {
        match self {
            Self::Started => None,
            Self::Running { pid, .. } | Self::Child { pid, .. } => Some(pid),
        }
    }
}

/// Writes all that is there, when no process is recorded any more.
fn finish(
    common: &Common<'_>,
    mut roster: Roster,
    observer: &mut dyn Observer,
) -> Result<Over, RecordError> {
    let finished = common.finish();
    for text in roster.ended.iter_mut().filter_map(|it| it.jvm.end()) {
        observer.event(Event::Notice(text));
    }
    let over = finished.and_then(|it| Over::new(roster, it, common));
    // Only after a stint there is an end.
    over.ok_or_else(|| RecordError::TargetGone(anyhow!(NEVER_SAMPLED)))
}

/// The process to record, before anything is changed in it.
struct Opened {
    pid: i32,
    start_time: u64,
    command: Option<Started>,
    hold_fd: Option<i32>,
    no_timers: Option<String>,
    name: String,
    command_line: Vec<OsString>,
    /// It has just been started, and may yet change what it does with signals.
    is_new: bool,
    /// Programs that it executes are recorded as well.
    is_followed: bool,
}

impl Opened {
    fn open(
        options: &Options,
        process: Process,
        guardian: &mut Guardian,
        raised: &Raised,
    ) -> Result<Self, RecordError> {
        let mut no_timers = None;
        let (pid, command, hold_fd) = match (process.pid(), &options.target) {
            (None, Target::Command(command)) => {
                let (pid, hold_fd, started) = start(command, guardian, raised)?;
                (pid, Some(started), hold_fd)
            }
            (pid, _) => {
                let pid = pid.unwrap_or(0);
                no_timers = prospect::check(pid, options, guardian)?.no_timers;
                (pid, None, None)
            }
        };
        // To execute a program is how most begin that somebody else has started.
        let (is_beginning, is_new) = match process {
            Process::Started => (false, true),
            Process::Running { is_new, .. } => (is_new, is_new),
            Process::Child { is_new, .. } => (true, is_new),
        };
        let gone = |error| target_error(pid, error);
        Ok(Self {
            pid,
            start_time: proc::start_time(pid).map_err(gone)?,
            command,
            hold_fd,
            no_timers,
            name: proc::status(pid).map(|status| status.name).unwrap_or_default(),
            command_line: proc::command_line(pid).unwrap_or_default(),
            is_new,
            is_followed: options.follow_exec || is_beginning,
        })
    }

    fn sampled(&self) -> Sampled {
        Sampled {
            pid: self.pid,
            is_started: self.is_new,
            hold_fd: self.hold_fd,
            no_timers: self.no_timers.clone(),
        }
    }

    /// What it is like before the attach, if that is to be compared.
    fn footprint(&self, options: &Options) -> Result<Option<Footprint>, RecordError> {
        let footprint = options.verify_detach.then(|| Footprint::of(self.pid)).transpose();
        footprint.map_err(|error| target_error(self.pid, error))
    }

    /// It runs another program.
    fn name_again(&mut self) {
        // One that is gone keeps its name.
        let words = proc::command_line(self.pid).ok().filter(|words| !words.is_empty());
        if let (Ok(status), Some(words)) = (proc::status(self.pid), words) {
            (self.name, self.command_line) = (status.name, words);
        }
    }

    fn command_pid(&self) -> Option<i32> {
        self.command.as_ref().map(|_| self.pid)
    }

    /// Ends a program that was held, which has not run its first instruction.
    fn abandon(mut self, guardian: Guardian) {
        if let Some(command) = &mut self.command {
            command.kill();
        }
        // Before the program is waited for, which its tracer comes first in.
        drop(guardian);
    }

    /// A program that was held goes on.
    fn go_on(&mut self) {
        if let Some(command) = &mut self.command {
            command.release();
        }
    }
}

/// Starts a program: its pid, the descriptor that it is parked on (if it is held at its exec), and
/// the program itself.
fn start(
    command: &[OsString],
    guardian: &mut Guardian,
    raised: &Raised,
) -> Result<(i32, Option<i32>, Started), RecordError> {
    let name = command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let late = command.first().is_some_and(|program| program::takes_all_signals(program));
    let held = raised
        .as_before(|| Held::start(command, guardian.pid(), !late))
        .with_context(|| format!("starting {name}"))
        .map_err(RecordError::Other)?;
    let (pid, hold_fd) = (held.pid(), held.hold_fd());
    let started = if late {
        held.exec(|| wait_for_handlers(pid, || false))
    } else {
        guardian.hold_at_exec(pid).map_err(inject_error)?;
        held.exec(|| guardian.wait_exec().map_err(inject_error))
    };
    let started = started.map_err(|failure| match failure {
        spawn::ExecError::Spawn(error) => {
            let text = format!("starting {name}; give a program that can be executed, or its path");
            RecordError::Other(anyhow::Error::new(error).context(text))
        }
        spawn::ExecError::Wait(error) => error,
    })?;
    Ok((pid, hold_fd, started))
}

/// Waits until a program that handles all signals has installed its handlers: then ours goes in
/// front of its own, as in a program that has been running for long.
fn wait_for_handlers(pid: i32, is_over: impl Fn() -> bool) -> Result<(), RecordError> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline && !is_over() {
        let status = proc::status(pid).map_err(|error| target_error(pid, error))?;
        if status.state == 'Z' {
            return Err(RecordError::TargetGone(anyhow!(
                "the program ended before it was sampled: see what it does without `traceprof record`"
            )));
        }
        if status.catches(attach::SIGTRAP) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

/// With another namespace's list of processes every pid is somebody else.
fn check_proc() -> Result<(), RecordError> {
    if proc::is_of_own_namespace() {
        return Ok(());
    }
    Err(RecordError::Other(anyhow!(
        "/proc is that of another pid namespace than this one, or not mounted: record from the \
         namespace that it belongs to, or with a /proc of this one (unshare --mount-proc)"
    )))
}

fn create(
    options: &Options,
    opened: &Opened,
    attached: &Attached<'_>,
) -> Result<TraceSeries, RecordError> {
    let mut writer = output::create(options, opened.pid).map_err(output_error)?;
    let command_line = &opened.command_line;
    let opening =
        report::opening(options, opened.pid, command_line, attached.setup, &attached.choice);
    for (key, value) in opening {
        writer.set_metadata(&key, value).map_err(output_error)?;
    }
    let start = Value::Unsigned(opened.start_time);
    writer.set_metadata("target_start_ticks", start).map_err(output_error)?;
    // Whoever looks at the file, or is left with it, can tell from the begin what it is.
    writer.flush().map_err(output_error)?;
    Ok(writer)
}

/// Why the agent has no place.
const NO_HOLE: &str = "the target's address space has no hole of 2 GiB left, where the agent would go; \
                       `traceprof stacks --pid PID` looks at it without one";

/// What may stand in the way of a process more.
const NO_GUARDIAN: &str = "starting the guardian process; where the limit of processes is used up, raise \
                           it (ulimit -u, or pids.max of the control group)";

/// Readable when the process is gone.
fn exit_descriptor(pid: i32) -> Result<OwnedFd, RecordError> {
    perf::pidfd(pid).map_err(|error| target_error(pid, error))
}

/// It was there, and ended before anything was seen of it.
const NEVER_SAMPLED: &str = "the target ended before it was sampled: to have it from its first instruction \
                             on, start it with `traceprof record -- COMMAND`";

fn output_error(error: TraceError) -> RecordError {
    RecordError::Output(anyhow::Error::new(error))
}

/// An error about a process that may just have ended.
fn target_error(pid: i32, error: io::Error) -> RecordError {
    if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) {
        return RecordError::TargetGone(anyhow!(
            "process {pid} is gone: look for the one that runs now, as with `pgrep -a NAME`"
        ));
    }
    RecordError::Other(anyhow::Error::new(error).context(format!("looking at process {pid}")))
}
