//! The code that returns from signal handlers, as C libraries and as Go describe it.

use std::process::Command;

use traceprof_abi::unwind::Rule;

use super::SegmentMemory;
use crate::elf::Elf;
use crate::unwind::{ExecRange, TableWriter, compile};

/// A function, and behind it a trampoline whose description starts a byte `early` or not, and says what
/// it is (`marked`) or not.
fn source(early: bool, marked: bool) -> String {
    let signal = if marked { ".cfi_signal_frame\n" } else { "" };
    let (before, at) = if early { ("nop\n", "") } else { ("", "nop\n") };
    // With the byte in front of the description, or in it.
    let (outside, inside) = if early { ("", before) } else { (at, "") };
    format!(
        ".globl _start\n_start:\n.cfi_startproc\npush %rbx\n.cfi_adjust_cfa_offset 8\nnop\n{outside}\
         .cfi_endproc\n.cfi_startproc\n{signal}{inside}.globl trampoline\ntrampoline:\n\
         mov $15,%eax\nsyscall\n.cfi_endproc\n.globl behind\nbehind:\n.cfi_startproc\nret\n.cfi_endproc\n"
    )
}

/// The rules from two bytes in front of the trampoline to the function behind it.
fn rules(early: bool, marked: bool) -> Vec<Rule> {
    const TRAMPOLINE_LEN: u64 = 7;
    // push, nop, the byte in front of the trampoline.
    const BEFORE: u64 = 3;
    let directory = tempfile::tempdir().unwrap();
    let (code, program) = (directory.path().join("t.s"), directory.path().join("t"));
    std::fs::write(&code, source(early, marked)).unwrap();
    let mut command = Command::new("cc");
    command.args(["-nostdlib", "-static", "-no-pie", "-o"]).arg(&program).arg(&code);
    assert!(command.status().expect("a C compiler is needed").success());
    let bytes = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let start = elf.loads().iter().find(|load| load.exec).unwrap().svma;
    let segment = SegmentMemory::new(1 << 20);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&compile(&bytes).unwrap()).unwrap();
    let range = ExecRange { start, end: start + 4096, bias: 0, module: Some(module) };
    writer.publish(&[range], &[]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();
    let module = snapshot.module(snapshot.range(start).unwrap()).unwrap();
    let trampoline = start + BEFORE;
    (trampoline - 2..=trampoline + TRAMPOLINE_LEN).map(|svma| module.rule(svma)).collect()
}

#[test]
fn trampoline_is_known_from_the_byte_in_front_of_it() {
    for (early, marked) in [(true, true), (false, true), (false, false)] {
        let rules = rules(early, marked);
        let signal: Vec<usize> = (0..rules.len()).filter(|&at| rules[at] == Rule::SIGNAL).collect();
        assert_eq!(signal, (1..=8).collect::<Vec<_>>(), "{early} {marked}: {rules:?}");
    }
}
