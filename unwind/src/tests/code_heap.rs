//! Heaps of code: their tables, and stacks of HotSpot's interpreter and compiled code.

use traceprof_abi::runtime::word::{FrameInPlace, FrameWord, frames};
use traceprof_abi::unwind::code_heap::{CodeIdentity, CodeRows, HeapSpan, InterpreterLayout};
use traceprof_abi::unwind::rule::{fp_op, method, op};
use traceprof_abi::unwind::{EndReason, RBP, RETURN_ADDRESS, RSP, Registers, Rule};

use super::SegmentMemory;
use crate::{CodeHeapRef, ExecRange, RemoteUnwinder, StackCopy, TableWriter};

const LOW: u64 = 0x1000_0000;
const SPAN: HeapSpan = HeapSpan { low: LOW, high: LOW + (1 << 20), shift: 7 };
const STACK: u64 = 0x7000_0000_0000;
const LAYOUT: InterpreterLayout = InterpreterLayout { runtime: 2, position_slot: -8 };
const BLOCK: u64 = 0x1000;

/// The blocks of the test: what is in each, with all rules.
const INTERPRETER: u64 = LOW;
const COMPILED: u64 = LOW + BLOCK;
const STUB: u64 = LOW + 2 * BLOCK;
const ENTERED: u64 = LOW + 3 * BLOCK;
/// Where frames of the compiled code continue that were deoptimized, and the barrier.
const HANDLER: u64 = COMPILED + 0x80;
const BARRIER: u64 = STUB + 0x40;
/// A method, and where its code begins.
const METHOD: u64 = 0x5000_0000;
const CODE: u64 = 0x5000_1038;

const fn interpreted(location: u8) -> Rule {
    Rule { cfa_off: i32::from_le_bytes([0, 0, 0, location]), ..Rule::plain(op::INTERPRETED) }
}

/// A frame of four words.
const BODY: Rule = Rule { op: op::SP, fp_op: fp_op::AT_CFA, fp_off: -2, cfa_off: 32 };

/// A frame was removed, and the return address is below another word.
const REMOVED: Rule = Rule { fp_off: 1, cfa_off: 16, ..Rule::plain(op::RETURN_BELOW) };

struct Machine {
    segment: SegmentMemory,
}

impl Machine {
    fn new() -> Self {
        let segment = SegmentMemory::new(1 << 18);
        let mut writer = TableWriter::new(segment.words());
        let heap = writer.add_code_heap(SPAN, LAYOUT).unwrap();
        let barrier = Rule {
            fp_op: fp_op::AT_FP,
            fp_off: 8,
            cfa_off: (ENTERED + 0x20 - BARRIER) as i32,
            ..Rule::plain(op::RETURN_BARRIER)
        };
        let deoptimized = Rule { fp_off: 1, ..Rule { op: op::DEOPTIMIZED, ..BODY } };
        let sender = i32::from_le_bytes([8, 0, 0, method::IN_RBX]);
        let blocks: [(u64, &[(u32, Rule)]); 4] = [
            (
                INTERPRETER,
                &[
                    (0, interpreted(method::IN_FRAME)),
                    (0x40, Rule { cfa_off: sender, ..Rule::plain(op::SENDER_LEAF + 13) }),
                    (0x50, Rule::from(op::FROM_REGISTERS, method::IN_RBX, [13, 6, 0])),
                ],
            ),
            (COMPILED, &[(0, BODY), (0x7f, deoptimized), (0x80, BODY)]),
            (STUB, &[(0, BODY), (0x3f, barrier), (0x40, Rule::BAD), (0x60, REMOVED)]),
            (ENTERED, &[(0, Rule { cfa_off: 64, ..BODY })]),
        ];
        for (start, rows) in blocks {
            set(&mut writer, heap, start, rows);
        }
        writer.publish(&[], &[(STACK, STACK + 4096)]).unwrap();
        Self { segment }
    }

