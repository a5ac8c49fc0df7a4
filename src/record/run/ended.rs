//! Recordings that are over, before their last words are written: of a process, and of all
//! together.

use crate::record::batch::process::Number;
use crate::record::contract::error::RecordError;
use crate::record::name::jvm::JvmNames;
use crate::record::run::executions::Executions;
use crate::record::run::opened::Opened;
use crate::record::session::End;
use crate::record::session::program_run::ProgramRun;
use crate::record::target::residue::{Footprint, ResidueReport};
use crate::record::write::writer::Tally;

/// A process that is cured and whose samples have been handed over.
pub(crate) struct Ended {
    /// Its number within the recording.
    pub(crate) number: Number,
    /// The process.
    pub(crate) opened: Opened,
    /// Why it ended.
    pub(crate) end: End,
    /// What the sampling came to, of all programs.
    pub(crate) program_run: ProgramRun,
    /// The programs that it executed.
    pub(crate) executions: Executions,
    /// What it was like before the last attach, if that is to be compared.
    pub(crate) footprint: Option<Footprint>,
    /// Has names asked for until all is written.
    pub(crate) jvm: JvmNames,
    /// What of it is kept by who writes.
    pub(crate) tally: Tally,
}

impl Ended {
    /// Of a process that there never was.
    #[cfg(test)]
    pub(crate) fn made_up(number: Number, end: End, program_run: ProgramRun) -> Self {
        let opened = Opened {
            pid: number as i32,
            start_time: 0,
            command: None,
            candidate: crate::record::run::plan::Candidate::started(number as i32, None),
            name: String::new(),
            command_line: Vec::new(),
            is_followed: false,
        };
        let (executions, jvm) = (Executions::default(), JvmNames::new(0, false));
        let tally = Tally::default();
        Self { number, opened, end, program_run, executions, footprint: None, jvm, tally }
    }

    /// What a look at the process finds of the recording; `None` if that was not asked for, or
    /// there is no such process any more.
    pub(crate) fn residue(&self) -> Option<ResidueReport> {
        let before = self.footprint.as_ref().filter(|_| !self.is_gone())?;
        ResidueReport::compare(self.opened.pid, before, &self.program_run.signals)
    }

    /// Why it ended, where the user did not ask for it.
    pub(crate) fn reason(&self) -> Option<String> {
        let reason = match self.end {
            End::Asked | End::AskedBetween | End::Output => return None,
            End::Exited if self.opened.command.is_some() => return None,
            End::Exited => "the target exited".to_owned(),
            End::Executed => match self.executions.refused() {
                Some((name, why)) => {
                    format!("the target executed {name}, which is not sampled: {why}")
                }
                None => "the target executed another program; --follow-exec goes on with that one"
                    .to_owned(),
            },
            End::Full => "the files have reached the size of --max-size".to_owned(),
            End::OutOfIds => {
                "all ids of call traces have been used; another recording starts with \
                              new ones"
                    .to_owned()
            }
            End::SignalTaken => "the application took the sampling signal for itself".to_owned(),
        };
        Some(reason)
    }

    /// What stays in it and should not, as far as that is known.
    pub(crate) fn left(&self, residue: Option<&ResidueReport>) -> Vec<String> {
        match residue.map(|it| &it.left).filter(|left| !left.is_empty()) {
            Some(left) => left.clone(),
            // Found or not, it is there.
            None => self.program_run.detached.unfinished().map(str::to_owned).into_iter().collect(),
        }
    }

    /// It ended for what ends all others of the recording too.
    pub(crate) fn is_end_of_all(&self) -> bool {
        matches!(self.end, End::Output | End::Full | End::OutOfIds)
    }

    /// The agent went with its program.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.end, End::Exited | End::Executed | End::AskedBetween)
    }
}

/// A process that could not be recorded.
pub(crate) struct Refused {
    /// Its id.
    pub(crate) pid: i32,
    /// What it is called.
    pub(crate) name: String,
    /// Why not.
    pub(crate) error: RecordError,
}

impl Refused {
    /// Its id and its name.
    pub(crate) fn title(&self) -> String {
        format!("{} ({})", self.pid, self.name)
    }
}

/// Processes that are listed one by one.
pub(crate) const LISTED: usize = 1000;

/// Whether the process of this number is told of while it is recorded.
pub(crate) fn is_listed(number: Number) -> bool {
    number as usize <= LISTED
}
