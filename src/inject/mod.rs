//! Injection: maps the agent into a running process, starts it, and restores the process
//! afterwards.
//!
//! # What is changed in a target, and how it comes back
//! | change | how it comes back |
//! |---|---|
//! | one thread is stopped, twice, for about a tenth of a millisecond | it is detached at once |
//! | its registers, vector state and signal mask | the last frame of its chain holds them |
//! | bytes below the red zone of its stack, if that is free | nothing reads them |
//! | an interrupted system call | issued again, or restarted from its restart block |
//! | three shared memory segments | detached by the restore; freed with their last user |
//! | the actions of one or two signals | the saved ones, bit by bit, by the restore |
//! | CPU timers of threads | deleted by the restore, or by their own signals without a recorder |
//! | the restore stops every thread once | detached; broken system calls issued again |
//! | the restore stops a child of `vfork`, and puts its actions back | detached at once |
//!
//! The injection changes no text, sets no breakpoint, steps no instruction and opens no descriptor.
//! The target's loader loads nothing, and nothing but the agent is called in the target. The tracer
//! may die at any instant: a launched thread finishes its chain by itself. The exception is one
//! system call of some microseconds ([`AttachReport::bare_call`]), where a thread's stack may not
//! be written, as in Go and in fibers.
//!
//! # Files, from top to bottom
//! | file | what it does |
//! |---|---|
//! | `guardian` | the process that traces, and the fork server that forks it |
//! | `attach`, `restore` | the two halves of an injection |
//! | `agent_entry` | one run of the agent's entry in between |
//! | `capture` | copies of registers and stacks, without an agent |
//! | `seccomp` | whether a target's filters permit the calls |
//! | `worker` | which thread of the target is used, and for what |
//! | `stop` | a stopped thread, and the three ways to let it run something |
//! | `target`, `preflight` | that a process is the one that was meant, and may be attached to |
//! | `sigreturn_chain`, `syscall` | what a thread is made to run |
//! | `ptrace`, `arch` | the only doors to the kernel's tracing and to the processor |
//! | `plan`, `report`, `refusal`, `error` | plain values |
//!
//! [`preflight()`] checks, [`find_gap`] finds room, [`Guardian::start`] forks the tracing process;
//! [`Guardian::attach`], [`Guardian::run_entry`] and [`Guardian::detach`] do the work in it. A
//! [`ForkServer`] forks guardians for a recorder that has threads already.
//!
//! # Does not
//! - create segments, know the agent's symbols, or open perf events.

mod abandoned_segments;
mod address_gap;
mod agent_entry;
mod arch;
mod attach;
mod capture;
mod data_segment;
mod error;
mod guardian;
pub mod image;
mod plan;
mod preflight;
mod ptrace;
mod refusal;
mod report;
mod restore;
mod seccomp;
mod sigreturn_chain;
mod stop;
mod syscall;
mod target;
mod worker;

#[cfg(test)]
mod tests;

pub use address_gap::find_gap;
pub use capture::sleeping::{SleepingThread, copy_stack, read_sleeping_thread};
pub use capture::{
    Capture, CaptureSelection, Captures, NotCaptured, ThreadSnapshot, capture, capture_threads,
};
pub use error::InjectError;
pub use guardian::Guardian;
pub use guardian::fork_server::ForkServer;
pub use plan::{Access, AttachPlan, SharedSegment};
pub use preflight::{
    Checked, Facts, examine, preflight, preflight_to_capture, read_facts, yama_scope,
};
pub use ptrace::read_part;
pub use refusal::Refusal;
pub use report::{AttachReport, DetachReport, EntryReport};
pub use seccomp::{Permits, SeccompReport};
pub use worker::choice::first_choice;
