//! Where the frames of a thread that is led go, and what they return through.

use super::chain::{Chain, Landing, Step};
use super::error::InjectError;
use super::stop::Stopped;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) landing: Landing,
    /// The frames end below it.
    pub(super) top: u64,
}

impl Place {
    /// Leads the worker through system calls that must not fail.
    pub(super) fn run(self, worker: &mut Stopped, steps: &[Step]) -> Result<(), InjectError> {
        for result in self.try_to_run(worker, steps)? {
            fine("a system call in the target", result)?;
        }
        Ok(())
    }

    /// Leads the worker through system calls; gives their results.
    pub(super) fn try_to_run(
        self,
        worker: &mut Stopped,
        steps: &[Step],
    ) -> Result<Vec<i64>, InjectError> {
        let chain = Chain::new(&worker.saved, steps, self.landing, self.top);
        worker.walk(&chain, steps)
    }
}

/// A system call's result, which is 0 or a negated errno.
pub(super) fn fine(call: &str, result: i64) -> Result<(), InjectError> {
    if result == 0 {
        return Ok(());
    }
    Err(InjectError::System { call: call.to_owned(), errno: i32::try_from(-result).unwrap_or(0) })
}
