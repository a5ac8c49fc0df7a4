//! Stacks of threads of which only the stack pointer and the pc are known. They are unwound if the
//! other registers were saved, and refused otherwise.

use traceprof_abi::unwind::rule::{fp_op, op};
use traceprof_abi::unwind::{EndReason, RBP, RETURN_ADDRESS, RSP, Registers, Rule};

use super::super::compile::{Statistics, block_index};
use super::super::rows::{Row, Rules};
use super::SegmentMemory;
use crate::{ExecRange, ModuleTable, RemoteUnwinder, StackCopy, TableWriter};

const CODE: u64 = 0x40_0000;
const LEAF: u64 = CODE + 0x80;
const MIDDLE: u64 = CODE + 0x180;
const OUTER: u64 = CODE + 0x280;
const STACK: u64 = 0x7000_0000_0000;
const STACK_LEN: u64 = 0x1000;
/// Address of the middle function's frame record.
const RECORD: u64 = STACK + 0x40;
// DWARF numbers.
const RDX: usize = 1;
const RCX: usize = 2;
const RBX: usize = 3;
const R12: usize = 12;
const R13: usize = 13;
const R14: usize = 14;
/// The CFA is sp + 16, and the frame pointer is saved below the return address.
const SAVES_FP: Rule = Rule { op: op::SP, fp_op: fp_op::AT_CFA, fp_off: -2, cfa_off: 16 };

/// A table of three functions of 256 bytes each.
fn table(functions: [Rule; 3]) -> ModuleTable {
    let mut rules = Rules::default();
    let numbers = functions.map(|rule| rules.number(rule));
    let rows = (0..3).zip(numbers).map(|(at, rule)| Row { offset: at * 256, rule });
    let rows: Vec<Row> = rows.collect();
    ModuleTable {
        base: 0,
        blocks: block_index(&rows, 0x300),
        lows: rows.iter().map(|row| row.offset as u8).collect(),
        ids: rows.iter().map(|row| row.rule).collect(),
        default_rule: 0,
        rules: rules.list,
        rbx_slots: Vec::new(),
        statistics: Statistics::default(),
    }
}

