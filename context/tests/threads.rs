//! Tests of threads that start and exit, of reused entries, and of children of `fork`.
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{find, own_tables, tables, tid};
use traceprof_abi::context::{Reading, Values};
use traceprof_context::{Tag, clear, current, is_available, set, set_all, span, text};

fn values(span: u64) -> Values {
    Values { span, root_span: span + 1, tags: std::array::from_fn(|at| span as u32 + at as u32) }
}

#[test]
fn threads_that_start_exit_and_are_reused_do_not_inherit_contexts() {
    let mut seen = HashSet::new();
    // The entries are reused again and again. Whether thread ids are reused is up to the kernel.
    for turn in 0..300_u64 {
        let tid = thread::spawn(move || {
            assert_eq!(current(), None, "the entry was not clear");
            set_all(&values(turn + 1));
            assert_eq!(find(tid()).unwrap().read(), Reading::Set(values(turn + 1)));
            tid()
        })
        .join()
        .unwrap();
        assert!(find(tid).is_none(), "an exited thread kept its entry");
        seen.insert(tid);
    }
    let used = |table: &traceprof_abi::context::ContextTable<'_>| {
        table.tids.iter().filter(|tid| seen.contains(&tid.load(Ordering::Relaxed))).count()
    };
    assert_eq!(own_tables().iter().map(used).sum::<usize>(), 0);
}

#[test]
fn an_abandoned_entry_is_clear_for_the_next_thread_with_its_id() {
    let table = || own_tables()[0];
    set(1, 1);
    thread::spawn(move || {
        // The entry is as a killed thread with this id would leave it.
        table().claim(tid()).unwrap().set_all(&values(5));
        assert_eq!(current(), None);
    })
    .join()
    .unwrap();
    clear();
}

static WAS_LATE: AtomicBool = AtomicBool::new(false);

struct Late(Option<u64>);

impl Drop for Late {
    fn drop(&mut self) {
        // This runs before or after the thread has released its entry. Both must be harmless.
        if let Some(id) = self.0 {
            set(id, id);
            drop(span(id + 1, id));
            let own = tid();
            if find(own).is_none() {
                assert!(!is_available());
                WAS_LATE.store(true, Ordering::Relaxed);
            }
        }
    }
}

thread_local! {
    static EARLY: std::cell::RefCell<Late> = const { std::cell::RefCell::new(Late(None)) };
    static LAST: std::cell::RefCell<Late> = const { std::cell::RefCell::new(Late(None)) };
}

#[test]
fn a_span_that_is_set_while_the_thread_ends_goes_nowhere() {
    let tid = thread::spawn(|| {
        // Destructors run in either order: one of the two runs after the crate's.
        EARLY.with(|late| late.borrow_mut().0 = Some(7));
        set(1, 1);
        LAST.with(|late| late.borrow_mut().0 = Some(9));
        tid()
    })
    .join()
    .unwrap();
    assert!(find(tid).is_none(), "the thread left an entry behind");
    assert!(WAS_LATE.load(Ordering::Relaxed), "no destructor ran after the crate's");
}

#[test]
fn a_thread_whose_first_use_is_while_it_ends_takes_no_entry() {
    let tid = thread::spawn(|| {
        EARLY.with(|late| late.borrow_mut().0 = Some(7));
        tid()
    })
    .join()
    .unwrap();
    assert!(find(tid).is_none());
}

#[test]
fn many_threads_at_once_have_a_context_each() {
    const THREADS: u64 = 64;
    let all_set = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for thread in 1..=THREADS {
            let all_set = &all_set;
            scope.spawn(move || {
                set_all(&values(thread * 100));
                all_set.wait();
                assert_eq!(find(tid()).unwrap().read(), Reading::Set(values(thread * 100)));
                let line = find(tid()).unwrap() as *const _ as usize;
                assert_eq!(line % 64, 0, "not a cache line of its own");
            });
        }
    });
}

/// Runs `work` in a child of `fork`, and returns whether it succeeded.
fn in_a_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child needs no lock that another thread of the parent may hold. The exception is
    // allocation, which glibc keeps consistent across a fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(!work());
        // SAFETY: exits the child at once, without the destructors that the parent must run.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the call waits for the child and writes its status.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_child_of_fork_has_a_table_of_its_own_with_the_same_names() {
    let (tenant, checkout) = (Tag::number("tenant").unwrap(), text("/checkout"));
    set(5, 6);
    tenant.set(9);
    let parent = tid();
    let is_right = in_a_child(|| {
        let table = own_tables()[0];
        let is_own = table.header.pid.load(Ordering::Relaxed) == std::process::id();
        let is_empty = table.find(parent).is_none() && current().is_none();
        set(7, 8);
        let found = table.find(tid()).map(|context| context.values().span);
        let names = (Tag::number("tenant").unwrap().index(), text("/checkout"));
        is_own && is_empty && found == Some(7) && names == (tenant.index(), checkout)
    });
    assert!(is_right);
    let mine = find(parent).unwrap().values();
    assert_eq!((mine.span, mine.tags[tenant.index()]), (5, 9), "the parent's context has changed");
    assert_eq!(tables(std::process::id()).len(), 1, "not one table for all threads");
    clear();
}
