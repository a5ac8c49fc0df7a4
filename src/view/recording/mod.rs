//! The facts of a trace about its recording, its modes and its waits.

pub(super) mod context;
pub(super) mod lock;
pub(super) mod mode;
pub(super) mod rate_changes;
pub(super) mod recording_info;
pub(super) mod unit;
pub(super) mod waits;
