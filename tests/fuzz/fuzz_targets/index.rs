//! Fuzzes an index file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::trace::fuzz_entry::index(bytes));
