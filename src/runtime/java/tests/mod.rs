//! Machines that run, and what their own tools say about them.

mod code;
mod heaps;
pub(crate) mod machines;
mod stacks;
mod threads;
mod wild;
