//! Fuzzes a jitdump of a runtime's code.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::symbol::fuzz_entry::jit_dump(bytes));
