//! Fuzzes the memory of a process with a Java machine.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::runtime::java::fuzz_entry::java(bytes));
