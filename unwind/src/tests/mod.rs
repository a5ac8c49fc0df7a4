//! Tests of the compiled tables, of their layout in the segment, and of stepping with them.
//!
//! # Safety
//! Segments are read in memory that a test owns, and the vDSO where the kernel mapped it.
#![allow(unsafe_code, reason = "reads a segment of its own and steps child processes")]

mod aarch64;
mod against_gimli;
mod child;
mod code_heap;
mod debug_file;
mod gap;
mod generated;
mod hostile;
mod known_bad;
mod linkage;
mod oracle;
mod outermost;
mod reasons;
mod remote;
mod signal_trampoline;
mod single_step;
mod sleeping;
mod switch;
mod system;
mod v8;
mod writer;

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use traceprof_abi::unwind::Tables;

/// A tables segment on the heap.
struct SegmentMemory(Vec<[AtomicU64; 2]>);

impl SegmentMemory {
    fn new(bytes: usize) -> Self {
        Self((0..bytes / 16).map(|_| Default::default()).collect())
    }

    fn words(&self) -> &[AtomicU64] {
        self.0.as_flattened()
    }

    /// Returns a view that must not outlive the memory. Words are at least 8-aligned; tables need
    /// 16.
    fn tables(&self) -> Tables {
        let words = self.words();
        assert_eq!(words.as_ptr() as usize % 16, 0, "the allocator gives 16 for blocks this large");
        // SAFETY: aligned (asserted), readable for its length, and the tests drop the view first.
        unsafe { Tables::new(words.as_ptr().cast(), words.len() * 8) }
    }
}

/// Pseudo-random numbers for tests: xorshift64*, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Returns the path of this process's C library.
fn libc_path() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    path.filter(|path| path.contains("libc.so") || path.contains("libc-"))
        .map(Into::into)
        .next()
        .expect("the test is linked to a C library dynamically")
}

/// Returns this process's vDSO as it is in memory.
fn vdso() -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).expect("a vDSO is mapped");
    let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
    let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).unwrap());
    // SAFETY: the kernel maps these pages readable for the life of the process and never writes
    // them.
    unsafe { std::slice::from_raw_parts(start as *const u8, end - start) }.to_vec()
}
