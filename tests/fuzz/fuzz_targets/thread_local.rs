//! Fuzzes what an ELF file says of thread-local variables.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::elf::probe_thread_local(bytes));
