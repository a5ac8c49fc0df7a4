//! Fuzzes the memory of a process with LuaJIT, and what its handler has of a thread.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traceprof::runtime::fuzz_entry::lua_thread(bytes));
