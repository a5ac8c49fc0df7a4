//! Injection: maps the agent into a running process, starts it, and later restores the process.
//!
//! # What an injection changes in a target, and what reverts it
//! | change | what reverts it |
//! |---|---|
//! | one thread is stopped, twice, for about a tenth of a millisecond | the detach, at once |
//! | its registers, vector state and signal mask | the last frame of its chain holds them |
//! | bytes below the red zone of its stack, if that part is free | nothing: no code reads them |
//! | an interrupted system call | it is issued again, or restarted from its restart block |
//! | three shared memory segments | the restore detaches them; the last user's detach frees them |
//! | the actions of one or two signals | the restore installs the saved actions, bit for bit |
//! | CPU timers of threads | the restore deletes them, or their own signals do without a recorder |
//! | the restore stops every thread once | the detach; broken system calls are issued again |
//! | the restore stops a child of `vfork`, and restores its actions | the detach, at once |
//!
//! The injection changes no code, sets no breakpoint, single-steps no instruction and opens no
//! descriptor. The target's loader loads nothing, and the target runs no new code but the agent.
//! The tracer may die at any instant: a launched thread finishes its chain by itself. The one
//! exception is a system call of some microseconds ([`AttachReport::bare_call`]). It is needed
//! where a thread's stack must not be written, as in Go and in fibers.
//!
//! # Files, from top to bottom
//! | file | what it does |
//! |---|---|
//! | `guardian` | the process that traces, and the fork server that forks it |
//! | `attach`, `restore` | the start and the end of an injection |
//! | `agent_entry` | one run of the agent's entry by a thread of the target |
//! | `capture` | copies registers and stacks, without an agent |
//! | `seccomp` | checks whether a target's filters permit the required calls |
//! | `worker` | chooses the thread of the target that does the work |
//! | `stop` | a stopped thread, and the three ways to make it run something |
//! | `target`, `preflight` | check that a process is the intended one, and may be attached to |
//! | `sigreturn_chain`, `syscall` | what a thread of the target runs for the guardian |
//! | `ptrace`, `arch` | the only users of `ptrace` and of processor-specific facts |
//! | `plan`, `report`, `refusal`, `error` | plain values |
//!
//! [`preflight()`] checks a process, [`find_gap`] finds a free address range, and
//! [`Guardian::start`] forks the tracing process. [`Guardian::attach`], [`Guardian::run_entry`] and
//! [`Guardian::detach`] do the work in that process. A [`ForkServer`] forks guardians for a
//! recorder that already has threads.
//!
//! # Does not
//! - create the agent's segments, know the agent's symbols, or open perf events.

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
mod yama;

#[cfg(test)]
mod tests;

pub(crate) use abandoned_segments::create as create_segment;
pub use address_gap::find_gap;
pub use capture::sleeping::{SleepingThread, copy_stack, read_sleeping_thread};
pub use capture::{
    Capture, CaptureSelection, Captures, NotCaptured, StoppedThread, ThreadSnapshot, ThreadView,
    capture, capture_threads,
};
pub use error::InjectError;
pub use guardian::Guardian;
pub use guardian::fork_server::ForkServer;
pub use plan::{Access, AttachPlan, SharedSegment};
pub use preflight::{
    CheckResult, ProcessFacts, examine, preflight, preflight_to_capture, read_facts,
};
pub use ptrace::read_part;
pub use refusal::Refusal;
pub use report::{AttachReport, DetachReport, EntryReport};
pub use seccomp::{Permits, SeccompReport};
pub use worker::choice::first_choice;
pub use yama::yama_scope;