    /// Unwinds a stack of these words. Nothing else is read.
    fn unwind(&self, pc: u64, fp: u64, words: &[u64]) -> (Vec<FrameWord>, EndReason) {
        self.unwind_at(pc, (fp, STACK + 64), words)
    }

    /// Unwinds with these values of the frame pointer and of r13.
    fn unwind_at(
        &self,
        pc: u64,
        registers: (u64, u64),
        words: &[u64],
    ) -> (Vec<FrameWord>, EndReason) {
        self.unwind_from(pc, registers, STACK, words)
    }

    /// Unwinds with this value of the stack pointer, too.
    fn unwind_from(
        &self,
        pc: u64,
        (fp, r13): (u64, u64),
        sp: u64,
        words: &[u64],
    ) -> (Vec<FrameWord>, EndReason) {
        let mut registers = Registers { pc, sp, fp, gpr: [0; 16] };
        (registers.gpr[RSP], registers.gpr[RBP]) = (sp, fp);
        (registers.gpr[3], registers.gpr[13]) = (METHOD, r13);
        registers.gpr[0] = COMPILED + 0x30;
        let copy: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut read = |avma: u64, _: &mut [u8]| {
            assert!((STACK..STACK + 4096).contains(&avma), "{avma:x} is no stack");
            0
        };
        let (tables, mut unwinder) = (self.segment.tables(), RemoteUnwinder::default());
        let copy = StackCopy { avma: STACK, bytes: &copy };
        let stack = unwinder.unwind(&tables.snapshot().unwrap(), &registers, copy, &mut read);
        (frames(&stack.frames).collect(), stack.end)
    }
}

fn set(writer: &mut TableWriter<'_>, heap: CodeHeapRef, start: u64, rows: &[(u32, Rule)]) {
    let code = CodeRows { start, length: 0x100, identity: CodeIdentity::default(), rows };
    writer.set_code(heap, &(start..start + BLOCK), &code).unwrap();
}

fn pc(avma: u64) -> FrameWord {
    FrameWord::Pc(avma)
}

fn ret(avma: u64) -> FrameWord {
    FrameWord::Pc(avma | RETURN_ADDRESS)
}

fn running(saved: u64, ahead: i16) -> FrameWord {
    let frame = FrameInPlace { object: METHOD, saved, ahead };
    FrameWord::InPlace { runtime: LAYOUT.runtime, frame }
}

/// A frame of the interpreter at these words: its position, eight words below the frame pointer,
/// then the method, and the caller's stack pointer, frame pointer and pc.
fn frame(position: u64, sender: u64, fp: u64, pc: u64) -> [u64; 10] {
    [position, 0, 0, 0, 0, METHOD, 0, sender, fp, pc]
}

const NO_CODE: u64 = 0x9000;

#[test]
fn frames_of_the_interpreter_are_methods_with_positions() {
    let machine = Machine::new();
    // The caller's frame begins two words above the return address.
    let sender = STACK + 12 * 8;
    let inner = frame(CODE + 7, sender, sender + 64, INTERPRETER + 8);
    let outer = frame(CODE + 99, sender + 80, 0, NO_CODE);
    let words = [&inner[..], &[0, 0], &outer].concat();
    let check = |r13: u64, ahead: i16| {
        let expected = vec![running(CODE + 7, ahead), running(CODE + 99, 0), ret(NO_CODE)];
        let found = machine.unwind_at(INTERPRETER, (STACK + 64, r13), &words);
        assert_eq!(found, (expected, EndReason::NoModule), "{r13:x}");
    };
    // The register is newer, but may be used for something else.
    check(CODE + 9, 2);
    check(CODE, -7);
    check(CODE + 7 + 0x7fff, 0x7fff);
    check(CODE + 7 + 0x8000, 0);
    check(0, 0);
    check(u64::MAX, 0);
    // A call that took its last argument from the stack left the return address there.
    let taken = frame(CODE + 7, STACK + 72, STACK + 160, INTERPRETER + 8);
    let words = [&taken[..], &[0, 0], &frame(CODE + 99, STACK + 176, 0, NO_CODE)].concat();
    let expected = vec![running(CODE + 7, 0), running(CODE + 99, 0), ret(NO_CODE)];
    let found = machine.unwind_at(INTERPRETER, (STACK + 64, 0), &words);
    assert_eq!(found, (expected, EndReason::NoModule));
    // A native method has no position.
    let words = frame(0, STACK + 80, 0, NO_CODE);
    let found = machine.unwind_at(INTERPRETER, (STACK + 64, 8), &words);
    assert_eq!(found, (vec![running(0, 0), ret(NO_CODE)], EndReason::NoModule));
}

