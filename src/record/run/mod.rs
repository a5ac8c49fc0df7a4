//! One recording: its processes, the programs they execute, and the closing report.

pub(crate) mod accounting;
pub(crate) mod common;
pub(crate) mod counted;
pub(crate) mod ended;
pub(crate) mod ended_processes;
pub(crate) mod executions;
pub(crate) mod failed;
pub(crate) mod opened;
pub(crate) mod opening;
pub(crate) mod over;
pub(crate) mod plan;
pub(crate) mod priority;
pub(crate) mod process_list;
pub(crate) mod processes;
pub(crate) mod recording;
pub(crate) mod report;
pub(crate) mod settled;
pub(crate) mod shortfall;

use std::sync::Arc;

use anyhow::{Context, anyhow};

use self::common::Common;
use self::ended_processes::EndedProcesses;
use self::failed::Failed;
use self::opened::{NEVER_SAMPLED, Opened, Process};
use self::over::Over;
use self::priority::{Priority, Raised};
use self::processes::search::Search;
use self::recording::{Begun, Recording};
use crate::fault::{self, Party, Point};
use crate::inject::{ForkServer, Guardian};
use crate::record::contract::error::{NO_GUARDIAN, RecordError};
use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::contract::options::{Options, Target};
use crate::record::contract::stop::Stop;
use crate::record::contract::summary::Summary;
use crate::record::target::namespace::check_proc;
use crate::record::write::output;

/// Records a target until its end, the asked duration or a signal. A signal asks all recordings of
/// the process to end, those too that begin later.
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
    fault::at(Point::RecordStarted);
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
    let over = finish(&common, EndedProcesses::of_one(ended), observer)
        .map_err(|error| common.failed(error))?;
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
    let fork_server = ForkServer::start().context(NO_GUARDIAN);
    let fork_server = fork_server.map_err(RecordError::Other)?;
    let common = Common::new(options, Arc::clone(stop), true);
    let outcome = processes::record(&common, fork_server, chosen, observer);
    outcome.map_err(|error| common.failed(error))
}

/// Writes all that is there, when no process is recorded any more.
fn finish(
    common: &Common<'_>,
    mut ended_processes: EndedProcesses,
    observer: &mut dyn Observer,
) -> Result<Over, RecordError> {
    let finished = common.finish();
    for text in ended_processes.ended.iter_mut().filter_map(|it| it.jvm.end()) {
        observer.event(Event::Notice(text));
    }
    let over = finished.and_then(|it| Over::new(ended_processes, it, common));
    // Only after a program run there is an end.
    over.ok_or_else(|| RecordError::TargetGone(anyhow!(NEVER_SAMPLED)))
}
