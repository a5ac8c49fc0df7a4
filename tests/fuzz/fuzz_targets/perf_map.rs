//! Fuzzes a perf map.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::symbol::probe::perf_map(bytes));