#[test]
fn frames_of_the_interpreter_that_lead_nowhere_end_the_walk() {
    let machine = Machine::new();
    let check = |sender: u64, fp: u64| {
        let words = frame(0, sender, 0, NO_CODE);
        let (found, end) = machine.unwind(INTERPRETER, fp, &words);
        assert_eq!((found.len(), end), (1, EndReason::Range), "{sender:x} {fp:x}");
    };
    check(STACK + 64, STACK + 64);
    check(STACK + 81, STACK + 64);
    check(STACK + 8192, STACK + 64);
    check(STACK + 80, STACK + 60);
    check(STACK + 80, STACK - 4096);
    check(STACK + 80, u64::MAX - 7);
    check(STACK + 80, 0);
    // A method that is none leaves the pc.
    let mut words = frame(0, STACK + 80, 0, NO_CODE);
    for object in [0, METHOD + 4, 1 << 47, u64::MAX - 7] {
        words[5] = object;
        let expected = (vec![pc(INTERPRETER), ret(NO_CODE)], EndReason::NoModule);
        assert_eq!(machine.unwind(INTERPRETER, STACK + 64, &words), expected);
    }
}

#[test]
fn methods_that_begin_are_known_by_registers() {
    let machine = Machine::new();
    // The caller's stack pointer is in r13: STACK + 64.
    let caller = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, NO_CODE];
    let mut words = caller;
    words[1] = COMPILED + 0x30;
    let expected = vec![running(0, 0), ret(COMPILED + 0x30), ret(NO_CODE)];
    let found = machine.unwind(INTERPRETER + 0x44, STACK + 256, &words);
    assert_eq!(found, (expected.clone(), EndReason::NoModule));
    let found = machine.unwind(INTERPRETER + 0x54, STACK + 256, &caller);
    assert_eq!(found, (expected.clone(), EndReason::NoModule));
    // The return address is where the last argument was: at the stack pointer of the caller.
    let mut words = [0; 13];
    words[8] = COMPILED + 0x30;
    words[11] = 1;
    words[12] = NO_CODE;
    let registers = (STACK + 256, STACK + 64);
    let found = machine.unwind_from(INTERPRETER + 0x44, registers, STACK + 56, &words);
    assert_eq!(found, (expected, EndReason::NoModule));
}

#[test]
fn a_removed_frame_leaves_its_return_address_below_other_words() {
    let machine = Machine::new();
    // Alignment, the return address, an exception; then the caller's frame of four words.
    let words = [0, COMPILED + 0x30, 5, 0, 0, 0, NO_CODE];
    let expected = vec![pc(STUB + 0x60), ret(COMPILED + 0x30), ret(NO_CODE)];
    assert_eq!(machine.unwind(STUB + 0x60, 0, &words), (expected, EndReason::NoModule));
}

#[test]
fn deoptimized_frames_have_their_original_address() {
    let machine = Machine::new();
    let check = |original: u64, shown: u64| {
        let words = [0, 0, 0, HANDLER, 0, original, 0, NO_CODE];
        let expected = vec![pc(COMPILED), ret(shown), ret(NO_CODE)];
        assert_eq!(machine.unwind(COMPILED, 0, &words), (expected, EndReason::NoModule));
    };
    check(COMPILED + 0x33, COMPILED + 0x33);
    check(COMPILED, HANDLER);
    check(0, HANDLER);
    check(STUB, HANDLER);
}

