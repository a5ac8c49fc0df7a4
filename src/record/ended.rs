//! Recordings that are over, before their last words are written: of a process, and of all together.

use std::time::Instant;

use super::account::Reckoning;
use super::aftermath::{Aftermath, Footprint};
use super::common::Common;
use super::executions::Executions;
use super::jvm::JvmNames;
use super::liveness::heaviest;
use super::roster::Roster;
use super::scribe::{Finished, Number, Tally, Totals};
use super::session::End;
use super::stint::Stint;
use super::{Opened, RecordError};
use crate::trace::Value;

/// A process that is cured and whose samples have been handed over.
pub(super) struct Ended {
    /// Its number within the recording.
    pub(super) number: Number,
    /// The process.
    pub(super) opened: Opened,
    /// Why it ended.
    pub(super) end: End,
    /// What the sampling came to, of all programs.
    pub(super) stint: Stint,
    /// The programs that it executed.
    pub(super) executions: Executions,
    /// What it was like before the last attach, if that is to be compared.
    pub(super) footprint: Option<Footprint>,
    /// Has names asked for until all is written.
    pub(super) jvm: JvmNames,
    /// What of it is kept by who writes.
    pub(super) tally: Tally,
}

impl Ended {
    /// Of a process that there never was.
    #[cfg(test)]
    pub(super) fn made_up(number: Number, end: End, stint: Stint) -> Self {
        let opened = Opened {
            pid: number as i32,
            start_time: 0,
            command: None,
            hold_fd: None,
            no_timers: None,
            name: String::new(),
            command_line: Vec::new(),
            is_new: false,
            is_followed: false,
        };
        let (executions, jvm) = (Executions::default(), JvmNames::new(0, false));
        let tally = Tally::default();
        Self { number, opened, end, stint, executions, footprint: None, jvm, tally }
    }

    /// What a look at the process finds of the recording; `None` if that was not asked for, or there is
    /// no such process any more.
    pub(super) fn aftermath(&self) -> Option<Aftermath> {
        let before = self.footprint.as_ref().filter(|_| !self.is_gone())?;
        Aftermath::look(self.opened.pid, before, &self.stint.signals)
    }

    /// Why it ended, where the user did not ask for it.
    pub(super) fn reason(&self) -> Option<String> {
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
    fn left(&self, aftermath: Option<&Aftermath>) -> Vec<String> {
        match aftermath.map(|it| &it.left).filter(|left| !left.is_empty()) {
            Some(left) => left.clone(),
            // Found or not, it is there.
            None => self.stint.detached.unfinished().map(str::to_owned).into_iter().collect(),
        }
    }

    /// It ended for what ends all others of the recording too.
    pub(super) fn is_end_of_all(&self) -> bool {
        matches!(self.end, End::Output | End::Full | End::OutOfIds)
    }

    /// The agent went with its program.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.end, End::Exited | End::Executed | End::AskedBetween)
    }
}

/// A process that could not be recorded.
pub(super) struct Refused {
    /// Its id.
    pub(super) pid: i32,
    /// What it is called.
    pub(super) name: String,
    /// Why not.
    pub(super) error: RecordError,
}

impl Refused {
    /// Its id and its name.
    pub(super) fn title(&self) -> String {
        format!("{} ({})", self.pid, self.name)
    }
}

/// All processes of a recording.
pub(super) struct Over {
    /// There might have been more than one.
    pub(super) is_several: bool,
    /// Those that were recorded and are kept by themselves,
    pub(super) ended: Vec<Ended>,
    /// and how many there are in all.
    pub(super) count: u64,
    /// What was found in each of them afterwards, where it was looked for.
    pub(super) aftermaths: Vec<Option<Aftermath>>,
    /// Those that could not be.
    pub(super) refused: Vec<Refused>,
    /// How many more there were that ended before they could be, or that there was no room to list.
    pub(super) missed: u64,
    /// Those that were begun with late, and why.
    pub(super) late: Vec<String>,
    /// The writer before its last words.
    pub(super) finished: Finished,
    /// What was handed to it.
    pub(super) totals: Totals,
    /// What the sampling came to.
    pub(super) stint: Stint,
    /// The programs that were executed.
    pub(super) executions: Executions,
    /// The names of tags, if there are any.
    pub(super) tags: Option<(String, Value)>,
    /// The ring was to be saved when the end came.
    pub(super) is_save_owed: bool,
}

impl Over {
    /// Why the recording ended, where the user did not ask for it: of several processes what all that
    /// had not ended by themselves ended for.
    pub(super) fn reason(&self) -> Option<String> {
        if !self.is_several {
            return self.ended.first().and_then(Ended::reason);
        }
        let rest = self.ended.iter().filter(|it| it.end != End::Exited).map(Ended::reason);
        reason_of_all(rest)
    }

    /// Sums up; `None` of no process.
    pub(super) fn new(roster: Roster, finished: Finished, common: &Common<'_>) -> Option<Self> {
        let count = roster.count();
        let Roster { ended, rest } = roster;
        let (first, others) = ended.split_first()?;
        let (mut stint, mut executions) = (first.stint.clone(), first.executions.clone());
        for other in others {
            stint.join(&other.stint);
            executions.join(&other.executions);
        }
        if let Some(rest) = rest {
            stint.join(&rest.stint);
            executions.join(&rest.executions);
        }
        stint.heaviest = heaviest(&[], stint.heaviest, common.options.preserve);
        let totals = finished.totals();
        let aftermaths = ended.iter().map(Ended::aftermath).collect();
        let (refused, missed) = (Vec::new(), 0);
        let is_several = common.is_several;
        Some(Self {
            is_several,
            ended,
            count,
            aftermaths,
            refused,
            missed,
            late: Vec::new(),
            finished,
            totals,
            stint,
            executions,
            tags: common.tags.metadata(),
            is_save_owed: common.triggers.owes_save_at_end(Instant::now())
                || common.stop.takes_save(),
        })
    }

    /// The reckoning.
    pub(super) fn reckoning(&self) -> Reckoning<'_> {
        Reckoning {
            stint: &self.stint,
            totals: &self.totals,
            executions: &self.executions,
            is_gone: self.ended.iter().all(Ended::is_gone),
        }
    }

    /// What stays behind and should not, and in which process, the first one if there is nothing.
    pub(super) fn left(&self) -> (i32, Vec<String>) {
        let each = self.ended.iter().zip(&self.aftermaths);
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
