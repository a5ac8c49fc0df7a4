//! Each reason for the end of a walk, with the smallest stack that ends so. The reason for the end
//! of a copy is missing here: the recorder sets it when it takes the copy.

use traceprof_abi::unwind::rule::op;
use traceprof_abi::unwind::{EndReason, RBP, RSP, Registers, Rule};

use super::SegmentMemory;
use crate::compile::Statistics;
use crate::{ExecRange, ModuleTable, RemoteUnwinder, StackCopy, TableWriter};

const CODE: u64 = 0x1000_0000;
const CODE_LEN: u64 = 256;
const STACK: u64 = 0x7000_0000_0000;
const STACK_LEN: u64 = 1 << 17;
/// Maximum number of frames that are followed outside a process.
const DEPTH_MAX: usize = 8192;

/// Returns the depth and the end reason of a stack whose functions all have this rule, with these
/// words from sp on.
fn end(rule: Rule, words: &[u64], sp: u64) -> (usize, EndReason) {
    let segment = SegmentMemory::new(1 << 16);
    let mut writer = TableWriter::new(segment.words());
    let table = ModuleTable {
        base: 0,
        blocks: vec![0, 1],
        lows: vec![0],
        ids: vec![0],
        rules: vec![rule],
        default_rule: 0,
        rbx_slots: Vec::new(),
        statistics: Statistics::default(),
    };
    let module = writer.add_module(&table).unwrap();
    let range = ExecRange { start: CODE, end: CODE + CODE_LEN, bias: CODE, module: Some(module) };
    writer.publish(&[range], &[(STACK, STACK + STACK_LEN)]).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut registers = Registers { pc: CODE + 8, sp, fp: 0, gpr: [0; 16] };
    (registers.gpr[RSP], registers.gpr[RBP]) = (sp, 0);
    let (tables, mut unwinder) = (segment.tables(), RemoteUnwinder::default());
    let copy = StackCopy { avma: sp, bytes: &bytes };
    let found = unwinder.unwind(&tables.snapshot().unwrap(), &registers, copy, &mut |_, _| 0);
    (found.frames.len(), found.end)
}

#[test]
fn every_reason_has_its_stack() {
    // Each function saves only its return address.
    let plain = Rule { cfa_off: 8, ..Rule::plain(op::SP) };
    let within = CODE + 16;
    assert_eq!(end(Rule::STOP, &[], STACK), (1, EndReason::Root));
    assert_eq!(end(plain, &[within, within, 0], STACK), (3, EndReason::Root));
    // A function that has called nothing may be misread.
    assert_eq!(end(plain, &[0], STACK), (1, EndReason::Unproven));
    // Where a call is, the return address is gone; before it, nobody knows where it is.
    assert_eq!(end(Rule::STOP_CALLED, &[], STACK), (1, EndReason::BadRule));
    assert_eq!(end(Rule::GAP_GUESS, &[0, 0], STACK), (1, EndReason::Gap));
    assert_eq!(end(plain, &[within, CODE + CODE_LEN + 1], STACK), (3, EndReason::NoModule));
    assert_eq!(end(Rule::BAD, &[within], STACK), (1, EndReason::BadRule));
    // A return address outside code; a slot beyond the stack's end.
    assert_eq!(end(plain, &[within, 8], STACK), (2, EndReason::Range));
    assert_eq!(end(plain, &[within], STACK + STACK_LEN - 8), (2, EndReason::Range));
    assert_eq!(end(plain, &[within], STACK), (2, EndReason::Unreadable));
    let deep = vec![within; STACK_LEN as usize / 8];
    assert_eq!(end(plain, &deep, STACK), (DEPTH_MAX, EndReason::Depth));
}
