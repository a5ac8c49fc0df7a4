//! Code without unwind information and without frame pointers that are known to be kept: only what
//! calls the function that runs is believed.

use traceprof_abi::unwind::{EndReason, RBP, RETURN_ADDRESS, RSP, Registers, Rule};

use super::SegmentMemory;
use crate::unwind::compile::Statistics;
use crate::unwind::{ExecRange, ModuleTable, RemoteUnwinder, StackCopy, TableWriter};

const CODE: u64 = 0x1000_0000;
const STACK: u64 = 0x7000_0000_0000;
/// Bytes of each of four functions.
const FUNCTION: u64 = 16;

fn table() -> ModuleTable {
    ModuleTable {
        base: 0,
        blocks: vec![0, 4],
        lows: (0..4).map(|number| number * FUNCTION as u8).collect(),
        ids: vec![0, 1, 0, 1],
        rules: Rule::GUESSES.to_vec(),
        default_rule: 0,
        rbx_slots: Vec::new(),
        statistics: Statistics::default(),
    }
}

/// Code of nops, but for calls: where each of them returns to, and to which function it leads.
fn code(calls: &[(u64, u64)]) -> Vec<u8> {
    let mut code = vec![0x90; 4 * FUNCTION as usize];
    for (ret, function) in calls {
        let at = *ret as usize;
        code[at - 5] = 0xE8;
        let operand = (function * FUNCTION).wrapping_sub(*ret) as u32;
        code[at - 4..at].copy_from_slice(&operand.to_le_bytes());
    }
    code
}

/// The return addresses that are found from the last function on, with the saved frame pointers and
/// return addresses of two frames on the stack.
fn callers(calls: &[(u64, u64)], returns: [u64; 2]) -> (Vec<u64>, EndReason) {
    let segment = SegmentMemory::new(1 << 16);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&table()).unwrap();
    let end = CODE + 4 * FUNCTION;
    let range = ExecRange { start: CODE, end, bias: CODE, module: Some(module) };
    writer.publish(&[range], &[(STACK, STACK + 4096)]).unwrap();
    let [inner, outer] = returns.map(|offset| CODE + offset);
    let words = [0, 0, STACK + 48, inner, 0, 0, 0, outer];
    let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    let mut registers =
        Registers { pc: CODE + 3 * FUNCTION + 8, sp: STACK, fp: STACK + 16, gpr: [0; 16] };
    (registers.gpr[RSP], registers.gpr[RBP]) = (registers.sp, registers.fp);
    let code = code(calls);
    let mut read = |avma: u64, into: &mut [u8]| {
        let there =
            avma.checked_sub(CODE).and_then(|at| code.get(at as usize..)?.get(..into.len()));
        there.map_or(0, |bytes| {
            into.copy_from_slice(bytes);
            bytes.len()
        })
    };
    let (tables, mut unwinder) = (segment.tables(), RemoteUnwinder::default());
    let copy = StackCopy { avma: STACK, bytes: &bytes };
    let stack = unwinder.unwind(&tables.snapshot().unwrap(), &registers, copy, &mut read);
    let callers = stack.frames[1..].iter().map(|word| (word & !RETURN_ADDRESS) - CODE);
    (callers.collect(), stack.end)
}

#[test]
fn a_caller_is_believed_if_it_calls_the_function_that_runs() {
    let (inner, outer) = (FUNCTION + 12, 13);
    let found = callers(&[(inner, 3), (outer, 1)], [inner, outer]);
    assert_eq!(found, (vec![inner, outer], EndReason::Gap));
    assert_eq!(callers(&[(inner, 3), (outer, 2)], [inner, outer]).0, [inner], "calls another");
    assert!(callers(&[(inner, 2), (outer, 1)], [inner, outer]).0.is_empty());
}

/// A function that calls what never returns may end with the call.
#[test]
fn a_call_may_be_the_last_instruction_of_its_function() {
    let (inner, outer) = (2 * FUNCTION, 13);
    let found = callers(&[(inner, 3), (outer, 1)], [inner, outer]);
    assert_eq!(found, (vec![inner, outer], EndReason::Gap));
    assert_eq!(callers(&[(inner, 3), (outer, 2)], [inner, outer]).0, [inner]);
}
