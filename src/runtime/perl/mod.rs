//! Perl 5.36 with threads, as distributions build it.
//!
//! [`exports`] reads the file that has the interpreter: `perl`, `libperl`, or a program that
//! contains it. [`locate`] compares the structures, whose offsets [`structures`] has for each
//! version, with the frames that are there. [`functions`] names subs and other code.

mod exports;
mod functions;
mod locate;
mod structures;

pub(super) use exports::PerlExports;
pub(super) use functions::PerlReader;
