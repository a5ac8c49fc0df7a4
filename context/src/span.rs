//! A span that ends with its scope.

use std::marker::PhantomData;

use traceprof_abi::context::Values;

use crate::{clear, current, set, set_all};

/// Keeps a span set on the calling thread, and restores the previous span and tags when it is
/// dropped.
///
/// The guard stays on its thread. Drop guards in the reverse order of their creation.
#[derive(Debug)]
#[must_use = "the span ends when this is dropped"]
pub struct SpanGuard {
    previous: Option<Values>,
    /// Neither `Send` nor `Sync`: the context is this thread's.
    here: PhantomData<*const ()>,
}

/// Sets a span until the guard is dropped. The thread's tags stay until they are set.
///
/// ```
/// let outer = traceprof_context::span(2, 1);
/// {
///     let _inner = traceprof_context::span(3, 1);
///     assert_eq!(traceprof_context::current().unwrap().span, 3);
/// }
/// assert_eq!(traceprof_context::current().unwrap().span, 2);
/// drop(outer);
/// assert_eq!(traceprof_context::current(), None);
/// ```
///
/// The guard does not leave its thread:
///
/// ```compile_fail
/// let guard = traceprof_context::span(2, 1);
/// std::thread::spawn(move || drop(guard));
/// ```
pub fn span(span: u64, root_span: u64) -> SpanGuard {
    let previous = current();
    set(span, root_span);
    SpanGuard { previous, here: PhantomData }
}

impl Drop for SpanGuard {
    fn drop(&mut self) {
        match &self.previous {
            Some(values) => set_all(values),
            None => clear(),
        }
    }
}
