//! A function that has moved sp to another stack without a frame of its own. Its caller is found on
//! the stack that it left, or omitted.

use traceprof_abi::unwind::rule::{fp_op, op};
use traceprof_abi::unwind::{EndReason, RBP, RETURN_ADDRESS, RSP, Registers, Rule};

use super::SegmentMemory;
use crate::compile::Statistics;
use crate::{ExecRange, ModuleTable, RemoteUnwinder, StackCopy, TableWriter};

const CODE: u64 = 0x1000_0000;
/// The stack that sp is on, and the stack that fp points to.
const STACK: u64 = 0x7000_0000_0000;
const OTHER: u64 = 0x6000_0000_0000;
const FP: u64 = OTHER + 0x100;
/// Length in bytes of each of four functions: the running one, its two callers, the outermost.
const FUNCTION: u64 = 16;
/// Sizes of the callers' frames at their calls.
const SIZES: [u64; 2] = [32, 16];
/// Return addresses into the callers and the outermost function.
const RETURNS: [u64; 3] = [CODE + FUNCTION + 8, CODE + 2 * FUNCTION + 8, CODE + 3 * FUNCTION + 8];

/// Returns the rule that searches for frames of at most this size.
fn search(frame_max: i32) -> Rule {
    Rule { fp_off: FUNCTION as i16, cfa_off: frame_max, ..Rule::plain(op::FP_CALLER) }
}

/// Returns a table with the rule of the running function.
fn table(switch: Rule) -> ModuleTable {
    let saved = Rule { fp_op: fp_op::AT_CFA, fp_off: -2, ..Rule::plain(op::SP) };
    let callers = SIZES.map(|size| Rule { cfa_off: size as i32 + 8, ..saved });
    ModuleTable {
        base: 0,
        blocks: vec![0, 4],
        lows: (0..4).map(|number| number * FUNCTION as u8).collect(),
        ids: vec![0, 1, 2, 3],
        rules: vec![switch, callers[0], callers[1], Rule::STOP],
        default_rule: 0,
        rbx_slots: Vec::new(),
        statistics: Statistics::default(),
    }
}

