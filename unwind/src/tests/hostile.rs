//! Corrupt modules are compiled or refused. Nothing panics or runs without bound.

use super::{Random, libc_path, vdso};
use crate::architecture::Architecture;
use crate::compile::compile_bounded;
use crate::{compile, compile_image, function_starts};
use traceprof_elf::Elf;

fn try_all(bytes: &[u8]) {
    for table in [compile(bytes), compile_image(bytes)].into_iter().flatten() {
        let statistics = table.statistics();
        assert!(table.lows.len() == statistics.rows && table.ids.len() == statistics.rows);
        for block in table.blocks.windows(2) {
            assert!(block[0] <= block[1] && block[1] - block[0] <= 256);
        }
        assert!(table.ids.iter().all(|&id| usize::from(id) < table.rules.len()));
    }
    let _ = function_starts(bytes);
}

#[test]
fn damaged_images_are_compiled_or_refused() {
    let original = vdso();
    let mut random = Random(0xBAD_5EED);
    for _ in 0..4_000 {
        let mut bytes = original.clone();
        for _ in 0..1 + random.below(8) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        // Headers are a small part of the image, so every case corrupts one.
        let at = random.below(0x400) as usize;
        bytes[at] = random.next() as u8;
        try_all(&bytes);
    }
}

#[test]
fn truncated_files_are_compiled_or_refused() {
    let original = vdso();
    for length in (0..original.len()).step_by(61) {
        try_all(&original[..length]);
    }
}

#[test]
fn one_damaged_entry_costs_only_itself() {
    let mut bytes = std::fs::read(libc_path()).unwrap();
    let whole = compile(&bytes).unwrap().statistics();
    let elf = traceprof_elf::Elf::parse(&bytes).unwrap();
    let frames = elf.section(".eh_frame").unwrap();
    let at = frames.data.as_ptr() as usize - bytes.as_ptr() as usize;
    // The version of the first common information entry.
    bytes[at + 8] = 0xEE;
    let damaged = compile(&bytes).unwrap().statistics();
    assert!(damaged.skipped_fdes > whole.skipped_fdes);
    assert!(damaged.fdes + damaged.skipped_fdes >= whole.fdes);
    eprintln!("{whole:?}\n{damaged:?}");
}

#[test]
fn functions_are_sorted_and_inside_the_code() {
    let bytes = std::fs::read(libc_path()).unwrap();
    let functions = function_starts(&bytes).unwrap();
    assert!(functions.len() > 1_000, "{}", functions.len());
    assert!(functions.windows(2).all(|pair| pair[0].0 < pair[1].0));
    let elf = traceprof_elf::Elf::parse(&bytes).unwrap();
    let code: Vec<_> = elf.loads().iter().filter(|load| load.exec).collect();
    for (start, len) in functions {
        assert!(len > 0 && code.iter().any(|load| load.file_offset_of(start).is_some()));
    }
}

/// A module with more rows than the maximum keeps the first ones.
#[test]
fn rows_are_bounded() {
    let bytes = std::fs::read(libc_path()).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let bounded = |rows_max| compile_bounded(&elf, Architecture::HOST, None, rows_max).unwrap();
    let whole = compile(&bytes).unwrap();
    assert_eq!(bounded(1 << 25), whole);
    let all = whole.statistics();
    assert!(all.fdes > 1000, "the premise");
    for rows_max in [0, 1, 100] {
        let part = bounded(rows_max).statistics();
        // Each entry has at least one row.
        assert!(part.fdes <= rows_max && (part.fdes > 0) == (rows_max > 0), "{part:?}");
        assert_eq!(part.fdes + part.skipped_fdes, all.fdes + all.skipped_fdes, "{part:?}");
        assert!(part.gap_bytes > all.gap_bytes + 500_000, "{part:?}");
    }
}
