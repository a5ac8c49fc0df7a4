//! Code without unwind information, in a module that is not known to keep frame pointers. A caller
//! is accepted only if it calls the running function.

use traceprof_abi::unwind::rule::op;
use traceprof_abi::unwind::{EndReason, RBP, RETURN_ADDRESS, RSP, Registers, Rule};

use super::SegmentMemory;
use crate::compile::Statistics;
use crate::{ExecRange, ModuleTable, RemoteUnwinder, StackCopy, TableWriter};

const CODE: u64 = 0x1000_0000;
const STACK: u64 = 0x7000_0000_0000;
/// Length in bytes of each of four functions.
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

/// Returns code of nops with calls, each given by its return address and the function that it
/// calls.
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

/// Reads from the code at its address, all bytes or none.
fn read_code(code: &[u8], avma: u64, into: &mut [u8]) -> usize {
    let found = avma.checked_sub(CODE).and_then(|at| code.get(at as usize..)?.get(..into.len()));
    found.map_or(0, |bytes| {
        into.copy_from_slice(bytes);
        bytes.len()
    })
}

/// Returns the return addresses found from the last function on. The stack has two frames with
/// saved frame pointers and these return addresses.
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
    let mut read = |avma: u64, into: &mut [u8]| read_code(&code, avma, into);
    let (tables, mut unwinder) = (segment.tables(), RemoteUnwinder::default());
    let copy = StackCopy { avma: STACK, bytes: &bytes };
    let stack = unwinder.unwind(&tables.snapshot().unwrap(), &registers, copy, &mut read);
    let callers = stack.frames[1..].iter().map(|word| (word & !RETURN_ADDRESS) - CODE);
    (callers.collect(), stack.end)
}

#[test]
fn a_caller_is_accepted_if_it_calls_the_running_function() {
    let (inner, outer) = (FUNCTION + 12, 13);
    let found = callers(&[(inner, 3), (outer, 1)], [inner, outer]);
    assert_eq!(found, (vec![inner, outer], EndReason::Gap));
    assert_eq!(callers(&[(inner, 3), (outer, 2)], [inner, outer]).0, [inner], "calls another");
    assert!(callers(&[(inner, 2), (outer, 1)], [inner, outer]).0.is_empty());
}

/// A function may end with a call of a function that never returns.
#[test]
fn a_call_may_be_the_last_instruction_of_its_function() {
    let (inner, outer) = (2 * FUNCTION, 13);
    let found = callers(&[(inner, 3), (outer, 1)], [inner, outer]);
    assert_eq!(found, (vec![inner, outer], EndReason::Gap));
    assert_eq!(callers(&[(inner, 3), (outer, 2)], [inner, outer]).0, [inner]);
}

/// Returns the callers of a thread at the instruction after a system call, where the unwind
/// information of its function ends. The function starts at 16. `call` is the return address and
/// the target of the only call.
fn callers_after_a_syscall(call: (u64, u64), first_word: u64) -> Vec<u64> {
    let table = ModuleTable {
        blocks: vec![0, 3],
        lows: vec![0, 16, 24],
        ids: vec![0, 0, 1],
        rules: vec![Rule { cfa_off: 8, ..Rule::plain(op::SP) }, Rule::GAP_GUESS],
        ..table()
    };
    let segment = SegmentMemory::new(1 << 16);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&table).unwrap();
    let range = ExecRange { start: CODE, end: CODE + 64, bias: CODE, module: Some(module) };
    writer.publish(&[range], &[(STACK, STACK + 4096)]).unwrap();
    let bytes: Vec<u8> = [CODE + first_word, 0, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut registers = Registers { pc: CODE + 26, sp: STACK, fp: 0, gpr: [0; 16] };
    registers.gpr[RSP] = registers.sp;
    let mut code = code(&[call]);
    code[24..26].copy_from_slice(&[0x0F, 0x05]);
    let mut read = |avma: u64, into: &mut [u8]| read_code(&code, avma, into);
    let (tables, mut unwinder) = (segment.tables(), RemoteUnwinder::default());
    let copy = StackCopy { avma: STACK, bytes: &bytes };
    let stack = unwinder.unwind(&tables.snapshot().unwrap(), &registers, copy, &mut read);
    stack.frames[1..].iter().map(|word| (word & !RETURN_ADDRESS) - CODE).collect()
}

/// glibc's `clone` and `clone3` are such functions, because the child has another stack.
#[test]
fn functions_that_create_threads_have_callers() {
    assert_eq!(callers_after_a_syscall((13, 1), 13), [13]);
    assert!(callers_after_a_syscall((13, 0), 13).is_empty(), "a call of another function");
    assert!(callers_after_a_syscall((13, 1), 14).is_empty(), "no call returns there");
    assert!(callers_after_a_syscall((13, 1), 16).is_empty(), "the child's own stack");
}
