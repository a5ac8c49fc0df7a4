//! Fuzzes the contents of frames, read lazily.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::trace::fuzz_entry::lazy(bytes));
