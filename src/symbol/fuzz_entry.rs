//! Entry points for fuzzing: each takes bytes and checks the invariants that hold for any input.
//!
//! Each function panics only if an invariant is broken.

use std::fs::File;
use std::io::Write;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::jit::CodeReader;
use super::{ElfFile, JitCode, JitDump, PerfMap, Resolved, Symbolizer};
use crate::text::LENGTH_MAX;

/// Reads a perf map while it grows.
pub fn perf_map(bytes: &[u8]) {
    read_twice::<PerfMap>(bytes);
}

/// Reads a dump of a runtime's code while it grows.
pub fn jit_dump(bytes: &[u8]) {
    read_twice::<JitDump>(bytes);
}

/// Reads an ELF file and everything in it.
pub fn elf(bytes: &[u8]) {
    let Ok(descriptor) = memfd_create(c"fuzzed", MFdFlags::MFD_CLOEXEC) else { return };
    let mut file = File::from(descriptor);
    if file.write_all(bytes).is_err() {
        return;
    }
    let elf = ElfFile::new(file.into(), "/nowhere/fuzzed".to_owned(), Vec::new());
    let svmas: Vec<u64> = (0..0x3000).step_by(0x35).chain([u64::MAX]).collect();
    let mut symbolizer = Symbolizer::new();
    let answers = symbolizer.resolve(&elf, &svmas);
    assert_eq!(answers.len(), svmas.len());
    answers.iter().for_each(check);
    assert!(symbolizer.source(&elf).is_some());
}

/// Reads the bytes in one piece and in pieces of seven bytes, which split every line, and compares
/// the results.
fn read_twice<R: CodeReader + Default>(bytes: &[u8]) {
    let (mut whole, mut torn) = (JitCode::default(), JitCode::default());
    R::default().feed(bytes, &mut whole);
    let mut reader = R::default();
    bytes.chunks(7).for_each(|part| reader.feed(part, &mut torn));
    assert_eq!(whole.len(), torn.len());
    for avma in whole.starts() {
        let found = whole.find(avma);
        assert_eq!(found, torn.find(avma));
        check(&found.unwrap_or_default());
    }
}

fn check(resolved: &Resolved) {
    let names = resolved.inlined.iter().map(|call| &call.name);
    let mut names = names.chain(resolved.function.as_ref().map(|function| &function.name));
    assert!(names.all(|name| name.len() <= LENGTH_MAX && !name.contains(char::is_control)));
}
