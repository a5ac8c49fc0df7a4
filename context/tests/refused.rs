//! Tests of a process that cannot create memory files, as in a sandbox: its table is anonymous and
//! found by the exported symbol.
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::process::Command;
use std::sync::atomic::Ordering;

use common::cc::{compile, run};
use common::{tables, tid};
use traceprof_abi::context::{ContextTable, TABLE_MAGIC, TABLE_SYMBOL};

/// Makes `memfd_create` fail on this thread from now on.
fn refuse_memory_files() {
    let load_number = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let is_it = libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_memfd_create as u32 };
    let fail = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let [fail, allow] =
        [fail, libc::SECCOMP_RET_ALLOW].map(|k| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k });
    let mut program = [load_number, is_it, fail, allow];
    let filter =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr().cast() };
    // SAFETY: the arguments are numbers.
    let promised = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the call reads the filter, which lives across it.
    let filtered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) };
    assert_eq!((promised, filtered), (0, 0), "{}", std::io::Error::last_os_error());
}

#[test]
fn without_memory_files_the_exported_symbol_leads_to_the_table() {
    refuse_memory_files();
    // SAFETY: returns the address of the calling thread's error number.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: it exists as long as the thread.
    unsafe { errno.write(libc::EDOM) };
    traceprof_context::set(5, 6);
    let left = std::io::Error::last_os_error().raw_os_error();
    assert_eq!(left, Some(libc::EDOM), "the error number has changed");
    assert!(traceprof_context::is_available());
    assert_eq!(tables(std::process::id()), [], "a mapping has the name");
    let base = traceprof_context::traceprof_context_table_v1.load(Ordering::Acquire);
    // SAFETY: it is the address of a table, which stays mapped.
    let table = unsafe { ContextTable::new(base as *const u8) };
    assert_eq!(table.header.magic.load(Ordering::Relaxed), TABLE_MAGIC);
    assert_eq!(table.find(tid()).map(|context| context.values().span), Some(5));
}

#[test]
fn the_symbol_is_in_programs_of_both_languages() {
    let own = std::env::current_exe().expect("this program");
    let c = compile("cc", &["-std=c11"], "tests/c/layout.c", "layout.symbol");
    for program in [own, c] {
        let symbols = run(Command::new("nm").arg(&program));
        assert!(symbols.lines().any(|line| line.ends_with(TABLE_SYMBOL)), "{program:?}");
    }
}

#[test]
fn c_programs_do_the_same() {
    let sandbox = compile("cc", &["-std=gnu11"], "tests/c/sandbox.c", "sandbox");
    assert_eq!(run(&mut Command::new(sandbox)), "well\n");
}
