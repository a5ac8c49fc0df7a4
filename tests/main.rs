//! The tests.

mod snapshot;
mod views;
