//! Injection: maps the agent into a running process, starts it, and cures the process again.
//!
//! # What is changed in a target, and how it comes back
//! | change | how it comes back |
//! |---|---|
//! | one thread is stopped, twice, for about a tenth of a millisecond | it is detached at once |
//! | its registers, vector state and signal mask | the last frame of its chain holds them |
//! | bytes below the red zone of its stack, where that is free | nobody reads them |
//! | an interrupted system call | issued again, or restarted from its restart block |
//! | three shared memory segments | detached by the cure; freed with their last user |
//! | the actions of one or two signals | the saved ones, bit by bit, by the cure |
//! | CPU timers of threads | deleted by the cure, or by their own hits when nobody is left |
//! | at the cure every thread is stopped once | detached; broken system calls issued again |
//! | at the cure a child of `vfork` in the same memory is stopped, and its copies of our actions are replaced | detached at once |
//!
//! No text is poked, no breakpoint set, no instruction stepped, no descriptor opened, nothing is
//! loaded by the target's loader and nothing in it is called but the agent. The tracer may die at
//! any instant: a thread that was set going on a chain comes home by itself. The exception is one
//! system call of some microseconds ([`AttachReport::naked`]) where a thread's stack may not be
//! written: of Go and of fibers, mainly.
//!
//! # Story
//! [`preflight()`] looks, [`find_hole`] finds room, [`Guardian::start`] forks the process that
//! traces, [`Guardian::attach`], [`Guardian::enter`] and [`Guardian::detach`] do the work in it.
//! A [`Nursery`] forks guardians for a recorder that has threads already.
//! Inside: `attach`, `enter` and `cure` tell the stories; `threads` chooses whom to stop, `worker`
//! uses it, `stop` holds a thread and lets it run a `chain`, `sweep` stops all of them and `beside` holds
//! those that have nothing to do (also those that no stop reaches) while `actions` puts signals back, `inside` tells where nothing may be unmapped,
//! `gadget` finds the instructions for it, `ptrace` and `arch` are the two doors to the kernel and the
//! processor.
//!
//! [`capture()`] is another story, without an agent: every thread is stopped for a moment, and its
//! registers and its stack are copied. [`capture_threads`] does so with some of them, and [`glimpse()`]
//! copies the stack of one that sleeps without stopping it.
//!
//! # Does not
//! - create segments, know the agent's image, or open perf events.

mod actions;
mod apart;
mod arch;
mod attach;
mod beside;
mod calls;
mod capture;
mod chain;
mod claim;
mod cure;
mod enter;
mod error;
mod filter;
mod gadget;
mod glimpse;
mod guardian;
mod hearing;
mod held;
mod hole;
mod identity;
pub mod image;
mod inside;
mod jail;
mod message;
mod nursery;
mod place;
mod plan;
mod preflight;
mod ptrace;
mod refusal;
mod residue;
mod segment;
mod stop;
mod sweep;
mod threads;
mod trial;
mod worker;

#[cfg(test)]
mod tests;

pub use beside::shares_memory;
pub use capture::{Capture, Captures, Chosen, Missed, Portrait, capture, capture_threads};
pub use error::InjectError;
pub use glimpse::{Glimpse, copy_stack, glimpse};
pub use guardian::Guardian;
pub use hole::find_hole;
pub use jail::{Judgement, Permits};
pub use nursery::Nursery;
pub use plan::{Access, AttachPlan, AttachReport, DetachReport, Entered, Segment};
pub use preflight::{Checked, Facts, examine, look, preflight, preflight_to_look, yama_scope};
pub use ptrace::read_part;
pub use refusal::Refusal;
pub use threads::first_choice;
