//! The signal frame that the kernel leaves for the handler.

use crate::sys::{SigInfo, UserContext};

/// What the kernel left on the stack for the handler.
#[derive(Debug)]
pub struct Frame<'a> {
    /// What the signal is.
    pub info: &'a SigInfo,
    /// What it interrupted.
    pub context: &'a UserContext,
    /// The return address of the handler: the restorer.
    pub return_slot: &'a mut u64,
}