#[test]
fn thawed_frames_return_to_the_frame_that_entered_the_virtual_thread() {
    let machine = Machine::new();
    // Around what, which virtual thread, its frozen frames, flags and arguments, another frame.
    const ENTRY: [u64; 6] = [9, 0, 0x6000_0000, 0x6000_1000, 1 | 2 << 32, STACK + 4000];
    let found = |fp: u64, between: &[u64], entry: &[u64; 6]| {
        let mut words = vec![0, 0, fp, BARRIER];
        words.extend(between);
        words.extend(entry);
        words.extend([STACK + 4096 - 16, COMPILED + 8, 0, 0, 0, NO_CODE]);
        machine.unwind(COMPILED, 0, &words)
    };
    let (entered, caller) = (ret(ENTERED + 0x20), ret(COMPILED + 8));
    let expected = vec![pc(COMPILED), ret(BARRIER), entered, caller, ret(NO_CODE)];
    for between in [0, 3, 20, 200] {
        let fp = STACK + (4 + between as u64 + 6) * 8;
        for fp in [fp, 0, STACK, STACK + 8, fp + 8] {
            let found = found(fp, &vec![0; between], &ENTRY);
            assert_eq!(found, (expected.clone(), EndReason::NoModule), "{between} {fp:x}");
        }
    }
    // The return address of a call that has ended, with other words than those of an entry.
    for stale in [[7; 6], [0, 0, 0, 8, 1, 0], [0, 8, 8, 8, 1, 0], [0, 0, 8, 8, 0, 0]] {
        let between = [&stale[..], &[0, COMPILED + 8]].concat();
        let found = found(0, &between, &ENTRY);
        assert_eq!(found, (expected.clone(), EndReason::NoModule), "{stale:?}");
    }
    let (found, end) = machine.unwind(COMPILED, 0, &[[0, 0, 0, BARRIER], [8; 4]].concat());
    assert_eq!((found.len(), end), (2, EndReason::Unreadable));
}

