//! Interpreters that run.

mod interpreters;
mod live;
