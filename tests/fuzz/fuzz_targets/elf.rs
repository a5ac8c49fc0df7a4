//! Fuzzes an ELF file with its symbols and debug information.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::symbol::fuzz_entry::elf(bytes));
