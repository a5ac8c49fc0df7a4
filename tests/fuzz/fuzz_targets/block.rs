//! Fuzzes the contents of frames with correct checksums.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::trace::fuzz_entry::block(bytes));
