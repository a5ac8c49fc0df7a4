//! The trace on disk: a data file and an index file.
//!
//! For each thread, a trace holds a forest of method calls, which was inferred from consecutive
//! samples, with the samples as its leaves. It also holds the thread-neutral objects that these
//! refer to. The data file alone suffices to read a trace. `traceprof-data(5)` is the
//! specification.
//!
//! There are two ways to write a trace ([`WriteMode`]: as samples come, or all at the end) and two
//! to read one: [`load`](fn@load) loads a complete trace into memory, from any input; [`LazyTrace`]
//! reads parts on request, from files of any size, even while they are written.
//! [`verify`](fn@verify), [`recover`](fn@recover) and [`reindex`] are for damaged traces.
//!
//! ```
//! use traceprof::trace::{self, Location, Method, Sample, Thread, TraceWriter, WriterOptions};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let path = dir.path().join("out.trace");
//! let mut writer = TraceWriter::create(&path, WriterOptions::default())?;
//! let main = writer.method(&Method { start_svma: 0x10, ..Method::named("main") })?;
//! let location = Location { line: 3, ..Location::at(main, 0x14) };
//! let location = writer.location(&location)?;
//! let thread = Thread { pid: 7, tid: 7, name: "demo".into(), ..Thread::default() };
//! let thread = writer.thread(&thread)?;
//! writer.sample(thread, &Sample { time_ns: 1_000, ..Sample::default() }, &[location])?;
//! writer.finish()?;
//!
//! let trace = trace::load(&path)?;
//! assert!(trace.closed);
//! let mut stacks = Vec::new();
//! trace.threads[0].for_each_sample(&mut |_, stack| stacks.push(stack.to_vec()));
//! assert_eq!(stacks, [[location]]);
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! - Every prefix of a data file is readable: written data never changes, and nothing essential is
//!   only at the end.
//! - An object is written after all objects that it refers to.
//! - The data of a frame is durable before its index cells are written. Without durability, it is
//!   written before them.
//! - A reader checks every length, count, depth and id before it allocates or follows it, and never
//!   recurses on input.
//!
//! # Does not
//! know targets, symbols or terminals; escape names (the code that prints them does).

mod addition;
mod budget;
mod bytes;
mod call_traces;
mod checkpoint;
mod codec;
mod columns;
mod dump;
mod error;
mod failure;
mod file;
mod forest;
mod frame;
mod frame_kind;
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzz_entry;
mod gap;
mod index;
mod infer;
mod intern;
mod join_parts;
mod kind;
mod lazy;
mod load;
mod loss;
pub mod memory;
mod merge;
mod metadata;
pub mod meter;
mod model;
mod notice;
mod object;
mod options;
mod output;
mod pack;
mod process_title;
mod recent;
mod recover;
mod resolve;
mod run_state;
mod sample;
mod scan;
mod scanned;
mod schedule;
mod series;
mod sink;
mod stacks;
mod state;
mod stream;
mod survey;
mod tags;
#[cfg(test)]
pub(crate) mod tests;
mod thread;
mod verify;
mod walk;
mod window;
mod writer;

pub use budget::LoadLimits;
pub use call_traces::CallTraces;
pub use dump::{FieldValue, Object, dump_objects};
pub use error::TraceError;
pub use file::{directory_of, is_being_written};
pub use frame_kind::{FrameKind, Language};
pub use index::{IndexCell, Reindexed, Unsorted, dump_index, index_path, reindex};
pub use join_parts::{excerpt, join};
pub use kind::Kind;
pub use lazy::{LazyCall, LazyNode, LazyTrace, Objects, Relabel, ThreadSummary, Window};
pub use load::{LoadedTrace, load, load_from, load_within};
pub use loss::{BadRange, Loss};
pub use model::*;
pub use options::{Compression, Durability, WriteMode, WriterOptions};
pub use process_title::process_title;
pub use recover::{Recovered, recover};
pub use run_state::RunState;
pub use series::{RingPlan, RotateAfter, SavedTrace, Saves, SeriesPlan, TraceSeries};
pub use tags::{TASK_TAG, TagKey, TagKind, VIRTUAL_THREAD_TAG};
pub use thread::{Call, Node, ThreadTrace};
pub use verify::{FileState, IndexState, Verification, verify};
pub use writer::{TraceWriter, Written};

