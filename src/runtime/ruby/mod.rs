//! Ruby 3.1 and 3.3: the interpreter in C (CRuby).
//!
//! [`exports`] reads the file that has the interpreter: `libruby`, or a program that contains it.
//! [`locate`] compares the structures, whose offsets [`offsets`] has for each version, with the
//! frames that are there. [`functions`] names methods and code, with the names of their classes
//! ([`classes`]) and lines ([`lines`]).

mod classes;
mod exports;
mod functions;
mod lines;
mod locate;
mod objects;
mod offsets;
mod symbols;
mod version;

pub(super) use exports::RubyExports;
pub(super) use functions::RubyReader;
pub(super) use lines::InstructionLines;
