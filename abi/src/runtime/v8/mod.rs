//! The frames of JavaScript functions in V8, the engine of Node.js.
//!
//! They are on the thread's stack, and each has its function in a slot below the frame pointer.
//! [`V8Layout`] has the offsets of one version.

mod frame;
mod layout;

pub use frame::{FrameSlots, NoFunction, function};
pub use layout::{
    ABSENT, BYTECODES_SLOT, CONTEXT_SLOT, FUNCTION_SLOT, OFFSET_SLOT, V8Layout, object_of,
};
