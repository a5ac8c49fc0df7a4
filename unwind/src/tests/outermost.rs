//! Frames that unwind information makes the outermost ones.

use std::process::Command;

use traceprof_abi::unwind::{EndReason, RSP, Registers};

use super::SegmentMemory;
use crate::{ExecRange, RemoteUnwinder, StackCopy, TableWriter, compile};
use traceprof_elf::Elf;

/// A function without a caller, one that removes its return address and calls another function, as
/// a C library does on a new thread, and one that is called.
const SOURCE: &str = ".globl _start
_start: .cfi_startproc
.cfi_undefined rip
nop
nop
.cfi_endproc
.cfi_startproc
pop %rdx
.cfi_adjust_cfa_offset -8
syscall
call *%r9
nop
.cfi_endproc
.cfi_startproc
ret
.cfi_endproc
";
/// Offsets of instructions.
const NO_CALLER: u64 = 0;
const POP: u64 = 2;
const SYSCALL: u64 = 3;
const CALLED: u64 = 8;
const LEAF: u64 = 9;
const STACK: u64 = 0x7000_0000_0000;

#[test]
fn code_that_removed_its_return_address_is_outermost_once_it_has_called() {
    let directory = tempfile::tempdir().unwrap();
    let (code, program) = (directory.path().join("t.s"), directory.path().join("t"));
    std::fs::write(&code, SOURCE).unwrap();
    let mut command = Command::new("cc");
    command.args(["-nostdlib", "-static", "-no-pie", "-o"]).arg(&program).arg(&code);
    assert!(command.status().expect("a C compiler is needed").success());
    let bytes = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let start = elf.loads().iter().find(|load| load.exec).unwrap().svma;

    let segment = SegmentMemory::new(1 << 20);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&compile(&bytes).unwrap()).unwrap();
    let code = ExecRange { start, end: start + 4096, bias: 0, module: Some(module) };
    writer.publish(&[code], &[(STACK, STACK + 4096)]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();
    let end = |at: u64, ret: u64| {
        let mut registers = Registers { pc: start + at, sp: STACK, fp: 0, gpr: [0; 16] };
        registers.gpr[RSP] = STACK;
        let bytes = [(start + ret).to_le_bytes(), [0; 8]].concat();
        let copy = StackCopy { avma: STACK, bytes: &bytes };
        let stack = RemoteUnwinder::default().unwind(&snapshot, &registers, copy, &mut |_, _| 0);
        (stack.frames.len(), stack.end)
    };
    assert_eq!(end(NO_CALLER, 0), (1, EndReason::Root));
    assert_eq!(end(LEAF, CALLED), (2, EndReason::Root));
    assert_eq!(end(POP, NO_CALLER + 1), (2, EndReason::Root), "its caller");
    // In `vfork` of musl, the parent has its return address in a register.
    assert_eq!(end(SYSCALL, CALLED), (1, EndReason::BadRule));
}
