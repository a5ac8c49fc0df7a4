//! A process whose recording has ended, and a process that could not be recorded.

use crate::proc;
use crate::record::batch::process::ProcessNumber;
use crate::record::contract::error::RecordError;
use crate::record::contract::options::Children;
use crate::record::contract::sampling::{Choice, Setup};
use crate::record::run::executions::Executions;
use crate::record::run::opened::OpenedProcess;
use crate::record::run::plan::Candidate;
use crate::record::run::unattached::EndedUnattached;
use crate::record::session::SessionEnd;
use crate::record::session::program_run::ProgramRun;
use crate::record::target::residue::{Footprint, ResidueReport};
use crate::record::write::writer::Tally;

/// The signals that follow from a fault, and what a program makes of one.
const FAULTS: [i32; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGFPE,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// Returns the name of the signal that ended a process, if sampling by `signals` could have caused
/// its death.
pub(crate) fn suspect(signal: i32, signals: &[i32]) -> Option<String> {
    let is_suspect = FAULTS.contains(&signal) || signals.contains(&signal);
    is_suspect.then(|| proc::signal_name(signal))
}

/// A process that is restored and whose samples have been passed to the writer.
pub(crate) struct EndedProcess {
    /// Its number within the recording.
    pub(crate) number: ProcessNumber,
    /// Its number while the kernel sampled it from outside, before the attach.
    pub(crate) before: Option<ProcessNumber>,
    /// The process.
    pub(crate) opened: OpenedProcess,
    /// Why its recording ended.
    pub(crate) end: SessionEnd,
    /// The signal that ended the process while it was sampled, if one did.
    pub(crate) ended_by: Option<i32>,
    /// The totals of the sampling, over all of its programs.
    pub(crate) program_run: ProgramRun,
    /// The programs that it executed.
    pub(crate) executions: Executions,
    /// Its state before the last attach, for `--verify-detach`.
    pub(crate) footprint: Option<Footprint>,
    /// Its totals in the writer thread.
    pub(crate) tally: Tally,
}

impl EndedProcess {
    /// Returns a process that the kernel sampled from outside. `first` says how the first process
    /// of the recording was sampled.
    pub(crate) fn unattached(ended: EndedUnattached, first: &(Setup, Choice)) -> Self {
        let candidate = Candidate::started(ended.pid, None);
        let end = match (ended.has_agent, ended.has_exited) {
            (true, _) => SessionEnd::Attached,
            (false, true) => SessionEnd::Exited,
            (false, false) => SessionEnd::Asked,
        };
        Self {
            number: ended.number,
            before: None,
            end,
            ended_by: None,
            program_run: ProgramRun::unattached(
                (ended.times_ns, ended.cpu_ns),
                (ended.threads, ended.credited, ended.lost),
                first,
            ),
            executions: Executions::default(),
            footprint: None,
            opened: OpenedProcess {
                pid: ended.pid,
                start_time: ended.start_ticks,
                command: None,
                candidate,
                name: ended.name,
                command_line: ended.command_line,
                is_followed: false,
            },
            tally: ended.tally,
        }
    }

    /// Returns a process that never existed.
    #[cfg(test)]
    pub(crate) fn made_up(number: ProcessNumber, end: SessionEnd, program_run: ProgramRun) -> Self {
        let opened = OpenedProcess {
            pid: number as i32,
            start_time: 0,
            command: None,
            candidate: Candidate::started(number as i32, None),
            name: String::new(),
            command_line: Vec::new(),
            is_followed: false,
        };
        let tally = Tally::default();
        Self {
            number,
            before: None,
            opened,
            end,
            ended_by: None,
            program_run,
            executions: Executions::default(),
            footprint: None,
            tally,
        }
    }

    /// Returns whether this is the same process before the attach.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        let (own, its) = (&self.opened, &other.opened);
        // Its start is 0 if it had exited before the recorder read that.
        let is_same = own.pid == its.pid && [0, its.start_time].contains(&own.start_time);
        let is_after = other.end != SessionEnd::Attached && other.before.is_none();
        self.end == SessionEnd::Attached && is_after && is_same
    }

    /// Adds what was sampled of the process before the attach.
    pub(crate) fn add_before(&mut self, before: &Self) {
        self.before = Some(before.number);
        self.program_run.join(&before.program_run);
    }

    /// Returns whether it had an agent, which has signals.
    pub(crate) fn had_agent(&self) -> bool {
        !self.program_run.signals.is_empty()
    }

    /// Checks the process for remains of the recording. Returns `None` if the check was not
    /// requested or the process no longer exists.
    pub(crate) fn residue(&self) -> Option<ResidueReport> {
        let before = self.footprint.as_ref().filter(|_| !self.is_gone())?;
        ResidueReport::compare(self.opened.pid, before, &self.program_run.signals)
    }

    /// Returns how the process died, if a signal ended it that sampling could have caused: one that
    /// follows from a fault, or a signal of the agent.
    pub(crate) fn death(&self) -> Option<String> {
        let name = suspect(self.ended_by?, &self.program_run.signals)?;
        Some(format!("{name} ended process {} while it was sampled", self.opened.pid))
    }

    /// Returns why the recording ended, unless the user ended it.
    pub(crate) fn reason(&self) -> Option<String> {
        let reason = match self.end {
            SessionEnd::Asked
            | SessionEnd::AskedBetween
            | SessionEnd::Attached
            | SessionEnd::Output => return None,
            SessionEnd::Exited if self.death().is_some() => return self.death(),
            SessionEnd::Exited if self.opened.command.is_some() => return None,
            SessionEnd::Exited => "the target exited".to_owned(),
            SessionEnd::Executed => match self.executions.refused() {
                Some((name, why)) => {
                    format!("the target executed {name}, which is not sampled: {why}")
                }
                None => "the target executed another program; --follow-exec records that one too"
                    .to_owned(),
            },
            SessionEnd::Full => "the files have reached the size of --max-size".to_owned(),
            SessionEnd::OutOfIds => {
                "all ids of call traces have been used; another recording starts with \
                              new ones"
                    .to_owned()
            }
            SessionEnd::SignalTaken => {
                "the application took the sampling signal for itself".to_owned()
            }
        };
        Some(reason)
    }

    /// Returns what is known to be left in the process and should not be.
    pub(crate) fn left(&self, residue: Option<&ResidueReport>) -> Vec<String> {
        match residue.map(|it| &it.left).filter(|left| !left.is_empty()) {
            Some(left) => left.clone(),
            // The detach leaves this behind even if the check did not find it.
            None => self.program_run.detached.residue.iter().cloned().collect(),
        }
    }

    /// Whether the reason for its end also ends all other processes of the recording.
    pub(crate) fn is_end_of_all(&self, children: Children) -> bool {
        match self.end {
            SessionEnd::Output | SessionEnd::Full | SessionEnd::OutOfIds => true,
            _ => children == Children::OfCommand && self.is_exited_command(),
        }
    }

    /// Whether this is the program that the recorder started, and it has exited.
    pub(crate) fn is_exited_command(&self) -> bool {
        self.end == SessionEnd::Exited && self.opened.command.is_some()
    }

    /// Whether the program that had the agent no longer exists.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(
            self.end,
            SessionEnd::Exited
                | SessionEnd::Executed
                | SessionEnd::AskedBetween
                | SessionEnd::Attached
        )
    }
}

/// A process that could not be recorded.
pub(crate) struct Refused {
    /// The process id.
    pub(crate) pid: i32,
    /// The name of the process.
    pub(crate) name: String,
    /// Why it could not be recorded.
    pub(crate) error: RecordError,
}

impl Refused {
    /// Returns the name and the process id.
    pub(crate) fn title(&self) -> String {
        titled(&self.name, self.pid)
    }

    /// Returns why it could not be recorded, with its id.
    pub(crate) fn line(&self) -> String {
        let text = self.error.text();
        let pid = self.pid.to_string();
        let mut subject = text.split([';', ':', ',']).next().unwrap_or_default().split_whitespace();
        match subject.any(|word| word == pid) {
            true => text,
            false => format!("{}: {text}", self.title()),
        }
    }
}

/// Returns the name and the id of a process. A process that has exited has no name.
pub(crate) fn titled(name: &str, pid: i32) -> String {
    if name.is_empty() { pid.to_string() } else { format!("{name} ({pid})") }
}

/// The number of processes that the trace lists one by one.
pub(crate) const LISTED: usize = 1000;

/// Whether the trace lists the process with this number while it is recorded.
pub(crate) fn is_listed(number: ProcessNumber) -> bool {
    number as usize <= LISTED
}