#[test]
fn code_is_replaced_and_removed_while_a_snapshot_is_in_use() {
    let segment = SegmentMemory::new(1 << 18);
    let mut writer = TableWriter::new(segment.words());
    let heap = writer.add_code_heap(SPAN, LAYOUT).unwrap();
    let anonymous = |start, end| ExecRange { start, end, bias: 0, module: None };
    let around = anonymous(LOW - 4096, SPAN.high + 4096);
    writer.publish(&[around, anonymous(LOW, LOW + 8192)], &[]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();
    let heap_at = |avma: u64| snapshot.range(avma).and_then(|range| snapshot.heap(range));
    let rule = |avma: u64| heap_at(avma).unwrap().table(avma).map(|table| table.rule(avma).cfa_off);
    let rows = |cfa_off: i32| [(0, Rule { cfa_off, ..BODY })];
    assert!(heap_at(LOW - 1).is_none() && heap_at(SPAN.high).is_none());
    assert_eq!(snapshot.range(LOW - 1).map(|range| range.end), Some(LOW));
    assert_eq!(snapshot.range(SPAN.high).map(|range| range.start), Some(SPAN.high));
    assert_eq!(rule(LOW), None);
    set(&mut writer, heap, LOW, &rows(8));
    set(&mut writer, heap, LOW + BLOCK, &rows(16));
    assert_eq!([LOW, LOW + BLOCK].map(rule), [Some(8), Some(16)]);
    // One block takes the place of the end of the first and of the second.
    set(&mut writer, heap, LOW + BLOCK - 128, &rows(24));
    assert_eq!([LOW, LOW + BLOCK].map(rule), [None, Some(24)]);
    assert_eq!(rule(LOW + BLOCK + 0x80), None, "behind its code");
    writer.remove_code(heap, &(LOW + BLOCK..LOW + BLOCK + 1));
    assert_eq!(rule(LOW + BLOCK), None);
    writer.remove_code(heap, &(0..1));
}

#[test]
fn tables_of_code_are_reused_only_after_a_grace() {
    let segment = SegmentMemory::new(1 << 18);
    let mut writer = TableWriter::new(segment.words());
    let heap = writer.add_code_heap(SPAN, LAYOUT).unwrap();
    writer.publish(&[], &[]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();
    let reader = snapshot.heap(snapshot.range(LOW).unwrap()).unwrap();
    let rows = |cfa_off: i32| [(0, Rule { cfa_off, ..BODY })];
    set(&mut writer, heap, LOW, &rows(8));
    let first = reader.table(LOW).unwrap();
    let used = writer.used();
    writer.begin_grace();
    // It was replaced after the grace began.
    set(&mut writer, heap, LOW, &rows(16));
    writer.recycle();
    set(&mut writer, heap, LOW, &rows(24));
    assert!(writer.used() > used);
    assert_eq!(first.rule(LOW).cfa_off, 8, "a handler may still read it");
    for round in 0..50 {
        writer.begin_grace();
        writer.recycle();
        let used = writer.used();
        set(&mut writer, heap, LOW, &rows(round * 8));
        assert_eq!(writer.used(), used, "freed tables have room enough");
        assert_eq!(reader.table(LOW).unwrap().rule(LOW).cfa_off, round * 8);
    }
}

#[test]
fn a_table_of_earlier_code_is_no_table() {
    let check = |at: u64, number: u64, used: u64| {
        let segment = SegmentMemory::new(1 << 18);
        let mut writer = TableWriter::new(segment.words());
        let heap = writer.add_code_heap(SPAN, LAYOUT).unwrap();
        let identity = CodeIdentity { at, value: 77, used_before: 12 };
        let code = CodeRows { start: COMPILED + 0x20, length: 0x100, identity, rows: &[(0, BODY)] };
        writer.set_code(heap, &(COMPILED..COMPILED + BLOCK), &code).unwrap();
        writer.publish(&[], &[(STACK, STACK + 4096)]).unwrap();
        let registers = Registers { pc: COMPILED + 0x30, sp: STACK, fp: 0, gpr: [0; 16] };
        let words = [0, 0, 0, NO_CODE];
        let copy: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        // The number is in the upper half of the word.
        let words = [(at & !7, number << 32 | 0xffff_ffff), ((at - 12) & !7, used)];
        let mut read = |avma: u64, into: &mut [u8]| {
            for (place, word) in words {
                let Some(at) = place.checked_sub(avma) else { continue };
                if let Some(into) = into.get_mut(at as usize..).and_then(|it| it.get_mut(..8)) {
                    into.copy_from_slice(&word.to_le_bytes());
                }
            }
            into.len()
        };
        let (tables, mut unwinder) = (segment.tables(), RemoteUnwinder::default());
        let copy = StackCopy { avma: STACK, bytes: &copy };
        let stack = unwinder.unwind(&tables.snapshot().unwrap(), &registers, copy, &mut read);
        (frames(&stack.frames).collect::<Vec<_>>(), stack.end)
    };
    let top = pc(COMPILED + 0x30);
    let before = COMPILED + 0x14;
    let found = (vec![top, ret(NO_CODE)], EndReason::NoModule);
    let unknown = (vec![top], EndReason::NoModule);
    // The flag is the first byte of its word.
    assert_eq!(check(before, 77, 0xff01), found);
    assert_eq!(check(before, 78, 1), unknown, "another compilation");
    assert_eq!(check(before, 0, 1), unknown);
    assert_eq!(check(before, 77, 0xff00), unknown, "a block that was freed");
    // These need not be mapped.
    assert_eq!(check(COMPILED + 0x34, 77, 1), unknown, "behind the code");
    assert_eq!(check(SPAN.low - 4, 77, 1), unknown, "before the heap");
}

#[test]
fn code_that_has_no_room_has_no_table_until_others_leave() {
    let segment = SegmentMemory::new(1 << 14);
    let mut writer = TableWriter::new(segment.words());
    let heap = writer.add_code_heap(SPAN, LAYOUT).unwrap();
    writer.publish(&[], &[]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();
    let reader = snapshot.heap(snapshot.range(LOW).unwrap()).unwrap();
    let rows: Vec<(u32, Rule)> = (0..40).map(|row| (row, BODY)).collect();
    let block = |number: u64| LOW + number * 128..LOW + (number + 1) * 128;
    let identity = CodeIdentity::default();
    let place = |writer: &mut TableWriter<'_>, number: u64, rows: &[(u32, Rule)]| {
        let code = CodeRows { start: block(number).start, length: 128, identity, rows };
        writer.set_code(heap, &block(number), &code)
    };
    let fitting = (0..64).take_while(|number| place(&mut writer, *number, &rows).is_ok()).count();
    assert!((2..64).contains(&fitting), "{fitting}");
    let has_table = |number: u64| reader.table(block(number).start).is_some();
    assert!(has_table(0) && !has_table(fitting as u64));
    // Other code in the place of a block whose new table has no room.
    assert!(place(&mut writer, 0, &rows).is_err());
    assert!(!has_table(0), "a table of earlier code");
    assert!(place(&mut writer, fitting as u64, &rows).is_err(), "a handler may still read it");
    writer.begin_grace();
    writer.recycle();
    // Smaller ones fit as well.
    assert!(place(&mut writer, fitting as u64, &rows[..3]).is_ok());
    assert!(has_table(fitting as u64) && has_table(1));
}

#[test]
fn heaps_that_leave_give_their_memory_back() {
    let segment = SegmentMemory::new(1 << 18);
    let mut writer = TableWriter::new(segment.words());
    let mut used = Vec::new();
    for round in 0..200 {
        let heap = writer.add_code_heap(SPAN, LAYOUT).unwrap();
        for block in 0..20 {
            set(&mut writer, heap, LOW + block * 0x1_0000, &[(0, BODY)]);
        }
        writer.publish(&[], &[]).unwrap();
        let tables = segment.tables();
        let snapshot = tables.snapshot().unwrap();
        let reader = snapshot.heap(snapshot.range(LOW).unwrap()).unwrap();
        writer.remove_code_heaps();
        writer.begin_grace();
        writer.recycle();
        // The snapshot still names the heap, so its memory is no other's.
        let other = writer.add_code_heap(SPAN, LAYOUT).unwrap();
        set(&mut writer, other, LOW, &[(0, Rule { cfa_off: 8, ..BODY })]);
        assert_eq!(reader.table(LOW).map(|table| table.rule(LOW)), Some(BODY), "round {round}");
        writer.remove_code_heaps();
        writer.publish(&[], &[]).unwrap();
        writer.begin_grace();
        writer.recycle();
        used.push(writer.used());
    }
    assert_eq!(used[10], used[199], "{used:?}");
}

#[test]
fn heaps_that_do_not_fit_are_refused() {
    let segment = SegmentMemory::new(1 << 12);
    let mut writer = TableWriter::new(segment.words());
    let large = HeapSpan { high: LOW + (1 << 32), ..SPAN };
    assert!(writer.add_code_heap(large, LAYOUT).is_err());
    assert!(writer.add_code_heap(HeapSpan { high: LOW, ..SPAN }, LAYOUT).is_err());
    let heap = writer.add_code_heap(SPAN, LAYOUT).unwrap();
    let identity = CodeIdentity::default();
    let code = CodeRows { start: LOW, length: 1, identity, rows: &[] };
    assert!(writer.set_code(heap, &(LOW..LOW + 1), &code).is_err(), "no room for a page");
}
