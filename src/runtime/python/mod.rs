//! CPython 3.8 to 3.14.
//!
//! [`exports`] reads the file that defines `_PyRuntime`: libpython, or the executable itself.
//! [`locate`] reads the live structures, whose offsets [`offsets`] has for each version, and
//! compares them with the threads that are there. [`code`] names code objects, and [`lines`]
//! decodes their line tables. [`thread_names`] reads the names of threads from objects of the
//! program ([`objects`]).

mod carriers;
mod code;
mod exports;
mod lines;
mod locate;
mod lock;
mod objects;
mod offsets;
mod published;
mod text;
mod thread_names;
mod threads;
mod version;

pub(super) use code::CodeReader;
pub(super) use exports::PythonExports;
pub(super) use lines::LineTable;
#[cfg(test)]
pub(super) use offsets::{Structures, structures};
pub(super) use thread_names::{ThreadDirectory, ThreadNameKeys};
