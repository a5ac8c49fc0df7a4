//! All processes of a recording, when the last one is over.

use std::time::Instant;

use crate::record::run::accounting::Reckoning;
use crate::record::run::common::Common;
use crate::record::run::ended::{Ended, Refused};
use crate::record::run::ended_processes::EndedProcesses;
use crate::record::run::executions::Executions;
use crate::record::session::End;
use crate::record::session::program_run::ProgramRun;
use crate::record::store::liveness::heaviest;
use crate::record::target::residue::ResidueReport;
use crate::record::write::writer::{Finished, Totals};
use crate::trace::Value;

/// All processes of a recording.
pub(crate) struct Over {
    /// There might have been more than one.
    pub(crate) is_several: bool,
    /// Those that were recorded and are kept by themselves,
    pub(crate) ended: Vec<Ended>,
    /// and how many there are in all.
    pub(crate) count: u64,
    /// What was found in each of them afterwards, where it was looked for.
    pub(crate) residues: Vec<Option<ResidueReport>>,
    /// Those that could not be.
    pub(crate) refused: Vec<Refused>,
    /// How many more there were that ended before they could be, or that there was no room to list.
    pub(crate) missed: u64,
    /// Those that were begun with late, and why.
    pub(crate) late: Vec<String>,
    /// The writer before its last words.
    pub(crate) finished: Finished,
    /// What was handed to it.
    pub(crate) totals: Totals,
    /// What the sampling came to.
    pub(crate) program_run: ProgramRun,
    /// The programs that were executed.
    pub(crate) executions: Executions,
    /// The names of tags, if there are any.
    pub(crate) tags: Option<(String, Value)>,
    /// The ring was to be saved when the end came.
    pub(crate) is_save_owed: bool,
}

impl Over {
    /// Why the recording ended, where the user did not ask for it: of several processes what all
    /// that had not ended by themselves ended for.
    pub(crate) fn reason(&self) -> Option<String> {
        if !self.is_several {
            return self.ended.first().and_then(Ended::reason);
        }
        let rest = self.ended.iter().filter(|it| it.end != End::Exited).map(Ended::reason);
        reason_of_all(rest)
    }

    /// Sums up; `None` of no process.
    pub(crate) fn new(
        ended_processes: EndedProcesses,
        finished: Finished,
        common: &Common<'_>,
    ) -> Option<Self> {
        let count = ended_processes.count();
        let EndedProcesses { ended, rest } = ended_processes;
        let (first, others) = ended.split_first()?;
        let (mut program_run, mut executions) =
            (first.program_run.clone(), first.executions.clone());
        for other in others {
            program_run.join(&other.program_run);
            executions.join(&other.executions);
        }
        if let Some(rest) = rest {
            program_run.join(&rest.program_run);
            executions.join(&rest.executions);
        }
        program_run.heaviest = heaviest(&[], program_run.heaviest, common.options.preserve);
        let totals = finished.totals();
        let residues = ended.iter().map(Ended::residue).collect();
        let (refused, missed) = (Vec::new(), 0);
        let is_several = common.is_several;
        Some(Self {
            is_several,
            ended,
            count,
            residues,
            refused,
            missed,
            late: Vec::new(),
            finished,
            totals,
            program_run,
            executions,
            tags: common.tags.metadata(),
            is_save_owed: common.triggers.owes_save_at_end(Instant::now())
                || common.stop.takes_save(),
        })
    }

    /// The reckoning.
    pub(crate) fn reckoning(&self) -> Reckoning<'_> {
        Reckoning {
            program_run: &self.program_run,
            totals: &self.totals,
            executions: &self.executions,
            is_gone: self.ended.iter().all(Ended::is_gone),
        }
    }

    /// What stays behind and should not, and in which process, the first one if there is nothing.
    pub(crate) fn left(&self) -> (i32, Vec<String>) {
        let each = self.ended.iter().zip(&self.residues);
        let each = each.map(|(ended, found)| (ended.opened.pid, ended.left(found.as_ref())));
        let mut left: Vec<(i32, Vec<String>)> = each.filter(|(_, left)| !left.is_empty()).collect();
        let first = left.first().map(|(pid, _)| *pid);
        let pid = first.unwrap_or_else(|| self.ended.first().map_or(0, |it| it.opened.pid));
        if self.is_several {
            for (pid, texts) in &mut left {
                texts.iter_mut().for_each(|text| *text = format!("process {pid}: {text}"));
            }
        }
        (pid, left.into_iter().flat_map(|(_, texts)| texts).collect())
    }
}

/// The reason of several processes from those of all that did not end by themselves.
fn reason_of_all(mut reasons: impl Iterator<Item = Option<String>>) -> Option<String> {
    let Some(first) = reasons.next() else { return Some("all processes ended".to_owned()) };
    first.filter(|first| reasons.all(|it| it.as_ref() == Some(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_processes_have_a_reason_if_it_is_that_of_all() {
        let of_all = |reasons: &[Option<&str>]| {
            reason_of_all(reasons.iter().map(|it| it.map(str::to_owned)))
        };
        assert_eq!(of_all(&[]).as_deref(), Some("all processes ended"));
        assert_eq!(of_all(&[Some("full"), Some("full")]).as_deref(), Some("full"));
        assert_eq!(of_all(&[Some("full"), None]), None);
        assert_eq!(of_all(&[None, Some("full")]), None);
        assert_eq!(of_all(&[Some("full"), Some("taken")]), None);
    }
}
