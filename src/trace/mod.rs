//! The trace on disk: a data file and an index file.

mod model;

pub use model::*;
