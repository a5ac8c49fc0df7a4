//! The recorded process: attach, detach, its modules, its signals and the shared segments.

pub(crate) mod attach;
pub(crate) mod attach_inputs;
pub(crate) mod command;
pub(crate) mod counters;
pub(crate) mod crash_reporter;
pub(crate) mod jit_dump;
pub(crate) mod language_runtime;
pub(crate) mod lease;
pub(crate) mod leftovers;
pub(crate) mod memory_file;
pub(crate) mod modules;
pub(crate) mod namespace;
pub(crate) mod narrow_stacks;
pub(crate) mod privileges;
pub(crate) mod residue;
pub(crate) mod segments;
pub(crate) mod shm;
pub(crate) mod signals;
pub(crate) mod spawn;
pub(crate) mod stop_turns;
