//! Threads that begin, end and are born again, and children of `fork`.
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
    // The entries are given out again and again; whether the ids are is up to the kernel.
    for turn in 0..300_u64 {
        let tid = thread::spawn(move || {
            assert_eq!(current(), None, "an entry that was not clear");
            set_all(&values(turn + 1));
            assert_eq!(find(tid()).unwrap().read(), Reading::Set(values(turn + 1)));
            tid()
        })
        .join()
        .unwrap();
        assert!(find(tid).is_none(), "a thread that ended gave its entry back");
        seen.insert(tid);
    }
    let used = |table: &traceprof_abi::context::ContextTable<'_>| {
        table.tids.iter().filter(|tid| seen.contains(&tid.load(Ordering::Relaxed))).count()
    };
    assert_eq!(own_tables().iter().map(used).sum::<usize>(), 0);
}

#[test]
fn an_entry_that_a_thread_left_behind_is_clear_for_the_next_with_its_id() {
    let table = || own_tables()[0];
    set(1, 1);
    thread::spawn(move || {
        // As if another thread with this id had been killed.
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
        // Before or after the thread has given its entry back: neither must do harm.
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
        // Destructors run in one order or the other: one of the two is later than the crate's.
        EARLY.with(|late| late.borrow_mut().0 = Some(7));
        set(1, 1);
        LAST.with(|late| late.borrow_mut().0 = Some(9));
        tid()
    })
    .join()
    .unwrap();
    assert!(find(tid).is_none(), "nothing is left behind");
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
                assert_eq!(line % 64, 0, "a cache line of its own");
            });
        }
    });
}

/// Runs in a child of `fork`, and says whether it went well.
fn in_a_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls nothing that needs what other threads of the parent may hold, but for
    // allocations, which glibc keeps whole across a fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(!work());
        // SAFETY: ends the child at once, without the destructors that are the parent's to run.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child and writes its status.
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
        let names = (Tag::number("tenant").unwrap().place(), text("/checkout"));
        is_own && is_empty && found == Some(7) && names == (tenant.place(), checkout)
    });
    assert!(is_right);
    let mine = find(parent).unwrap().values();
    assert_eq!((mine.span, mine.tags[tenant.place()]), (5, 9), "the parent's stays");
    assert_eq!(tables(std::process::id()).len(), 1, "one table for all");
    clear();
}
