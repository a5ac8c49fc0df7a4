//! Machines that run, and what their own tools say about them.

mod code;
pub(crate) mod machines;
mod stacks;
mod threads;
mod wild;