/// Returns the stack words that the rules here lead to, from STACK on.
fn stack() -> Vec<u8> {
    let mut words = vec![0u64; (STACK_LEN / 8) as usize];
    (words[0], words[1]) = (RECORD, MIDDLE);
    // A pointer to the CFA, and one to 8 bytes below it.
    (words[2], words[3]) = (STACK + 8, STACK + 16);
    (words[8], words[9]) = (0, OUTER);
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Checks that the stack has a root with these registers, and whether it is found without them.
fn check(leaf: Rule, middle: Rule, registers: &[(usize, u64)], is_found: bool) {
    let segment = SegmentMemory::new(1 << 20);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&table([leaf, middle, Rule::STOP])).unwrap();
    let code = ExecRange { start: CODE, end: CODE + 0x300, bias: CODE, module: Some(module) };
    writer.publish(&[code], &[(STACK, STACK + STACK_LEN)]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();

    let mut gpr = [0; 16];
    gpr[RSP] = STACK;
    registers.iter().for_each(|&(number, value)| gpr[number] = value);
    let registers = Registers { pc: LEAF, sp: STACK, fp: gpr[RBP], gpr };
    let bytes = stack();
    let copy = StackCopy { avma: STACK, bytes: &bytes };
    let mut unwinder = RemoteUnwinder::default();
    let stack = unwinder.unwind(&snapshot, &registers, copy, &mut |_, _| 0);
    let expected = [LEAF, MIDDLE | RETURN_ADDRESS, OUTER | RETURN_ADDRESS];
    assert_eq!((&stack.frames[..], stack.end), (&expected[..], EndReason::Root), "{leaf:?}");

    let found = unwinder.unwind_sleeping(&snapshot, (STACK, LEAF), copy, &mut |_, _| 0);
    let found = found.map(|(frames, fingerprint)| {
        let mut read = |avma: u64, into: &mut [u8]| {
            into.copy_from_slice(&bytes[(avma - STACK) as usize..][..into.len()]);
            into.len()
        };
        assert!(fingerprint.matches((STACK, LEAF), &mut read));
        frames
    });
    assert_eq!(found.is_some(), is_found, "{leaf:?} {middle:?}");
    assert!(found.is_none_or(|frames| frames == expected));
}

#[test]
fn saved_registers_are_found() {
    check(SAVES_FP, Rule::FP_STD, &[], true);
    // No rule needs the unknown frame pointer.
    let unsaved = Rule { fp_op: fp_op::SAME, ..SAVES_FP };
    let by_size = Rule { cfa_off: 0x40, ..unsaved };
    check(unsaved, by_size, &[], true);
    let maybe_saved = Rule { fp_op: fp_op::AT_FP, ..SAVES_FP };
    check(maybe_saved, by_size, &[(RBP, STACK + 16)], true);
    check(Rule { op: op::DEREF_SP, cfa_off: 24, ..SAVES_FP }, Rule::FP_STD, &[], true);
}

#[test]
fn stacks_that_depend_on_a_register_are_refused() {
    let refused = |leaf, registers: &[(usize, u64)]| check(leaf, Rule::FP_STD, registers, false);
    refused(Rule { fp_op: fp_op::SAME, ..SAVES_FP }, &[(RBP, RECORD)]);
    refused(Rule { fp_op: fp_op::AT_FP, ..SAVES_FP }, &[(RBP, STACK + 16)]);
    refused(Rule::FP_STD, &[(RBP, STACK)]);
    refused(Rule::FP_SWITCH, &[(RBP, STACK)]);
    refused(Rule { op: op::FP, ..SAVES_FP }, &[(RBP, STACK)]);
    refused(Rule { op: op::DEREF_FP, cfa_off: 8, ..SAVES_FP }, &[(RBP, STACK + 16)]);
    refused(Rule { op: op::DEREF_FP_8, cfa_off: 0, ..SAVES_FP }, &[(RBP, STACK + 16)]);
    refused(Rule { op: op::REG_LEAF + RBX as u8, ..SAVES_FP }, &[(RBX, STACK)]);
    let from_rcx = Rule { op: op::RA_REG_LEAF + RCX as u8, ..SAVES_FP };
    refused(Rule { fp_op: fp_op::SAME, ..from_rcx }, &[(RCX, MIDDLE), (RBP, RECORD)]);
    let by_index = Rule { op: op::INDEXED_LEAF + RDX as u8, cfa_off: 0, ..SAVES_FP };
    refused(by_index, &[(RDX, 2)]);
    let places = [R12 as u8, R13 as u8, R14 as u8];
    let elsewhere = [(R12, STACK + 16), (R13, RECORD), (R14, MIDDLE)];
    refused(Rule::from(op::FROM_REGISTERS, 0, places), &elsewhere);
}

#[test]
fn frames_without_a_root_are_refused() {
    let segment = SegmentMemory::new(1 << 20);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&table([SAVES_FP, Rule::BAD, Rule::STOP])).unwrap();
    let code = ExecRange { start: CODE, end: CODE + 0x300, bias: CODE, module: Some(module) };
    writer.publish(&[code], &[(STACK, STACK + STACK_LEN)]).unwrap();
    let tables = segment.tables();
    let bytes = stack();
    let copy = StackCopy { avma: STACK, bytes: &bytes };
    let snapshot = tables.snapshot().unwrap();
    let found = |point, copy| {
        RemoteUnwinder::default().unwind_sleeping(&snapshot, point, copy, &mut |_, _| 0)
    };
    assert_eq!(found((STACK, LEAF), copy), None);
    assert_eq!(found((STACK, CODE + 0x1000), copy), None);
    assert!(found((STACK, OUTER), copy).is_some_and(|(frames, _)| frames == [OUTER]));
    // If a stack cannot be read, only the root itself is found.
    let nothing = StackCopy { avma: STACK, bytes: &[] };
    assert_eq!(found((STACK, LEAF), nothing), None);
}

/// A return address of zero is the root only if the frame pointer is zero as well.
#[test]
fn root_that_depends_on_a_register_is_refused() {
    let segment = SegmentMemory::new(1 << 20);
    let mut writer = TableWriter::new(segment.words());
    let unsaved = Rule { fp_op: fp_op::SAME, ..SAVES_FP };
    let to_zero = Rule { cfa_off: 0x18, ..unsaved };
    let module = writer.add_module(&table([unsaved, to_zero, Rule::STOP])).unwrap();
    let code = ExecRange { start: CODE, end: CODE + 0x300, bias: CODE, module: Some(module) };
    writer.publish(&[code], &[(STACK, STACK + STACK_LEN)]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();
    let bytes = stack();
    let copy = StackCopy { avma: STACK, bytes: &bytes };
    let mut unwinder = RemoteUnwinder::default();
    let mut end = |fp: u64| {
        let mut registers = Registers { pc: LEAF, sp: STACK, fp, gpr: [0; 16] };
        (registers.gpr[RSP], registers.gpr[RBP]) = (STACK, fp);
        unwinder.unwind(&snapshot, &registers, copy, &mut |_, _| 0).end
    };
    assert_eq!((end(0), end(RECORD)), (EndReason::Root, EndReason::Range));
    assert_eq!(unwinder.unwind_sleeping(&snapshot, (STACK, LEAF), copy, &mut |_, _| 0), None);
}
