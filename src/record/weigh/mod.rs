//! How much CPU time a sample stands for, and what the recording itself uses.

pub(crate) mod balance;
pub(crate) mod cpu_clock;
pub(crate) mod overhead;
pub(crate) mod parents;
pub(crate) mod remainder;
