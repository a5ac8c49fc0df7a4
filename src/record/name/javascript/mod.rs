//! Names of JavaScript functions, read from the memory of V8.

pub(crate) mod names;
pub(crate) mod reader;
pub(crate) mod shown;
