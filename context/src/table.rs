//! The table of this copy of the crate, and the calling thread's entry in it.
//!
//! # Invariants
//! - The table is created at the first use in the process and never unmapped.
//! - A thread's pointer is null until its first use. From then on it points to the thread's entry
//!   in the table or, if there is none, to a context of its own that nobody reads.
//! - A thread that exits releases its entry. What its other thread-locals set later goes nowhere.
//!
//! # Safety
//! A published table stays mapped, so references to its contexts are valid forever. The context
//! that nobody reads is a thread-local without a destructor, so it exists as long as its thread.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use traceprof_abi::context::{Context, ContextTable, TABLE_LEN, TAGS};

use crate::sys;

/// The address of the table, or 0, for a profiler that finds no mapping with the table's name.
#[unsafe(no_mangle)]
#[used]
#[allow(non_upper_case_globals, reason = "the name that profilers search for")]
pub static traceprof_context_table_v1: AtomicU64 = AtomicU64::new(0);

static TABLE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static KNOWS_CHILDREN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The address of the thread's context. Its type has no destructor and its initial value is
    /// constant. So it is accessed without an initialization check, also while the thread exits.
    static CONTEXT: Cell<*const Context> = const { Cell::new(ptr::null()) };
    /// The context that a thread without an entry writes.
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

/// Releases the thread's entry when the thread exits.
struct Entry;

impl Drop for Entry {
    fn drop(&mut self) {
        // This comes first: later updates must not go into an entry that another thread may have.
        UNREAD.with(|unread| CONTEXT.set(unread));
        if let Some(table) = published() {
            table.release(sys::thread_id());
        }
    }
}

/// Returns the calling thread's context.
#[inline]
pub(crate) fn here() -> &'static Context {
    let context = CONTEXT.get();
    let context = if context.is_null() { register() } else { context };
    // SAFETY: the context is in a table, which stays mapped, or it is the thread's own `UNREAD`.
    // That one lives as long as the thread. The callers are in this crate and keep no reference
    // beyond a call.
    unsafe { &*context }
}

/// Whether a profiler can read the context of the calling thread.
pub(crate) fn is_seen() -> bool {
    !UNREAD.with(|unread| ptr::eq(here(), unread))
}

/// Returns the table and creates it if necessary. `None` if there is no memory for it.
pub(crate) fn table() -> Option<ContextTable<'static>> {
    published().or_else(make)
}

/// Returns the table, if it exists.
pub(crate) fn published() -> Option<ContextTable<'static>> {
    // Acquire: pairs with the swap in `make`; the table's zeros are visible, and threads need
    // nothing else.
    let base = TABLE.load(Ordering::Acquire);
    // SAFETY: the mapping has that length, is page aligned and writable, and is never unmapped.
    // Only writers of this layout know its address.
    (!base.is_null()).then(|| unsafe { ContextTable::new(base) })
}

/// Gives the thread its entry, at its first use and in a child of `fork`.
#[cold]
#[inline(never)]
fn register() -> *const Context {
    // A thread whose thread-locals are destroyed would never release an entry.
    let releases_entry = ENTRY.try_with(|_| ()).is_ok();
    let claim = || table()?.claim(sys::thread_id());
    let entry = if releases_entry { sys::keeping_errno(claim) } else { None };
    let context = entry.map_or_else(|| UNREAD.with(ptr::from_ref), ptr::from_ref);
    CONTEXT.set(context);
    context
}

fn make() -> Option<ContextTable<'static>> {
    let base = sys::map(c"traceprof_context_v1", TABLE_LEN as usize);
    if base.is_null() {
        return None;
    }
    // Relaxed: only the first swap matters.
    if !KNOWS_CHILDREN.swap(true, Ordering::Relaxed) {
        sys::in_each_child(adopt);
    }
    // Release: pairs with the Acquire in `published`; the zeros are visible. Relaxed on failure:
    // `published` loads it again.
    match TABLE.compare_exchange(ptr::null_mut(), base, Ordering::Release, Ordering::Relaxed) {
        Ok(_) => {
            let table = published()?;
            // This comes last: from now on a profiler takes it for a table, and it must never be
            // unmapped.
            table.initialise(std::process::id());
            // Release: for a profiler, which reads it from outside.
            traceprof_context_table_v1.store(base as u64, Ordering::Release);
        }
        // SAFETY: another thread's table was faster. This one has no header, so no profiler has
        // read it.
        Err(_) => unsafe { sys::unmap(base, TABLE_LEN as usize) },
    }
    published()
}

/// Adopts the table in a child of `fork`. The child's only thread has another id than in the
/// parent.
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
