//! Entrances for fuzzing: bytes in, and what must hold whatever they are.
//!
//! Each function panics where an invariant is broken, and only there.

use std::fs::File;
use std::io::Write;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::jit::CodeReader;
use super::name::LENGTH_MAX;
use super::{ElfFile, JitCode, JitDump, PerfMap, Resolved, Symbolizer};

/// A perf map, read as it grows.
pub fn perf_map(bytes: &[u8]) {
    read_twice::<PerfMap>(bytes);
}

/// A dump of a runtime's code, read as it grows.
pub fn jit_dump(bytes: &[u8]) {
    read_twice::<JitDump>(bytes);
}

/// An ELF file with all that is in it.
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

/// In one piece and in pieces of seven bytes, which tear every line, the same is read.
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
