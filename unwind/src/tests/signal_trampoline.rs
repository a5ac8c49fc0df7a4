//! The code that returns from signal handlers, as C libraries and Go describe it.

use std::process::Command;

use traceprof_abi::unwind::{EndReason, RETURN_ADDRESS, Registers, Rule};

use super::SegmentMemory;
use crate::{ExecRange, ModuleTable, RemoteUnwinder, StackCopy, TableWriter, compile};
use traceprof_elf::Elf;

/// Returns the source of a function followed by a trampoline. Its entry starts one byte early if
/// `early`, and is marked as a signal frame if `marked`.
fn source(early: bool, marked: bool, behind: &str) -> String {
    let signal = if marked { ".cfi_signal_frame\n" } else { "" };
    let (before, at) = if early { ("nop\n", "") } else { ("", "nop\n") };
    // The extra byte is before the entry, or in it.
    let (outside, inside) = if early { ("", before) } else { (at, "") };
    format!(
        ".globl _start\n_start:\n.cfi_startproc\npush %rbx\n.cfi_adjust_cfa_offset \
         8\nnop\n{outside}\
         .cfi_endproc\n.cfi_startproc\n{signal}{inside}.globl trampoline\ntrampoline:\n\
         mov $15,%eax\nsyscall\n.cfi_endproc\n{behind}.globl \
         behind\nbehind:\n.cfi_startproc\nret\n.cfi_endproc\n"
    )
}

const TRAMPOLINE_LEN: u64 = 7;
/// Bytes before the trampoline: push, nop, and the byte that may belong to it.
const BEFORE: u64 = 3;

/// Returns the compiled module and the start of its code.
fn compiled(early: bool, marked: bool, behind: &str) -> (ModuleTable, u64) {
    let directory = tempfile::tempdir().unwrap();
    let (code, program) = (directory.path().join("t.s"), directory.path().join("t"));
    std::fs::write(&code, source(early, marked, behind)).unwrap();
    let mut command = Command::new("cc");
    command.args(["-nostdlib", "-static", "-no-pie", "-o"]).arg(&program).arg(&code);
    assert!(command.status().expect("a C compiler is needed").success());
    let bytes = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let start = elf.loads().iter().find(|load| load.exec).unwrap().svma;
    (compile(&bytes).unwrap(), start)
}

/// Returns the rules from two bytes before the trampoline up to the function after it.
fn rules(early: bool, marked: bool, behind: &str) -> Vec<Rule> {
    let (table, start) = compiled(early, marked, behind);
    let segment = SegmentMemory::new(1 << 20);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&table).unwrap();
    let range = ExecRange { start, end: start + 4096, bias: 0, module: Some(module) };
    writer.publish(&[range], &[]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();
    let module = snapshot.module(snapshot.range(start).unwrap()).unwrap();
    let trampoline = start + BEFORE;
    (trampoline - 2..=trampoline + TRAMPOLINE_LEN).map(|svma| module.rule(svma)).collect()
}

#[test]
fn trampoline_is_known_from_the_byte_before_it() {
    for (early, marked) in [(true, true), (false, true), (false, false)] {
        let rules = rules(early, marked, "");
        let signal: Vec<usize> = (0..rules.len()).filter(|&at| rules[at] == Rule::SIGNAL).collect();
        assert_eq!(signal, (1..=8).collect::<Vec<_>>(), "{early} {marked}: {rules:?}");
    }
}

/// Where the kernel finds a thread that returns from a handler.
#[test]
fn thread_in_the_call_is_behind_it_if_no_code_begins_there() {
    let forms = [("nop\n", true), ("nopl 0(%rax)\n", true), ("nopw 0(%rax)\n", true)];
    for (behind, is_padding) in [&forms[..], &[("", false), ("push %rbp\n", false)]].concat() {
        for (early, marked) in [(true, true), (false, true), (false, false)] {
            let rules = rules(early, marked, behind);
            assert_eq!(rules[9] == Rule::SIGNAL, is_padding, "{behind} {early} {marked}");
        }
    }
}

/// A thread that is stopped before its handler's first instruction, in code without information.
/// Its frame pointer is still that of the interrupted code.
#[test]
fn first_instruction_of_a_handler_is_left_through_its_trampoline() {
    const CODE: u64 = 0x1000_0000;
    const STACK: u64 = 0x7000_0000_0000;
    let (table, start) = compiled(false, false, "");
    let trampoline = start + BEFORE;
    let segment = SegmentMemory::new(1 << 20);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&table).unwrap();
    let library = ExecRange { start, end: start + 4096, bias: 0, module: Some(module) };
    let unknown = ExecRange { start: CODE, end: CODE + 4096, bias: 0, module: None };
    writer.publish(&[library, unknown], &[(STACK, STACK + 4096)]).unwrap();
    let mut words = vec![0u64; 512];
    // The return address; 40 bytes of ucontext; r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp;
    // rip.
    words[0] = trampoline;
    let interrupted_fp = STACK + 0x800;
    (words[6 + 10], words[6 + 15], words[6 + 16]) = (interrupted_fp, STACK + 0x700, CODE + 0x200);
    // Its caller is the outermost frame.
    (words[0x800 / 8], words[0x808 / 8]) = (0, CODE + 0x300);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let registers = Registers { pc: CODE + 0x100, sp: STACK, fp: interrupted_fp, gpr: [0; 16] };
    let tables = segment.tables();
    let copy = StackCopy { avma: STACK, bytes: &bytes };
    let stack = RemoteUnwinder::default().unwind(
        &tables.snapshot().unwrap(),
        &registers,
        copy,
        &mut |_, _| 0,
    );
    let frames =
        [CODE + 0x100, trampoline | RETURN_ADDRESS, CODE + 0x200, (CODE + 0x300) | RETURN_ADDRESS];
    assert_eq!((&stack.frames[..], stack.end), (&frames[..], EndReason::Unproven));
}
