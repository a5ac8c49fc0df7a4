//! A test of a process that only reads the statistics: it gets no table.
#![allow(missing_docs, reason = "a test crate")]

mod common;

use traceprof_context::{Statistics, statistics};

/// This is the only test of its process, so that nothing else creates a table.
#[test]
fn reading_the_statistics_creates_no_table() {
    assert_eq!(statistics(), Statistics::default());
    assert_eq!(common::tables(std::process::id()), []);
    traceprof_context::Tag::number("tenant").expect("a tag");
    assert_eq!(common::tables(std::process::id()).len(), 1);
    assert_eq!(statistics().tags, 1);
}
