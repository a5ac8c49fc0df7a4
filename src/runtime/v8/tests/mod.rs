//! Programs of Node.js that run, and what the engine says about them itself.

mod files;
pub(crate) mod frames;
mod image;
pub(crate) mod nodes;
mod objects;
mod shapes;
mod wild;
