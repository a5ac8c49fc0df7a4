//! A recording after its last process has ended.

use std::time::Instant;

use crate::record::contract::options::Children;
use crate::record::run::accounting::Accounting;
use crate::record::run::common_state::CommonState;
use crate::record::run::ended_process::{EndedProcess, Refused};
use crate::record::run::ended_processes::EndedProcesses;
use crate::record::run::executions::Executions;
use crate::record::session::SessionEnd;
use crate::record::session::program_run::ProgramRun;
use crate::record::store::liveness::heaviest;
use crate::record::target::residue::ResidueReport;
use crate::record::write::writer::{Finished, WrittenTotals};
use crate::trace::Value;

/// A recording after its last process has ended.
pub(crate) struct EndedRecording {
    /// Whether the metadata lists processes, because there might have been several.
    pub(crate) lists_processes: bool,
    /// The recorded processes that are kept one by one.
    pub(crate) ended: Vec<EndedProcess>,
    /// The number of all recorded processes.
    pub(crate) count: u64,
    /// The number of processes that were recorded until the started program exited.
    outlived: usize,
    /// What the check found in each of `ended` after the detach, if it was requested.
    pub(crate) residues: Vec<Option<ResidueReport>>,
    /// The processes that could not be recorded.
    pub(crate) refused: Vec<Refused>,
    /// The number of further processes that exited before the attach, or that exceed the list.
    pub(crate) missed: u64,
    /// Lines about processes that were attached late, with the reason.
    pub(crate) late: Vec<String>,
    /// The writer, before the trace is closed.
    pub(crate) finished: Finished,
    /// The totals of the writer.
    pub(crate) totals: WrittenTotals,
    /// The totals of the sampling.
    pub(crate) program_run: ProgramRun,
    /// The programs that were executed.
    pub(crate) executions: Executions,
    /// The names of tags, if there are any.
    pub(crate) tags: Option<(String, Value)>,
    /// Whether a save of the ring was still pending at the end.
    pub(crate) is_save_pending: bool,
}

impl EndedRecording {
    /// Returns why the recording ended, unless the user ended it. With several processes, this is
    /// the reason that all processes share that did not exit by themselves.
    pub(crate) fn reason(&self) -> Option<String> {
        if !self.is_several() {
            return self.ended.first().and_then(EndedProcess::reason);
        }
        if let Some(reason) = self.outlived() {
            return Some(reason);
        }
        let others = self.ended.iter().filter(|it| it.end != SessionEnd::Exited && it.had_agent());
        reason_of_all(others.map(EndedProcess::reason))
    }

    /// Returns that the recording ended with the started program, though others run on.
    pub(crate) fn outlived(&self) -> Option<String> {
        let left = match self.outlived {
            0 => return None,
            1 => "1 of its processes runs on".to_owned(),
            count => format!("{count} of its processes run on"),
        };
        Some(format!("the program exited, {left} (--subprocesses waits for all)"))
    }

    /// Sums up the processes; `None` if there is none.
    pub(crate) fn new(
        ended_processes: EndedProcesses,
        finished: Finished,
        common: &CommonState<'_>,
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
        let residues = ended.iter().map(EndedProcess::residue).collect();
        let (refused, missed) = (Vec::new(), 0);
        let outlived = outlived(&ended, common);
        Some(Self {
            lists_processes: common.is_several,
            outlived,
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
            is_save_pending: common.triggers.is_save_due_at_end(Instant::now())
                || common.stop.takes_save(),
        })
    }

    /// Whether there was more than one process.
    pub(crate) fn is_several(&self) -> bool {
        self.count > 1 || !self.refused.is_empty() || self.missed > 0
    }

    /// Returns the figures of the recording.
    pub(crate) fn accounting(&self) -> Accounting<'_> {
        Accounting {
            program_run: &self.program_run,
            totals: &self.totals,
            executions: &self.executions,
            is_gone: self.ended.iter().all(EndedProcess::is_gone),
        }
    }

    /// Returns what is left behind and should not be, and the process that has it. Without remains
    /// the process is the first one.
    pub(crate) fn left(&self) -> (i32, Vec<String>) {
        let each = self.ended.iter().zip(&self.residues);
        let each = each.map(|(ended, found)| (ended.opened.pid, ended.left(found.as_ref())));
        let mut left: Vec<(i32, Vec<String>)> = each.filter(|(_, left)| !left.is_empty()).collect();
        let first = left.first().map(|(pid, _)| *pid);
        let pid = first.unwrap_or_else(|| self.ended.first().map_or(0, |it| it.opened.pid));
        if self.is_several() {
            for (pid, texts) in &mut left {
                texts.iter_mut().for_each(|text| *text = format!("process {pid}: {text}"));
            }
        }
        (pid, left.into_iter().flat_map(|(_, texts)| texts).collect())
    }
}

/// Returns the number of processes whose recording ended because the started program exited.
fn outlived(ended: &[EndedProcess], common: &CommonState<'_>) -> usize {
    if common.options.children != Children::OfCommand
        || common.stop.is_requested()
        || !ended.iter().any(EndedProcess::is_exited_command)
    {
        return 0;
    }
    ended.iter().filter(|it| it.end == SessionEnd::Asked).count()
}

/// Returns the common reason of all processes that did not exit by themselves.
fn reason_of_all(mut reasons: impl Iterator<Item = Option<String>>) -> Option<String> {
    let Some(first) = reasons.next() else { return Some("all processes exited".to_owned()) };
    first.filter(|first| reasons.all(|it| it.as_ref() == Some(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_processes_have_a_reason_if_all_share_it() {
        let of_all = |reasons: &[Option<&str>]| {
            reason_of_all(reasons.iter().map(|it| it.map(str::to_owned)))
        };
        assert_eq!(of_all(&[]).as_deref(), Some("all processes exited"));
        assert_eq!(of_all(&[Some("full"), Some("full")]).as_deref(), Some("full"));
        assert_eq!(of_all(&[Some("full"), None]), None);
        assert_eq!(of_all(&[None, Some("full")]), None);
        assert_eq!(of_all(&[Some("full"), Some("taken")]), None);
    }
}
