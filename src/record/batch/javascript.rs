//! Functions and compiled code of JavaScript, as the recorder has read them from the target.

use std::sync::Arc;

use traceprof_abi::runtime::word::FrameFunction;

use crate::runtime::Gone;
use crate::runtime::v8::{JsCode, JsFunction};

/// The identity of a function in one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct JsKey {
    /// The address of what the function shares with its other instances (AVMA).
    pub(crate) object: u64,
    /// The number that tells objects at one address apart.
    pub(crate) cookie: u32,
}

impl JsKey {
    /// Returns the function of a frame. `None` if it could not be read.
    pub(crate) fn of(function: FrameFunction) -> Option<Self> {
        let FrameFunction { object, cookie, .. } = function;
        (function != FrameFunction::UNREADABLE).then_some(Self { object, cookie })
    }
}

/// A function, or why it could not be read.
pub(crate) type ReadJsFunction = Result<Arc<JsFunction>, Gone>;

/// The code that was found at an address.
#[derive(Debug, Clone)]
pub(crate) struct FoundJsCode {
    /// The address (AVMA).
    pub(crate) avma: u64,
    /// Since when it is there, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) since_ns: u64,
    /// The code. `None` if it is not known what is there since then.
    pub(crate) code: Option<Arc<JsCode>>,
}

/// The functions and the code that a batch is the first to use, or that are others than before.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewJavaScript {
    /// The functions.
    pub(crate) functions: Vec<(JsKey, ReadJsFunction)>,
    /// The code.
    pub(crate) found: Vec<FoundJsCode>,
    /// Addresses (AVMA) whose code could not be read.
    pub(crate) lost: Vec<(u64, Gone)>,
    /// Whether all of earlier batches is dropped first.
    pub(crate) is_fresh: bool,
}

impl NewJavaScript {
    /// Removes everything, and keeps the memory for reuse.
    pub(crate) fn clear(&mut self) {
        self.functions.clear();
        self.found.clear();
        self.lost.clear();
        self.is_fresh = false;
    }
}
