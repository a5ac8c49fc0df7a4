//! The tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cli;
mod docs;
mod snapshot;
mod views;
