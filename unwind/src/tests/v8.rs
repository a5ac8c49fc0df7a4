//! Frames of V8, whose functions are in slots, and its builtins without a frame.

use traceprof_abi::runtime::RuntimeBlock;
use traceprof_abi::runtime::v8::V8Layout;
use traceprof_abi::runtime::word::{FrameFunction, FrameWord, frames};
use traceprof_abi::unwind::rule::{Rule, op};
use traceprof_abi::unwind::{RBP, RETURN_ADDRESS, RSP, Registers};

use super::SegmentMemory;
use crate::compile::{Statistics, block_index};
use crate::rows::Row;
use crate::{ExecRange, ModuleTable, RemoteUnwinder, StackCopy, TableWriter};

/// Generated code, then builtins of which the second half has no frame.
const CODE: u64 = 0x1000_0000;
const BUILTINS: u64 = 0x2000_0000;
const FRAMELESS: u64 = BUILTINS + 0x80;
const LEN: u64 = 256;
/// Behind calls.
const INNER: u64 = CODE + 0x25;
const OUTER: u64 = CODE + 0x45;
const STACK: u64 = 0x7000_0000_0000;
const HEAP: u64 = 0x3000_0000;

const LAYOUT: V8Layout = V8Layout {
    function_first: 0x810,
    function_last: 0x81f,
    shared_type: 0x120,
    bytecodes_type: 0xba,
    map_instance_type: 12,
    function_shared: 32,
    shared_script: 40,
    shared_literal: 60,
    shared_unique: 64,
    script_id: 64,
    reserved: [0; 2],
};
/// Objects in the heap: two functions, what they share, bytecodes and the maps.
const FUNCTIONS: [u64; 2] = [HEAP, HEAP + 0x40];
const SHARED: [u64; 2] = [HEAP + 0x100, HEAP + 0x180];
const BYTECODES: u64 = HEAP + 0x200;
const MAPS: [u64; 2] = [HEAP + 0x300, HEAP + 0x340];

