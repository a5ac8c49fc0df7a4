//! Sampling profiler for Linux that attaches to running processes.
//!
//! The command `traceprof` is built from this library. Other programs may use [`trace`] to write
//! and read traces, and [`view`] to print them. No other module is a stable interface.
//!
//! # Overview
//! ```text
//!   target (any process)             shared memory, mapped in both    recorder
//!  +--------------------------+     +---------------------------+    +------------------------+
//!  | application threads      |     | control block: counters   |    | attach, restore        |
//!  |   ^ a sampling signal    |     | thread slots              |    | open perf events       |
//!  | agent image, a few kB,   |<--->| unwind tables, mappings   |<-->| rotate, drain, weigh   |
//!  |   no libc: handler       |     | three call-trace tables   |    | symbolize, infer calls |
//!  |   unwinds and stores     |     |   with sample logs        |    | write data and index   |
//!  +--------------------------+     +---------------------------+    +------------------------+
//! ```
//! The target does as little as possible: a signal handler (the crate `traceprof-agent`) unwinds
//! the stack, stores it and returns. The handler takes no lock, allocates nothing and calls no
//! libc function. The target's loader loads nothing. The recorder opens no descriptor and starts
//! no thread in the target.
//!
//! The recorder does everything else from outside, through shared memory. [`traceprof_abi`] defines
//! the layout of that memory. What a handler has published there survives the target's death.
//!
//! # Life of a sample
//! 1. A thread uses up its sampling period of CPU time, and the kernel sends the sampling signal to
//!    exactly that thread. Perf events measure the period (`record::source::perf`), or timers where
//!    the kernel refuses perf events (`record::source::timer`). A period that expires in kernel
//!    code sends no signal: the kernel writes that stack to a ring buffer, which the recorder reads
//!    (`record::source::kernel`).
//! 2. The handler unwinds the stack with tables that [`unwind`] compiled beforehand. It puts the
//!    call trace into the active call-trace table ([`traceprof_abi::storage`]).
//! 3. The recorder rotates the tables. `record::session::rotation` lists the stages that follow;
//!    each stage takes the type that the previous stage returns. `record::store` drains the table
//!    that was active before, and finds the thread of each sample.
//! 4. `record::name` finds the code and the context of each sample, as they were at its time.
//! 5. A sample's weight is the number of periods that it stands for. Its source sets the weight:
//!    the handler (`agent/src/sample.rs`), `record::source::kernel` or `record::source::wall`.
//!    `record::weigh` corrects the weights by the threads' CPU clocks, and credits CPU time that no
//!    sample covers.
//! 6. The writer thread (`record::write`) symbolizes each new address once (`record::name::frames`,
//!    [`symbol`]), from file descriptors that it keeps open. Samples wait for their symbols; the
//!    recorder does not. The writer then passes the batch to [`trace`], which infers calls from
//!    consecutive samples of a thread. [`trace`] writes frames of blocks. A reader can read each
//!    frame without the earlier ones, and can rebuild the index from the frames.
//! 7. [`view`] prints, lists or converts the contents of a trace.
//!
//! # Layers
//! Imports point downwards only; `tests/tidy` checks this. [`elf`] and [`unwind`] are crates of
//! their own: they are optimised in all builds, because attaching waits for them.
//!
//! | layer | modules | responsibility |
//! |---|---|---|
//! | 5 | [`cli`] | arguments, terminal, exit codes |
//! | 4 | [`inspect`] | one examination of a process or a host, without a recording |
//! | 3 | [`record`], [`view`] (not each other) | the course of a recording; pure views of a trace |
//! | 2 | [`inject`], [`unwind`], [`symbol`], [`runtime`], [`trace`] (not each other) | one mechanism each |
//! | 1 | [`elf`], [`proc`], [`quantity`], [`text`], [`fault`] | parsers; fault points for tests |
//! | 0 | [`traceprof_abi`] | what both processes share |
//!
//! # Where to start reading
//! - [`record::record`] runs a recording from attach to detach, and [`cli::run`] is the command
//!   around it. [`inspect::stacks`] reads the stacks of all threads once, without an agent.
//! - `record::run::plan` makes all decisions of a recording before the recording changes anything.
//!   `doctor` and `--dry-run` print these decisions.
//! - [`inject`] lists every change that the recorder makes in a target, and what reverts it.
//! - `traceprof-data(5)` specifies the files; [`trace::TraceWriter`] writes them.
//! - `build.rs` compiles the agent image, and [`inject::image`] lays it out for the target.
//!
//! # Invariants
//! - The trace format does not depend on ptrace, arguments or terminals. Injection does not depend
//!   on profiling: it maps an image and calls its entry.
//! - Options are passed down as values, and events are reported up through [`record::Observer`].
//!   Only [`cli`] prints.
//! - Shared memory is not trusted: the target may overwrite it. The recorder checks every length
//!   and offset that it reads from shared memory. The same holds for ELF files and for traces.
//! - A sample that is not stored increments a named counter, and the closing report shows the
//!   counters.
//! - The target is restored however a recording ends. A guardian process restores it if the
//!   recorder dies.
#![deny(unsafe_code)]

pub mod cli;
pub mod fault;
pub mod inject;
pub mod inspect;
pub mod proc;
pub mod quantity;
pub mod record;
pub mod runtime;
pub mod symbol;
#[cfg(test)]
mod test_turn;
pub mod text;
pub mod trace;
pub mod view;

pub use traceprof_elf as elf;
pub use traceprof_unwind as unwind;
