//! Attach sampling profiler for Linux.
//!
//! This library is what the command `traceprof` is made of. Its modules may be used by others to
//! write and read traces ([`trace`]) and to print them ([`view`]); nothing else here is a promise.
//!
//! # Bird's eye view
//! ```text
//!   target (any process)             shared memory, mapped in both    recorder
//!  +--------------------------+     +---------------------------+    +------------------------+
//!  | application threads      |     | control block: counters   |    | attach, restore        |
//!  |   ^ a sampling signal    |     | thread slots              |    | open perf events       |
//!  | agent image, a few kB,   |<--->| unwind tables, mappings   |<-->| rotate, drain, weigh   |
//!  |   no libc: handler       |     | three call-trace tables   |    | name, infer calls      |
//!  |   unwind, put, append    |     |   with sample logs        |    | write data and index   |
//!  +--------------------------+     +---------------------------+    +------------------------+
//! ```
//! The target does the least possible: a signal handler that unwinds, stores and returns (the crate
//! `traceprof-agent`). It never locks, allocates or calls a libc; nothing is loaded by the target's
//! loader, no descriptor is opened and no thread started in it. Everything that can be done outside
//! is done outside, over shared memory whose layout is in [`traceprof_abi`]; what a handler has
//! published there survives the target's death.
//!
//! # A sample's life
//! 1. A thread uses up its period of CPU time. The kernel signals exactly that thread
//!    (`record::source::perf`, or `timer` where events are refused). In the kernel an expiry sends
//!    no signal: its stack comes through a ring buffer that the recorder reads
//!    (`record::source::kernel`).
//! 2. The handler, in the crate `traceprof-agent`, unwinds with tables that [`unwind`] compiled
//!    before. It puts the stack into the active call-trace table ([`traceprof_abi::storage`]).
//! 3. The recorder rotates the tables: `record::session::rotation` lists the stages that follow,
//!    each of which takes the type that the one before it returns. `record::store` drains the table
//!    that went out of use and finds each sample's thread.
//! 4. `record::name` finds the code and the context of each sample at its time.
//! 5. `record::weigh` decides how much CPU time each sample stands for.
//! 6. The writer thread (`record::write`) has each new address named once (`record::name::frames`,
//!    [`symbol`]), from file descriptors that it kept. Samples wait for that, the recorder does
//!    not. Then it hands the batch to [`trace`], which infers calls from consecutive samples of a
//!    thread. It writes frames of blocks, each readable without those before it, and an index that
//!    can be made anew from them.
//! 7. [`view`] prints, lists or converts what a trace holds.
//!
//! # Floors
//! Imports point downwards only; `tests/tidy` checks it.
//!
//! | floor | modules | knows |
//! |---|---|---|
//! | 5 | [`cli`] | arguments, terminal, exit codes |
//! | 4 | [`inspect`] | one look at a process or a host, without a recording |
//! | 3 | [`record`], [`view`] (not each other) | the story of a recording; pure views of a trace |
//! | 2 | [`inject`], [`unwind`], [`symbol`], [`trace`] (not each other) | one mechanism each |
//! | 1 | [`elf`], [`proc`], [`quantity`], [`fault`] | parsers; where tests have somebody die |
//! | 0 | [`traceprof_abi`] | what both processes share |
//!
//! # Where to start reading
//! - [`record::record`] is a recording from attach to detach, [`cli::run`] the command around it;
//!   [`inspect::stacks`] reads the stacks of all threads once, without an agent.
//! - `record::run::plan` is what a recording decides before it changes anything; `doctor` and
//!   `--dry-run` show it.
//! - [`inject`] lists every change that is made in a target, and how it comes back.
//! - `traceprof-data(5)` specifies the files; [`trace::TraceWriter`] writes them.
//! - `build.rs` compiles the agent image, which [`inject::image`] lays out for the target.
//!
//! # Invariants
//! - The trace format knows nothing of ptrace, arguments or terminals; injection knows nothing of
//!   profiling: it maps an image and calls its entry.
//! - Options go down as values, events come up through [`record::Observer`]; only [`cli`] prints.
//! - Shared memory is not trusted: the target may scribble over it, and every length and offset
//!   that is read from it is checked. The same holds for ELF files and for traces.
//! - A sample that is not stored adds to a named counter, which the closing report shows.
//! - Whatever ends a recording, the target is put back as it was; a guardian process does it if the
//!   recorder dies.
#![deny(unsafe_code)]

pub mod cli;
pub mod elf;
pub mod fault;
pub mod inject;
pub mod inspect;
pub mod proc;
pub mod quantity;
pub mod record;
pub mod symbol;
pub mod trace;
pub mod unwind;
pub mod view;
