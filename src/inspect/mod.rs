//! `doctor`, `--dry-run` and `stacks`: inspection of a process or a host without a recording.

pub(crate) mod doctor;
pub(crate) mod dry_run;
pub mod stacks;

pub use doctor::{Diagnosis, Examined, Finding, Prospect, SIGTRAP_WINDOW, Severity, diagnose};
pub use dry_run::dry_run;
