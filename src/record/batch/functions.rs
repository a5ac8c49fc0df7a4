//! Functions of runtimes, as the recorder has read them from the target.

use std::sync::Arc;

use traceprof_abi::runtime::word::ManagedFrame;

use crate::runtime::{Function, Gone};

/// The identity of a function in one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FunctionKey {
    /// The number of the runtime.
    pub(crate) runtime: u8,
    /// The address of the code object.
    pub(crate) object: u64,
    /// The number that tells objects at one address apart.
    pub(crate) cookie: u32,
}

impl FunctionKey {
    /// Returns the function of a frame.
    pub(crate) fn of(runtime: u8, frame: &ManagedFrame) -> Self {
        Self { runtime, object: frame.object, cookie: frame.cookie }
    }
}

/// What the recorder found at a function's address.
pub(crate) type ReadFunction = Result<Arc<Function>, Gone>;

/// The functions that a batch is the first to use.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewFunctions {
    /// The functions.
    pub(crate) read: Vec<(FunctionKey, ReadFunction)>,
    /// Whether all functions of earlier batches are dropped first.
    pub(crate) is_fresh: bool,
}

impl NewFunctions {
    /// Removes all functions, and keeps the memory for reuse.
    pub(crate) fn clear(&mut self) {
        self.read.clear();
        self.is_fresh = false;
    }
}
