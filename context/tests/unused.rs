//! A process that only asks is left as it is.
#![allow(missing_docs, reason = "a test crate")]

mod common;

use traceprof_context::{Statistics, statistics};

/// The only test of its process, so that nothing else makes a table.
#[test]
fn asking_for_numbers_makes_no_table() {
    assert_eq!(statistics(), Statistics::default());
    assert_eq!(common::tables(std::process::id()), []);
    traceprof_context::Tag::number("tenant").expect("a tag");
    assert_eq!(common::tables(std::process::id()).len(), 1);
    assert_eq!(statistics().tags, 1);
}
