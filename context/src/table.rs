//! The table of this copy of the crate, and the calling thread's entry in it.
//!
//! # Invariants
//! - The table is made at the first use in the process and never given back.
//! - A thread's pointer is null until its first use. From then on it leads to its entry of the
//!   table or, if there is none, to a context of its own that is never read.
//! - A thread that ends gives its entry back; what its other thread-locals set later goes nowhere.
//!
//! # Safety
//! A table that is published stays mapped, so references to its contexts are good for ever. The
//! context that is never read is a thread-local without a destructor: it is there as long as its
//! thread.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use traceprof_abi::context::{Context, ContextTable, TABLE_LEN, TAGS};

use crate::sys;

/// The address of the table, or 0: for a profiler that finds no mapping with the table's name.
#[unsafe(no_mangle)]
#[used]
#[allow(non_upper_case_globals, reason = "the name that profilers look for")]
pub static traceprof_context_table_v1: AtomicU64 = AtomicU64::new(0);

static TABLE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static KNOWS_CHILDREN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Where the thread's context is. Of no type with a destructor, and of a constant value: it is
    /// reached without a look whether it is there, also while the thread ends.
    static CONTEXT: Cell<*const Context> = const { Cell::new(ptr::null()) };
    /// What a thread without an entry writes.
    static UNREAD: Context = const {
        Context {
            span: AtomicU64::new(0),
            root_span: AtomicU64::new(0),
            checksum: AtomicU64::new(0),
            tags: [const { AtomicU32::new(0) }; TAGS],
        }
    };
    static ENTRY: Entry = const { Entry };
}

/// Gives the thread's entry back when the thread ends.
struct Entry;

impl Drop for Entry {
    fn drop(&mut self) {
        // First: what is set from here on must not go into an entry that another thread may have.
        UNREAD.with(|unread| CONTEXT.set(unread));
        if let Some(table) = published() {
            table.release(sys::thread_id());
        }
    }
}

/// The calling thread's context.
#[inline]
pub(crate) fn here() -> &'static Context {
    let context = CONTEXT.get();
    let context = if context.is_null() { register() } else { context };
    // SAFETY: in a table, which stays, or the thread's own `UNREAD`. That one lives as long as the
    // thread, and the callers, which are in this crate, keep no reference beyond a call.
    unsafe { &*context }
}

/// Whether a profiler can read the context of the calling thread.
pub(crate) fn is_seen() -> bool {
    !UNREAD.with(|unread| ptr::eq(here(), unread))
}

/// The table, created if necessary. `None` if there is no memory for it.
pub(crate) fn table() -> Option<ContextTable<'static>> {
    published().or_else(make)
}

/// The table, if it is there.
pub(crate) fn published() -> Option<ContextTable<'static>> {
    // Acquire: pairs with the swap in `make`; what threads need of the table is there: zeros.
    let base = TABLE.load(Ordering::Acquire);
    // SAFETY: of that length, aligned as all mappings, writable, and never given back. Only writers
    // of this layout know of it.
    (!base.is_null()).then(|| unsafe { ContextTable::new(base) })
}

/// Gives the thread its entry, at its first use and in a child of `fork`.
#[cold]
#[inline(never)]
fn register() -> *const Context {
    // A thread whose thread-locals are gone would never give an entry back.
    let gives_back = ENTRY.try_with(|_| ()).is_ok();
    let claim = || table()?.claim(sys::thread_id());
    let entry = if gives_back { sys::keeping_errno(claim) } else { None };
    let context = entry.map_or_else(|| UNREAD.with(ptr::from_ref), ptr::from_ref);
    CONTEXT.set(context);
    context
}

fn make() -> Option<ContextTable<'static>> {
    let base = sys::map(c"traceprof_context_v1", TABLE_LEN as usize);
    if base.is_null() {
        return None;
    }
    // Relaxed: only who is first counts.
    if !KNOWS_CHILDREN.swap(true, Ordering::Relaxed) {
        sys::in_each_child(adopt);
    }
    // Release: pairs with the Acquire in `published`; the zeros are visible. Relaxed on failure: it
    // is loaded again.
    match TABLE.compare_exchange(ptr::null_mut(), base, Ordering::Release, Ordering::Relaxed) {
        Ok(_) => {
            let table = published()?;
            // Only now: a profiler takes it for a table from here on, and it must never be unmapped
            // again.
            table.initialise(std::process::id());
            // Release: for a profiler, which reads it from outside.
            traceprof_context_table_v1.store(base as u64, Ordering::Release);
        }
        // SAFETY: another thread's table was faster; this one has no head, so no profiler has
        // looked at it.
        Err(_) => unsafe { sys::unmap(base, TABLE_LEN as usize) },
    }
    published()
}

/// In a child of `fork`, whose only thread is another one than that of the parent.
extern "C" fn adopt() {
    if let Some(table) = published() {
        table.adopt(std::process::id());
    }
    if !ptr::eq(CONTEXT.get(), UNREAD.with(ptr::from_ref)) {
        CONTEXT.set(ptr::null());
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use traceprof_abi::context::{TABLE_MAPPING, TABLE_SYMBOL};

    use super::*;

    #[test]
    fn the_names_are_those_that_profilers_look_for() {
        let name: &CStr = c"traceprof_context_v1";
        assert_eq!(name.to_str(), Ok(TABLE_MAPPING));
        assert_eq!(stringify!(traceprof_context_table_v1), TABLE_SYMBOL);
    }

    #[test]
    fn a_thread_that_cannot_be_seen_writes_where_nobody_reads() {
        CONTEXT.set(UNREAD.with(ptr::from_ref));
        here().set(1, 2);
        assert!(!is_seen());
        assert_eq!(UNREAD.with(|unread| unread.values().span), 1);
    }
}
