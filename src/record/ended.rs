//! A recording that is over, before its last words are written.

use super::account::Reckoning;
use super::aftermath::{Aftermath, Footprint};
use super::executions::Executions;
use super::scribe::Finished;
use super::session::End;
use super::stint::Stint;

/// A recording whose target is cured and whose samples are written.
pub(super) struct Ended {
    /// The process.
    pub(super) pid: i32,
    /// Why it ended.
    pub(super) end: End,
    /// The writer before its last words.
    pub(super) finished: Finished,
    /// What the sampling came to, of all programs.
    pub(super) stint: Stint,
    /// The programs that the target executed.
    pub(super) executions: Executions,
}

impl Ended {
    /// What a look at the target finds of the recording; `None` if there is no such target any more.
    pub(super) fn aftermath(&self, before: &Footprint) -> Option<Aftermath> {
        if self.is_gone() {
            return None;
        }
        Aftermath::look(self.pid, before, &self.stint.signals)
    }

    /// The reckoning.
    pub(super) fn reckoning(&self) -> Reckoning<'_> {
        Reckoning {
            stint: &self.stint,
            totals: self.finished.totals(),
            executions: &self.executions,
            is_gone: self.is_gone(),
        }
    }

    /// The agent went with its program.
    fn is_gone(&self) -> bool {
        matches!(self.end, End::Exited | End::Executed | End::AskedBetween)
    }
}
