//! Fuzzes the shared memory that a recorder drains, as a hostile target writes it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::record::fuzz_entry::drain(bytes));
