//! Machines that run, and what their own tools say about them.

mod code;
mod machines;
mod stacks;
mod threads;
mod wild;
