//! Fuzzes the content of frames, read piece by piece.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::trace::probe::lazy(bytes));
