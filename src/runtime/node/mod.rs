//! Node.js: what its threads are for.
//!
//! Each thread runs one of few functions, by which it is known: `roles` finds these functions in
//! the file, and `threads` those that run in a process. `worker` reads the number and the name that
//! the program knows a worker by.

mod roles;
#[cfg(test)]
mod tests;
mod threads;
mod worker;

pub use roles::NodeExports;
pub use threads::NodeThreads;
