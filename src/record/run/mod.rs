//! One recording: its processes, the programs they execute, and the closing report.

pub(crate) mod accounting;
pub(crate) mod brief;
pub(crate) mod common_state;
pub(crate) mod counted;
pub(crate) mod ended_process;
pub(crate) mod ended_processes;
pub(crate) mod ended_recording;
pub(crate) mod exec_in_progress;
pub(crate) mod executions;
pub(crate) mod failed;
pub(crate) mod opened;
pub(crate) mod opening;
pub(crate) mod plan;
pub(crate) mod priority;
pub(crate) mod process_list;
pub(crate) mod processes;
pub(crate) mod recording;
pub(crate) mod report;
pub(crate) mod running_program;
pub(crate) mod shortfall;
pub(crate) mod unattached;

use std::sync::Arc;

use anyhow::anyhow;

use self::common_state::CommonState;
use self::ended_processes::EndedProcesses;
use self::ended_recording::EndedRecording;
use self::failed::Failed;
use self::opened::{NEVER_SAMPLED, OpenedProcess, TargetProcess};
use self::priority::{Priority, Raised};
use self::processes::search::Search;
use self::recording::{Recording, RecordingParts};
use self::running_program::Recorded;
use crate::fault::{self, FaultPoint, Party};
use crate::inject::{ForkServer, Guardian};
use crate::proc::{self, DESCRIPTORS_MIN};
use crate::record::contract::error::{RecordError, guardian_error};
use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::contract::options::{Options, Target};
use crate::record::contract::stop::StopCondition;
use crate::record::target::namespace::check_proc;
use crate::record::write::output;

/// Records a target until it exits, the requested duration is over, or a signal arrives. A started
/// program may run on. A signal ends all recordings of this process, including later ones.
///
/// # Errors
/// The kind of [`RecordError`] determines the exit code. The target is restored in every case.
pub fn record(options: &Options, observer: &mut dyn Observer) -> Result<Recorded, RecordError> {
    output::check_early(options)?;
    check_proc()?;
    // Before the fork of the guardian, which inherits the limit.
    check_descriptors(proc::raise_descriptor_limit())?;
    let stop =
        Arc::new(StopCondition::install().map_err(|error| RecordError::Other(error.into()))?);
    if let Some(text) = output::notice(options) {
        observer.event(Event::Notice(text));
    }
    let (usual, mut search) = (Priority::of_this_thread(), Search::begin());
    loop {
        let chosen = choose(options, &search, &stop, observer)?;
        match attempt(options, &stop, &chosen, observer) {
            Err(failed) if search.should_retry(options, &failed, &stop, observer) => usual.assume(),
            outcome => return outcome.map_err(|failed| failed.error),
        }
    }
}

/// Refuses a limit that would end the recording before it has begun.
fn check_descriptors(limit: u64) -> Result<(), RecordError> {
    if limit >= DESCRIPTORS_MIN {
        return Ok(());
    }
    Err(RecordError::Other(anyhow!(
        "this process may open only {limit} files at once, and a recording needs \
         {DESCRIPTORS_MIN}: raise the limit with `ulimit -n {DESCRIPTORS_MIN}`"
    )))
}

/// Records the chosen processes.
fn attempt(
    options: &Options,
    stop: &Arc<StopCondition>,
    chosen: &[TargetProcess],
    observer: &mut dyn Observer,
) -> Result<Recorded, Failed> {
    let &[process] = chosen else { return several(options, stop, chosen, observer) };
    if options.children.are_recorded() {
        return several(options, stop, chosen, observer);
    }
    // The guardian forks first, while this process has one thread and no open files.
    let mut guardian = Guardian::start().map_err(guardian_error)?;
    fault::at(FaultPoint::RecordStarted);
    // After the fork of the guardian, and before the first scan of the target's threads.
    let raised = Raised::raise();
    let opened = OpenedProcess::open(options, process, &mut guardian, &raised)?;
    let options = match output::named(options, opened.pid) {
        Ok(options) => options,
        Err(error) => {
            opened.abandon(guardian);
            return Err(error.into());
        }
    };
    let options = &*options;
    fault::set_party(Party::Target, opened.pid);
    fault::at(FaultPoint::RecordOpened);
    let common = CommonState::new(options, Arc::clone(stop), false);
    let begun = RecordingParts { number: 0, guardian, opened, raised, preparation: None };
    let ended = Recording::new(begun, &common, observer)?.run();
    let ended = ended.map_err(|error| common.failed(error))?;
    let over =
        finish(&common, EndedProcesses::of_one(ended)).map_err(|error| common.failed(error))?;
    fault::at(FaultPoint::RecordWritten);
    report::conclude(over, common.named()).map_err(|error| common.failed(error))
}

/// Returns the processes to record. No program is started yet, and this process has one thread.
fn choose(
    options: &Options,
    search: &Search,
    stop: &StopCondition,
    observer: &mut dyn Observer,
) -> Result<Vec<TargetProcess>, RecordError> {
    let running = |pid: i32| TargetProcess::Running { pid, is_new: false };
    Ok(match &options.target {
        Target::Pid(pid) => vec![running(*pid)],
        Target::Pids(pids) => pids.iter().copied().map(running).collect(),
        Target::Name(named) => search.next(named, stop, observer)?,
        Target::Command(_) => vec![TargetProcess::Started],
    })
}

/// Records several processes, or one process and its descendants.
fn several(
    options: &Options,
    stop: &Arc<StopCondition>,
    chosen: &[TargetProcess],
    observer: &mut dyn Observer,
) -> Result<Recorded, Failed> {
    processes::check_count(chosen.len())?;
    // The fork server forks first, like a guardian.
    let fork_server = ForkServer::start().map_err(guardian_error)?;
    let common = CommonState::new(options, Arc::clone(stop), true);
    let outcome = processes::record(&common, fork_server, chosen, observer);
    outcome.map_err(|error| common.failed(error))
}

/// Writes everything that is still queued, after the last process has ended.
fn finish(
    common: &CommonState<'_>,
    ended_processes: EndedProcesses,
) -> Result<EndedRecording, RecordError> {
    let finished = common.finish();
    let over = finished.and_then(|it| EndedRecording::new(ended_processes, it, common));
    // Without a program run nothing was sampled.
    over.ok_or_else(|| RecordError::TargetGone(anyhow!(NEVER_SAMPLED)))
}
