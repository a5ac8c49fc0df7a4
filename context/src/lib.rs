//! Publishes the span of each thread to a profiler.
//!
//! A tracer calls [`set`] when a thread starts to work on a span and [`clear`] when it stops, or
//! holds a [`SpanGuard`]. `traceprof` may attach at any time and reads the context from outside.
//! Each of its samples then carries the span, the root span and up to ten tags. Without a profiler,
//! an update is a few stores into the thread's own cache line.
//!
//! ```
//! use traceprof_context::{Tag, span};
//!
//! let tenant = Tag::number("tenant")?;
//! let route = Tag::text("route")?;
//! {
//!     let _request = span(0x00f0_67aa_0ba9_02b7, 0x00f0_67aa_0ba9_02b7);
//!     tenant.set(42);
//!     route.set_text("/checkout");
//!     {
//!         let _query = span(0x5fb3_97be_34d2_6b51, 0x00f0_67aa_0ba9_02b7);
//!         assert_eq!(traceprof_context::current().unwrap().span, 0x5fb3_97be_34d2_6b51);
//!     }
//!     let current = traceprof_context::current().unwrap();
//!     assert_eq!((current.span, current.tags[tenant.index()]), (0x00f0_67aa_0ba9_02b7, 42));
//! }
//! assert_eq!(traceprof_context::current(), None);
//! # Ok::<(), traceprof_context::TagRefused>(())
//! ```
//!
//! # Invariants
//! - No call waits, and no call allocates after a thread's first use.
//! - A context belongs to an operating system thread. A task that moves to another thread does not
//!   take its context along: set its span each time it is polled, and clear it afterwards.
//!
//! # Does not
//! - work in signal handlers: a handler that sets a span while its thread is setting one breaks the
//!   order of the stores, on which readers rely;
//! - create spans or send them anywhere.
#![deny(unsafe_op_in_unsafe_fn)]

mod span;
mod sys;
mod table;
mod tag;

pub use span::{SpanGuard, span};
pub use table::traceprof_context_table_v1;
pub use tag::{Tag, Text, text};
pub use traceprof_abi::context::{TAGS, TagRefused, Values};

use std::sync::atomic::Ordering;

/// Sets the span of the calling thread and the root span of its trace.
///
/// The tags stay as they are. The call takes a few nanoseconds.
///
/// ```
/// traceprof_context::set(0x1234, 0x1);
/// assert_eq!(traceprof_context::current().unwrap().root_span, 0x1);
/// traceprof_context::clear();
/// ```
#[inline]
pub fn set(span: u64, root_span: u64) {
    table::here().set(span, root_span);
}

/// Sets the span and all tags at once. The tags are in the order of [`Tag::index`], 0 for none.
#[inline]
pub fn set_all(values: &Values) {
    table::here().set_all(values);
}

/// Clears the span and the tags of the calling thread.
#[inline]
pub fn clear() {
    table::here().clear();
}

/// Returns the context of the calling thread, if it has one.
pub fn current() -> Option<Values> {
    let context = table::here();
    context.is_set().then(|| context.values())
}

/// Whether a profiler can read the context of the calling thread.
///
/// It cannot if there is no memory for the table, if the thread found the table full
/// ([`Statistics::threads_refused`]), or if the thread is exiting.
pub fn is_available() -> bool {
    table::is_seen()
}

/// Counts of contexts and texts that found no room since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Number of threads that got no entry in the table, which has about 16,000.
    pub threads_refused: u32,
    /// Number of dropped texts.
    pub texts_refused: u32,
    /// Size of the kept texts in bytes, at most 1 MiB.
    pub text_bytes: u32,
    /// Number of registered tags, at most ten.
    pub tags: u32,
}

/// Returns the counts so far. They are zero before the first use of the table. This call does not
/// use it.
///
/// ```
/// let statistics = traceprof_context::statistics();
/// assert_eq!(statistics.threads_refused, 0);
/// ```
pub fn statistics() -> Statistics {
    let Some(table) = table::published() else { return Statistics::default() };
    // Relaxed: counts.
    let load = |word: &std::sync::atomic::AtomicU32| word.load(Ordering::Relaxed);
    Statistics {
        threads_refused: load(&table.header.refused),
        texts_refused: load(&table.header.texts_refused),
        text_bytes: load(&table.header.text_words).saturating_mul(4),
        tags: load(&table.header.tags_used),
    }
}

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
