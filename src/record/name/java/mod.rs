//! Names of the code that a Java machine has generated, read from the machine's memory.

pub(crate) mod names;
pub(crate) mod reader;
mod watch;
