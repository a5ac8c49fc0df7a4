//! Fuzzes a perf map.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::symbol::fuzz_entry::perf_map(bytes));
