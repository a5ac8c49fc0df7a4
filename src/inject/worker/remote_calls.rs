//! System calls that a stepped thread makes for the guardian.

use crate::inject::error::InjectError;
use crate::inject::sigreturn_chain::{Chain, ChainGadgets, ChainStep};
use crate::inject::stop::Stopped;

/// The address of a stepped thread's frames, and the instructions that the frames return through.
#[derive(Debug, Clone, Copy)]
pub(in crate::inject) struct RemoteCalls {
    pub(in crate::inject) gadgets: ChainGadgets,
    /// The address below which the frames end.
    pub(in crate::inject) top: u64,
}

impl RemoteCalls {
    /// Makes the worker run system calls that must not fail.
    pub(in crate::inject) fn run(
        self,
        worker: &mut Stopped,
        steps: &[ChainStep],
    ) -> Result<(), InjectError> {
        for result in self.run_fallible(worker, steps)? {
            expect_zero("a system call in the target", result)?;
        }
        Ok(())
    }

    /// Makes the worker run system calls, and returns their results.
    pub(in crate::inject) fn run_fallible(
        self,
        worker: &mut Stopped,
        steps: &[ChainStep],
    ) -> Result<Vec<i64>, InjectError> {
        let chain = Chain::new(worker.saved(), steps, self.gadgets, self.top);
        worker.run_stepwise(&chain, steps)
    }
}

/// Checks the result of a system call, which is 0 or a negated errno.
pub(in crate::inject) fn expect_zero(call: &str, result: i64) -> Result<(), InjectError> {
    if result == 0 {
        return Ok(());
    }
    Err(InjectError::System { call: call.to_owned(), errno: i32::try_from(-result).unwrap_or(0) })
}
