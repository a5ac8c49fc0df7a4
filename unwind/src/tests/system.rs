//! The modules of this system, compared with gimli.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use traceprof_abi::unwind::rule::{fp_op, op};

use super::against_gimli::{Counts, check};
use super::{libc_path, vdso};
use crate::test_turn::is_long;
use crate::{compile, compile_image};
use traceprof_elf::{Elf, is_elf};

/// Number of addresses that a long run checks in all modules together.
const LONG_RUN: u64 = 1_000_000;
/// A short run checks one in this many modules.
const SHORT_PART: usize = 40;

/// Asserts that nearly all of the module was compared.
fn assert_most_compared(name: &str, samples: u64, counts: &Counts) {
    let seen = counts.checked + counts.gap;
    assert!(seen * 10 > samples * 9, "{name}: too little was compared");
    assert!(counts.checked * 2 > samples, "{name}: too little was compared");
    assert!(counts.bad * 200 < samples, "{name}: too many rules cannot be expressed");
}

fn check_file(path: &Path) -> Counts {
    let bytes = std::fs::read(path);
    let bytes = bytes.unwrap_or_else(|error| panic!("{} is needed: {error}", path.display()));
    let (name, samples) = (path.display().to_string(), 20_000);
    let counts = check(&bytes, &name, samples);
    assert_most_compared(&name, samples, &counts);
    counts
}

/// Returns the programs and libraries of this system, each once.
fn system_modules() -> BTreeSet<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib", "/usr/bin", "/usr/sbin"];
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let paths = entries.filter_map(|entry| entry.ok()?.path().canonicalize().ok());
    let is_module = |path: &PathBuf| {
        let mut start = [0; 4];
        let file = std::fs::File::open(path);
        let read = file.and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
        read.is_ok() && is_elf(&start)
    };
    paths.filter(|path| path.is_file()).filter(is_module).collect()
}

#[test]
fn all_modules_of_the_system_are_stepped_as_their_call_frame_information_says() {
    let modules = system_modules();
    assert!(modules.len() > 100, "{}", modules.len());
    let samples = LONG_RUN / modules.len() as u64 + 1;
    let part = if is_long() { 1 } else { SHORT_PART };
    let (mut compiled, mut asked) = (0, 0);
    let mut all = Counts::default();
    for path in modules.iter().step_by(part) {
        let bytes = std::fs::read(path).unwrap();
        // Some are for other machines, or have no unwind information.
        let elf = Elf::parse(&bytes).ok();
        if elf.is_none_or(|elf| elf.section(".eh_frame").is_none_or(|it| it.data.len() < 64)) {
            continue;
        }
        let Ok(_) = compile(&bytes) else { continue };
        let counts = check(&bytes, &path.display().to_string(), samples);
        (compiled, asked) = (compiled + 1, asked + samples);
        all.checked += counts.checked;
        all.bad += counts.bad;
        all.gap += counts.gap;
        all.go += counts.go;
        all.other += counts.other;
        all.roots += counts.roots;
        all.ops.extend(counts.ops);
        all.fp_ops.extend(counts.fp_ops);
    }
    eprintln!("{compiled} modules of {}: {all:?}", modules.len());
    assert!(compiled * part * 10 > modules.len() * 8, "{compiled} could be compiled");
    assert!(all.checked * 10 > asked * 8, "{all:?}");
    assert!(all.bad * 1000 < asked, "{all:?}");
}

#[test]
fn libc_is_stepped_as_its_call_frame_information_says() {
    check_file(&libc_path());
    let table = compile(&std::fs::read(libc_path()).unwrap()).unwrap();
    for expected in [op::SP, op::FP_STD, op::SIGNAL, op::STOP, op::GAP_GUESS] {
        assert!(table.rules.iter().any(|rule| rule.op == expected), "no rule with op {expected}");
    }
}

#[test]
fn this_program_is_stepped_as_its_call_frame_information_says() {
    check_file(&std::env::current_exe().unwrap());
}

#[test]
fn distribution_modules_are_stepped_as_their_call_frame_information_says() {
    let lib = Path::new("/usr/lib/x86_64-linux-gnu");
    for path in [
        lib.join("libgmp.so.10"),
        lib.join("ld-linux-x86-64.so.2"),
        "/usr/bin/python3".into(),
        "/usr/bin/perl".into(),
        "/usr/bin/git".into(),
    ] {
        check_file(&path);
    }
    let compilers = std::fs::read_dir("/usr/lib/gcc/x86_64-linux-gnu").expect("gcc is needed");
    let cc1 = compilers.filter_map(|version| Some(version.ok()?.path().join("cc1")));
    check_file(&cc1.max().expect("gcc is needed"));
}

/// Rules that only hand-written code needs: sp kept on the stack or in an array on it, the CFA in a
/// register, and the frame pointer at sp.
#[test]
fn hand_written_code_is_stepped_as_its_call_frame_information_says() {
    let lib = Path::new("/usr/lib/x86_64-linux-gnu");
    let counts = check_file(&lib.join("libcrypto.so.3"));
    let rax = op::REG_LEAF;
    let (r9, r11, indexed_r9) = (rax + 9, rax + 11, op::INDEXED_LEAF + 9);
    for expected in [op::DEREF_SP_8, op::DEREF_SP_ADD, rax, r9, r11, indexed_r9] {
        assert!(counts.ops.contains(&expected), "no rule with op {expected}: {:?}", counts.ops);
    }
    let counts = check_file(&lib.join("libgcrypt.so.20"));
    assert!(counts.fp_ops.contains(&fp_op::AT_SP), "{:?}", counts.fp_ops);
}

#[test]
fn vdso_has_the_same_table_from_its_image_as_from_its_bytes() {
    let bytes = vdso();
    let image = compile_image(&bytes).unwrap();
    assert!(image.statistics().fdes > 0, "{:?}", image.statistics());
    let file = compile(&bytes).unwrap();
    assert_eq!(image.statistics().rows, file.statistics().rows);
    assert_eq!((&image.ids, &image.lows, &image.blocks), (&file.ids, &file.lows, &file.blocks));
    let counts = check(&bytes, "vdso", 5_000);
    assert!(counts.checked > 0);
}