/// Returns the callers that are found. `below` gives return addresses and their distance below the
/// frame pointer, `targets` the targets of the callers' calls.
fn callers(frame_max: i32, below: &[(u64, u64)], targets: [u64; 2]) -> (Vec<u64>, EndReason) {
    let segment = SegmentMemory::new(1 << 16);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&table(search(frame_max))).unwrap();
    let range = ExecRange { start: CODE, end: CODE + 64, bias: CODE, module: Some(module) };
    writer.publish(&[range], &[(OTHER, OTHER + 4096), (STACK, STACK + 4096)]).unwrap();
    let mut code = vec![0x90; 64];
    for (ret, target) in RETURNS.into_iter().zip(targets) {
        let at = (ret - CODE) as usize;
        code[at - 5] = 0xE8;
        let operand = (CODE + target).wrapping_sub(ret) as u32;
        code[at - 4..at].copy_from_slice(&operand.to_le_bytes());
    }
    let mut stack = vec![0; 4096];
    let outermost = [(FP + 8, RETURNS[2])];
    for (slot, word) in below.iter().map(|(by, ret)| (FP - by, *ret)).chain(outermost) {
        stack[(slot - OTHER) as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
    let mut read = |avma: u64, into: &mut [u8]| {
        let from = |base: u64, bytes: &[u8]| {
            let at = usize::try_from(avma.checked_sub(base)?).ok()?;
            bytes.get(at..at + into.len()).map(<[u8]>::to_vec)
        };
        let there = from(CODE, &code).or_else(|| from(OTHER, &stack));
        there.map_or(0, |bytes| {
            into.copy_from_slice(&bytes);
            bytes.len()
        })
    };
    let mut registers = Registers { pc: CODE + 8, sp: STACK, fp: FP, gpr: [0; 16] };
    (registers.gpr[RSP], registers.gpr[RBP]) = (STACK, FP);
    let (tables, mut unwinder) = (segment.tables(), RemoteUnwinder::default());
    let copy = StackCopy { avma: STACK, bytes: &[0; 64] };
    let found = unwinder.unwind(&tables.snapshot().unwrap(), &registers, copy, &mut read);
    let callers = found.frames[1..].iter().map(|word| word & !RETURN_ADDRESS);
    (callers.collect(), found.end)
}

#[test]
fn the_caller_of_code_on_another_stack_is_found() {
    let [caller, other, outermost] = RETURNS;
    let check = |frame_max, below: &[(u64, u64)], targets, expected: &[u64]| {
        let expected = (expected.to_vec(), EndReason::Root);
        assert_eq!(callers(frame_max, below, targets), expected, "{below:x?}");
    };
    let right = [(SIZES[0], caller)];
    check(64, &right, [0, 0], &[caller, outermost]);
    check(64, &[(SIZES[1], other)], [0, 0], &[other, outermost]);
    // A caller of another function is stale, in the same slot.
    check(64, &[right[0], (SIZES[1], other)], [0, 8 * FUNCTION], &[caller, outermost]);
    // Of two candidates that call the function, one has returned.
    check(64, &[right[0], (SIZES[1], other)], [0, 0], &[outermost]);
    // A slot that does not fit the caller's frame size.
    check(64, &[(SIZES[0] - 8, caller)], [0, 0], &[outermost]);
    // Further down than any caller's frame.
    check(24, &right, [0, 0], &[outermost]);
    check(64, &right, [8 * FUNCTION, 0], &[outermost]);
}

/// Returns the callers of code that has kept how deep it was on a stack, whose start and end are in
/// the object at `owner`. `below` gives return addresses and their distance below that end.
fn callers_by_depth(
    (owner, [start, end]): (u64, [u64; 2]),
    depth: u64,
    below: &[(u64, u64)],
) -> (Vec<u64>, EndReason) {
    let segment = SegmentMemory::new(1 << 16);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&table(Rule::depth([1, 1, 0, 1]))).unwrap();
    let range = ExecRange { start: CODE, end: CODE + 64, bias: CODE, module: Some(module) };
    writer.publish(&[range], &[(OTHER, OTHER + 4096), (STACK, STACK + 4096)]).unwrap();
    let mut other = vec![0; 4096];
    let object = [(OBJECT, start), (OBJECT + 8, end)].into_iter();
    for (at, word) in object.chain(below.iter().map(|(by, ret)| (end - by, *ret))) {
        if let Some(bytes) = other.get_mut((at - OTHER) as usize..) {
            bytes[..8].copy_from_slice(&word.to_le_bytes());
        }
    }
    let mut read = |avma: u64, into: &mut [u8]| {
        let at = avma.checked_sub(OTHER).map_or(usize::MAX, |at| at as usize);
        let there = other.get(at..).and_then(|bytes| bytes.get(..into.len()));
        there.map_or(0, |bytes| {
            into.copy_from_slice(bytes);
            bytes.len()
        })
    };
    // Go has moved the stack and updated no register.
    let mut registers = Registers { pc: CODE + 8, sp: STACK, fp: OTHER + 0xF00, gpr: [0; 16] };
    (registers.gpr[RSP], registers.gpr[RBP]) = (STACK, OTHER + 0xF00);
    let kept = [depth, owner].map(u64::to_le_bytes).concat();
    let (tables, mut unwinder) = (segment.tables(), RemoteUnwinder::default());
    let copy = StackCopy { avma: STACK, bytes: &kept };
    let found = unwinder.unwind(&tables.snapshot().unwrap(), &registers, copy, &mut read);
    let callers = found.frames[1..].iter().map(|word| word & !RETURN_ADDRESS);
    (callers.collect(), found.end)
}

/// An object that knows where a stack ends.
const OBJECT: u64 = OTHER + 0x800;

#[test]
fn a_stack_that_was_moved_is_found_by_its_end() {
    let depth = 0x80;
    let first = depth - 8;
    let returns = [
        (depth, RETURNS[0]),
        (first - SIZES[0], RETURNS[1]),
        (first - SIZES[0] - 8 - SIZES[1], RETURNS[2]),
    ];
    let found = (RETURNS.to_vec(), EndReason::Root);
    for end in [OTHER + 0x200, OTHER + 0x700] {
        assert_eq!(callers_by_depth((OBJECT, [OTHER, end]), depth, &returns), found);
    }
    // The object is not readable, is none, or what it says is no stack; or the depth is none.
    let end = OTHER + 0x200;
    let check = |owner, stack, depth, expected| {
        assert_eq!(callers_by_depth((owner, stack), depth, &returns), (vec![], expected));
    };
    check(0x5000, [OTHER, end], depth, EndReason::Unreadable);
    check(OBJECT + 1, [OTHER, end], depth, EndReason::Unreadable);
    check(OBJECT + 0x100, [OTHER, end], depth, EndReason::Unreadable);
    check(OBJECT, [end, end], depth, EndReason::Unreadable);
    check(OBJECT, [end - (4 << 30), end], depth, EndReason::Unreadable);
    check(OBJECT, [OTHER, end], 0x200, EndReason::Unreadable);
    check(OBJECT, [OTHER, end], u64::MAX / 2, EndReason::Unreadable);
    check(OBJECT, [OTHER, end], depth + 3, EndReason::Range);
}
