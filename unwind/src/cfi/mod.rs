//! Translates rows of call frame information into rules, by architecture.

pub(super) mod aarch64;
pub(super) mod x86_64;
