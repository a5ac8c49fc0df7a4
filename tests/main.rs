//! The tests that need the built command or the whole tree, in one binary.

mod baseline; // the targets without any recorder
mod command; // record -- COMMAND
mod common; // targets, the command under test, a process seen from outside
mod errors; // messages and codes
mod harm; // what a target must never notice
mod record; // what a recording says, against what the target knows
mod stop; // signals, exits, second thoughts
mod tidy; // the house rules
mod views; // print, dump, export
