//! Interpreters that run, and memory that holds anything.
