//! A recording from attach to detach.
//!
//! The folders are layers, listed from bottom to top; imports point downwards only.
//!
//! | folder | contents |
//! |---|---|
//! | `contract` | options, events, errors and the summary: plain values |
//! | `target` | the recorded process: attach and detach, segments, signals, residue |
//! | `batch` | the data that flows between stages: samples, traces, threads, addresses |
//! | `source` | the sources of samples: perf events, timers, the wall clock, task records |
//! | `store` | the shared tables: rotation, collection, threads and their lifetimes |
//! | `weigh` | the correction of weights by CPU clocks, and the recording's own overhead |
//! | `name` | the code and context of each sample: mappings, JIT code, spans, symbolizers |
//! | `write` | the writer thread, the output files, the triggers that save a ring |
//! | `session` | one program from its first to its last sample |
//! | `run` | one recording: processes, programs after an exec, children, the closing report |

pub(crate) mod batch;
pub(crate) mod contract;
pub(crate) mod name;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod source;
pub(crate) mod store;
pub(crate) mod target;
pub(crate) mod weigh;
pub(crate) mod write;

pub use contract::error::RecordError;
pub use contract::event::{Event, Progress};
pub use contract::observer::Observer;
pub use contract::options::{
    Children, EngineChoice, Files, Measure, NamedProcesses, Options, Target,
};
pub use contract::pattern::{Occasion, OutputPattern};
pub use contract::stop::{before_exit, is_end_requested, take_signals};
pub use contract::summary::{NamedShare, Summary};
pub use contract::trigger::Trigger;
pub use name::progress::addresses_named;
pub use run::priority::Priority;
pub use run::record;
pub use run::running_program::{Recorded, RunningProgram};
pub use store::fuzz_entry;
pub use target::leftovers::{Removed, detach};
