//! Fuzzes the memory of a process with V8.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::runtime::fuzz_entry::v8(bytes));
