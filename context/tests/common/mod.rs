//! Shared code of the writers' tests: finds tables as the recorder and a handler do.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod cc;
pub(crate) mod remote;

use std::fs;
use std::io::Write;

use traceprof_abi::context::{Context, ContextTable, TABLE_MAGIC, TABLE_MAPPING};

/// Returns the addresses of a process's tables, from its list of mappings.
pub(crate) fn tables(pid: u32) -> Vec<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
    let is_table = |line: &&str| line.contains(&format!("/memfd:{TABLE_MAPPING} "));
    let begin = |line: &str| u64::from_str_radix(line.split('-').next()?, 16).ok();
    // A mapping whose pages differ is listed in parts. The first part has the magic.
    maps.lines().filter(is_table).filter_map(begin).collect()
}

/// Returns the initialised tables of this process.
pub(crate) fn own_tables() -> Vec<ContextTable<'static>> {
    let ready = |base: u64| {
        // SAFETY: a mapping with that name has the length of a table, and is never unmapped.
        let table = unsafe { ContextTable::new(base as *const u8) };
        let magic = table.header.magic.load(std::sync::atomic::Ordering::Acquire);
        (magic == TABLE_MAGIC).then_some(table)
    };
    tables(std::process::id()).into_iter().filter_map(ready).collect()
}

/// Returns the id of the calling thread.
pub(crate) fn tid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { libc::gettid() as u32 }
}

/// Returns the context that a handler on a thread of this process finds.
pub(crate) fn find(tid: u32) -> Option<&'static Context> {
    own_tables().into_iter().find_map(|table| table.find(tid))
}

/// Prints that a test is skipped, and fails it where skips are not allowed, as the tool's tests do.
pub(crate) fn announce_skip(reason: &str) {
    // Printed past the harness, which hides what a passing test prints.
    let _ = writeln!(std::io::stderr(), "SKIP: {reason}");
    let is_required = std::env::var("TRACEPROF_TEST_REQUIRE").is_ok_and(|value| value == "all");
    assert!(!is_required, "a skip where skips are not allowed: {reason}");
}
