//! The signal frame that the kernel leaves for the handler.

use crate::sys::{SigInfo, UserContext};

/// The data that the kernel put on the stack for the handler.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The signal's information.
    pub info: &'a SigInfo,
    /// The interrupted context.
    pub context: &'a UserContext,
    /// The return address of the handler: the restorer.
    pub return_slot: &'a mut u64,
}
