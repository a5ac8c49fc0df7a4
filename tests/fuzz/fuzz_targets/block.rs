//! Fuzzes the content of frames whose checksums are right.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::trace::probe::block(bytes));
