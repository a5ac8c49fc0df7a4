//! Fuzzes a table of Go's functions.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::elf::probe_pclntab(bytes));
