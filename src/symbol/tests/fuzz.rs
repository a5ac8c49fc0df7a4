//! Replays the corpora of the fuzz targets.

use std::panic::catch_unwind;

use super::*;

const CORPORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus");

type Probe = fn(&[u8]);

/// Replays the corpus of a target, also with some bytes changed as the fuzzer would.
fn replay(target: &str, probe: Probe, changes: usize) {
    let mut count = 0;
    for file in fs::read_dir(Path::new(CORPORA).join(target)).unwrap() {
        let path = file.unwrap().path();
        let pristine = fs::read(&path).unwrap();
        for change in 0..=changes {
            let mut bytes = pristine.clone();
            if change > 0 {
                let at = bytes.len() * (change - 1) / changes;
                bytes[at] ^= [0xff, 1, 0x80, 0x7f][change % 4];
            }
            // The file name identifies the input that panicked.
            let held = catch_unwind(|| probe(&bytes));
            assert!(held.is_ok(), "{}, change {change} of {changes}", path.display());
        }
        count += 1;
    }
    assert!(count > 1, "the corpus of {target} is not there");
}

#[test]
fn maps_and_dumps_of_runtimes_hold() {
    replay("perf_map", fuzz_entry::perf_map, 300);
    replay("jit_dump", fuzz_entry::jit_dump, 300);
}

#[test]
fn tables_of_go_functions_hold() {
    replay("pclntab", crate::elf::probe_pclntab, 300);
}

#[test]
fn elf_files_hold() {
    replay("elf", fuzz_entry::elf, 40);
}

#[test]
fn thread_local_variables_hold() {
    replay("thread_local", crate::elf::probe_thread_local, 400);
}