fn heap() -> Vec<u8> {
    let mut words = vec![0u64; 4096 / 8];
    let mut set = |avma: u64, word: u64| words[(avma - HEAP) as usize / 8] = word;
    for (number, (function, shared)) in FUNCTIONS.into_iter().zip(SHARED).enumerate() {
        set(function, MAPS[0] + 1);
        set(function + 32, shared + 1);
        set(shared + 64, 70 + number as u64);
    }
    set(BYTECODES, MAPS[1] + 1);
    set(MAPS[0] + 8, 0x811 << 32);
    set(MAPS[1] + 8, 0xba << 32);
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn code() -> Vec<u8> {
    let mut code = vec![0x90; LEN as usize];
    for ret in [INNER, OUTER] {
        code[(ret - CODE - 5) as usize] = 0xE8;
    }
    code[0x60] = 0x55;
    code
}

/// Returns the table of the builtins.
fn builtins() -> ModuleTable {
    let rows = [Row { offset: 0, rule: 0 }, Row { offset: 0x80, rule: 1 }];
    ModuleTable {
        base: 0,
        blocks: block_index(&rows, LEN as u32),
        lows: rows.iter().map(|row| row.offset as u8).collect(),
        ids: rows.iter().map(|row| row.rule).collect(),
        rules: vec![Rule::GAP_FP, Rule::frameless(16)],
        default_rule: 0,
        rbx_slots: Vec::new(),
        statistics: Statistics::default(),
    }
}

/// The words of a stack from sp on: two frames, each with its slots below the frame pointer.
fn stack() -> Vec<u64> {
    let smi = |number: u64| number << 32;
    vec![
        // What a builtin without a frame has pushed, and its return address.
        0,
        INNER,
        // The frame of the first function: offset, bytecodes, another slot, function, context.
        smi(90),
        BYTECODES + 1,
        0,
        FUNCTIONS[0] + 1,
        HEAP + 0x801,
        // Its record, at word 7.
        STACK + 14 * 8,
        OUTER,
        // The frame of the second, which is compiled.
        smi(7),
        smi(8),
        0,
        FUNCTIONS[1] + 1,
        HEAP + 0x801,
        // Its record, at word 14.
        0,
        OUTER,
        0,
        0,
    ]
}

const FP: u64 = STACK + 7 * 8;

/// Returns the frames of a leaf at a pc, with the stack's words from this one on.
fn unwound(pc: u64, from: usize, words: &[u64], reads_objects: bool) -> Vec<FrameWord> {
    let segment = SegmentMemory::new(1 << 16);
    let mut writer = TableWriter::new(segment.words());
    let module = writer.add_module(&builtins()).unwrap();
    writer.set_runtimes(vec![RuntimeBlock::of_v8(&LAYOUT)]);
    let anonymous = ExecRange { start: CODE, end: CODE + LEN, bias: 0, module: None };
    let (start, end) = (BUILTINS, BUILTINS + LEN);
    let file = ExecRange { start, end, bias: BUILTINS, module: Some(module) };
    writer.publish(&[anonymous, file], &[(STACK, STACK + 4096)]).unwrap();
    let sp = STACK + 8 * from as u64;
    let mut registers = Registers { pc, sp, fp: FP, gpr: [0; 16] };
    (registers.gpr[RSP], registers.gpr[RBP]) = (sp, FP);
    let bytes: Vec<u8> = words[from..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let memory = [(CODE, code()), (HEAP, heap())];
    let mut read = |avma: u64, into: &mut [u8]| {
        let found = memory.iter().find_map(|(base, bytes)| {
            let at = usize::try_from(avma.checked_sub(*base)?).ok()?;
            bytes.get(at..at + into.len())
        });
        found.map_or(0, |bytes| {
            into.copy_from_slice(bytes);
            bytes.len()
        })
    };
    let mut unwinder = match reads_objects {
        true => RemoteUnwinder::with_objects(),
        false => RemoteUnwinder::default(),
    };
    let tables = segment.tables();
    let copy = StackCopy { avma: sp, bytes: &bytes };
    let stack = unwinder.unwind(&tables.snapshot().unwrap(), &registers, copy, &mut read);
    frames(&stack.frames).collect()
}

/// Returns the first frame. Only the engine's own code has an offset.
fn first(pc: u64) -> FrameWord {
    let is_builtin = pc & !RETURN_ADDRESS >= BUILTINS;
    let position = if is_builtin { 90 } else { FrameFunction::NOWHERE };
    FrameWord::WithFunction(pc, FrameFunction { object: SHARED[0], position, cookie: 70 })
}

fn second() -> FrameWord {
    let position = FrameFunction::NOWHERE;
    let function = FrameFunction { object: SHARED[1], position, cookie: 71 };
    FrameWord::WithFunction(OUTER | RETURN_ADDRESS, function)
}

const LAST: FrameWord = FrameWord::Pc(OUTER | RETURN_ADDRESS);

#[test]
fn frames_have_the_functions_of_their_slots() {
    for pc in [CODE + 8, BUILTINS + 8] {
        assert_eq!(unwound(pc, 2, &stack(), true), [first(pc), second(), LAST]);
    }
    let nothing = |pc| FrameWord::WithFunction(pc, FrameFunction::UNREADABLE);
    let plain = [nothing(CODE + 8), nothing(OUTER | RETURN_ADDRESS), LAST];
    assert_eq!(unwound(CODE + 8, 2, &stack(), false), plain, "the thread has run on");
}

#[test]
fn slots_below_the_stack_pointer_are_not_read() {
    // The frame has its context, or not even that.
    for from in [6, 7] {
        let expected = [FrameWord::Pc(CODE + 8), second(), LAST];
        assert_eq!(unwound(CODE + 8, from, &stack(), true), expected, "{from}");
    }
    // Without bytecodes there is no offset.
    let nowhere = FrameFunction { object: SHARED[0], position: u32::MAX, cookie: 70 };
    let expected = [FrameWord::WithFunction(BUILTINS + 8, nowhere), second(), LAST];
    assert_eq!(unwound(BUILTINS + 8, 4, &stack(), true), expected);
}

#[test]
fn frames_without_a_function_say_whether_they_should_have_one() {
    let mut words = stack();
    // The type of a frame of a stub.
    let before = std::mem::replace(&mut words[6], 0x24);
    let expected = [FrameWord::Pc(CODE + 8), second(), LAST];
    assert_eq!(unwound(CODE + 8, 2, &words, true), expected);
    words[6] = before;
    // Another object; an object that the collector has moved; unreadable memory.
    for word in [BYTECODES + 1, HEAP + 0x801, 0x7777_0001] {
        words[5] = word;
        let unreadable = FrameWord::WithFunction(CODE + 8, FrameFunction::UNREADABLE);
        let expected = [unreadable, second(), LAST];
        assert_eq!(unwound(CODE + 8, 2, &words, true), expected, "{word:x}");
    }
}

#[test]
fn leaves_without_a_frame_return_to_the_function_that_has_one() {
    // A builtin that has pushed a word, and a function before its `push %rbp`.
    let inner = first(INNER | RETURN_ADDRESS);
    let expected = [FrameWord::Pc(FRAMELESS + 8), inner, second(), LAST];
    assert_eq!(unwound(FRAMELESS + 8, 0, &stack(), true), expected);
    let expected = [FrameWord::Pc(CODE + 0x60), inner, second(), LAST];
    assert_eq!(unwound(CODE + 0x60, 1, &stack(), true), expected);
}

#[test]
fn a_builtin_that_was_jumped_to_has_the_frame_of_its_caller() {
    // What is in the place of the return address is no address behind a call.
    for word in [BYTECODES + 1, 0, 5 << 32, OUTER + 1, CODE + LEN + 5] {
        let mut words = stack();
        words[1] = word;
        let found = unwound(FRAMELESS + 8, 0, &words, true);
        assert_eq!(found, [first(FRAMELESS + 8), second(), LAST], "{word:x}");
    }
    assert_eq!(Rule::frameless(16).op, op::GAP_FP);
}
