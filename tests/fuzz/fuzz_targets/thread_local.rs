//! Fuzzes the thread-local variables of an ELF file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::elf::probe_thread_local(bytes));
