//! Tells a profiler which span each thread works on.
//!
//! A tracer calls [`set`] when a thread takes up a span and [`clear`] when it lets go of it, or holds a
//! [`SpanGuard`]. `traceprof`, should it be attached, now or later, reads it from outside: each of its samples
//! then carries the span, the root span and up to ten tags. Where no profiler is attached, all of this is
//! a few stores into the thread's own cache line.
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
//!     assert_eq!((current.span, current.tags[tenant.place()]), (0x00f0_67aa_0ba9_02b7, 42));
//! }
//! assert_eq!(traceprof_context::current(), None);
//! # Ok::<(), traceprof_context::TagRefused>(())
//! ```
//!
//! # Invariants
//! - Nothing waits, and nothing is allocated after a thread's first use.
//! - A context belongs to an operating system thread. A task that moves to another thread takes nothing with
//!   it: set its span each time that it is polled, and clear it after.
//!
//! # Does not
//! - work in signal handlers: a handler that sets a span while its thread sets one breaks the order that
//!   keeps the two apart;
//! - make spans, or send them anywhere.
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

/// Tells that the calling thread works on this span, whose trace has this root, from now on. The tags stay as
/// they are. Takes some nanoseconds.
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

/// As [`set`], with all tags at once: by place ([`Tag::place`]), 0 for none.
#[inline]
pub fn set_all(values: &Values) {
    table::here().set_all(values);
}

/// Tells that the calling thread works on no span, and has no tags.
#[inline]
pub fn clear() {
    table::here().clear();
}

/// What the calling thread has set, if anything.
pub fn current() -> Option<Values> {
    let context = table::here();
    context.is_set().then(|| context.values())
}

/// Whether a profiler can see what the calling thread sets. Not so without memory for the table, for threads
/// that found it full ([`Statistics::threads_refused`]), and for threads that are ending.
pub fn is_available() -> bool {
    table::is_seen()
}

/// What there was no room for, since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Threads whose contexts nobody sees, as about 16,000 have one.
    pub threads_refused: u32,
    /// Texts that have become no text.
    pub texts_refused: u32,
    /// Bytes that the texts take, of 1 MiB.
    pub text_bytes: u32,
    /// Tags that have a name, of ten.
    pub tags: u32,
}

/// What there was no room for, until now. All zeros before the first use, which this is not.
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

/// The examples of the text for applications.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
