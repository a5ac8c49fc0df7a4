//! Interpreters that run, and memory that holds anything.

mod image;
mod interpreters;
mod line_tables;
mod live;
mod task_offsets;
mod wild;
