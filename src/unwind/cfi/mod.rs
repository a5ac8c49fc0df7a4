//! Rows of call frame information as rules, by machine.

pub(super) mod aarch64;
pub(super) mod x86_64;
