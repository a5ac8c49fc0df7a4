//! Fuzzes a data file after its header.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::trace::fuzz_entry::frame(bytes));