/// The first eight bytes of a data file.
const DATA_MAGIC: u64 = u64::from_be_bytes(*b"\x89TPDATA\n");
/// Whether a file that begins with these bytes is a trace's data file.
pub fn is_data_start(bytes: &[u8; 8]) -> bool {
    u64::from_be_bytes(*bytes) == DATA_MAGIC
}

/// The first and last eight bytes of an index file.
const INDEX_MAGIC: u64 = u64::from_be_bytes(*b"\x89TPINDX\n");
/// The first eight bytes of a frame.
const FRAME_MAGIC: u64 = u64::from_be_bytes(*b"\xd7FRAME\x1a\n");
/// The major version: readers refuse a newer one.
const VERSION_MAJOR: u32 = 1;
/// The minor version: readers accept any, since they can skip its additions.
const VERSION_MINOR: u32 = 1;
/// The size of the header of either file in bytes.
const HEADER_BYTES: usize = 16;

/// The id that refers to nothing.
const NONE: u32 = u32::MAX;
/// The thread id of blocks with only thread-neutral objects.
const NO_THREAD: u32 = u32::MAX;
/// The prefix of the metadata keys that name the source of a module's function names; the module id
/// follows.
pub const SYMBOLS: &str = "symbols.";
/// The bit in a block's thread id that marks a thread's side stream.
const SIDE: u32 = 1 << 31;
/// Metadata key of the time when the first of the recorded processes started, in nanoseconds of
/// CLOCK_REALTIME.
pub const FIRST_PROCESS_START: &str = "first_process_start_realtime_ns";
/// The metadata key of the trace's UUID.
const TRACE_UUID: &str = "trace_uuid";
/// The metadata key of the reason why a trace ends early.
pub const WRITE_ERROR: &str = "write_error";
/// The metadata key that announces locations of [`FrameKind::Interpreter`].
const INTERPRETERS: &str = "interpreter_frames";
/// The prefix of the metadata keys of languages whose samples tell which threads held the lock of
/// the language's runtime; the language in lower case follows.
pub const LOCK_HOLDERS: &str = "lock_holders.";
/// The metadata key of the number of samples that could not be written.
pub const NOT_WRITTEN: &str = "lost.not_written";
/// The name of the method that is the root of stacks with unknown outer frames.
const TRUNCATED: &str = "[truncated]";
/// The name of objects that are lost with a part of the file.
const LOST: &str = "[lost]";

/// The longest text in bytes of modified UTF-8.
const MAX_TEXT_BYTES: usize = 1 << 20;
/// The largest decoded frame in bytes: a position has 24 bits for the offset in it.
const MAX_FRAME_BYTES: usize = 1 << 24;
/// The most calls that are open at a time.
const MAX_DEPTH: usize = 1 << 16;

/// Returns the 16 bytes at the start of a file.
fn file_header(magic: u64) -> [u8; HEADER_BYTES] {
    let version = u64::from(VERSION_MAJOR) << 32 | u64::from(VERSION_MINOR);
    (u128::from(magic) << 64 | u128::from(version)).to_be_bytes()
}

/// Checks the 16 bytes at the start of a file.
fn check_header(header: &[u8], magic: u64, path: &std::path::Path) -> Result<(), TraceError> {
    let not_a_trace = || TraceError::NotATrace { path: path.to_owned() };
    let header: [u8; HEADER_BYTES] = header.try_into().map_err(|_| not_a_trace())?;
    let header = u128::from_be_bytes(header);
    let major = (header as u64 >> 32) as u32;
    if (header >> 64) as u64 != magic || major == 0 {
        return Err(not_a_trace());
    }
    if major > VERSION_MAJOR {
        return Err(TraceError::NewerVersion { path: path.to_owned(), major });
    }
    Ok(())
}
