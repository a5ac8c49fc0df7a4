//! Machines that run, and what their own tools say about them.

mod code;
mod heaps;
mod image;
pub(crate) mod machines;
mod stacks;
mod threads;
mod wild;
