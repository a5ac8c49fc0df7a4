//! Stacks unwound outside their process: the end of the copy, and the end of memory.

use traceprof_abi::unwind::{EndReason, RBP, RETURN_ADDRESS, RSP, Registers};

use super::SegmentMemory;
use crate::{ExecRange, RemoteStack, RemoteUnwinder, StackCopy, TableWriter};

const CODE: u64 = 0x1000_0000;
const STACK: u64 = 0x7000_0000_0000;
const STACK_LEN: u64 = 0x4000;
/// Bytes of a frame: its data, its frame pointer, its return address.
const FRAME: u64 = 128;

/// Returns the registers and the words from STACK on of a stack of standard frames in anonymous
/// code. Its rule follows the frame pointer, which is 0 in the outermost frame.
fn standard(frames: u64) -> (Registers, Vec<u8>) {
    let mut words = vec![0u64; (STACK_LEN / 8) as usize];
    let top = STACK + STACK_LEN - FRAME * (frames + 1);
    let fp = |frame: u64| top + FRAME * frame + FRAME - 16;
    for frame in 0..frames - 1 {
        let at = ((fp(frame) - STACK) / 8) as usize;
        words[at] = if frame + 2 < frames { fp(frame + 1) } else { 0 };
        words[at + 1] = return_address(frame + 1);
    }
    let mut registers = Registers { pc: CODE + 0x100, sp: top, fp: fp(0), gpr: [0; 16] };
    (registers.gpr[RSP], registers.gpr[RBP]) = (registers.sp, registers.fp);
    (registers, words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn return_address(frame: u64) -> u64 {
    CODE + 0x100 + frame * 0x10
}

/// Unwinds a stack of 20 frames. `copied` is the number of bytes copied, and only `readable` can be
/// read later.
fn unwind(copied: u64, readable: std::ops::Range<u64>) -> RemoteStack {
    let segment = SegmentMemory::new(1 << 20);
    let mut writer = TableWriter::new(segment.words());
    let code = ExecRange { start: CODE, end: CODE + 0x1000, bias: 0, module: None };
    writer.publish(&[code], &[(STACK, STACK + STACK_LEN)]).unwrap();
    let (registers, bytes) = standard(20);
    let start = registers.sp - STACK;
    let copy = StackCopy { avma: registers.sp, bytes: &bytes[start as usize..][..copied as usize] };
    let mut read = |avma: u64, into: &mut [u8]| {
        let there = readable.contains(&avma) && readable.contains(&(avma + into.len() as u64 - 1));
        if there {
            into.copy_from_slice(&bytes[(avma - STACK) as usize..][..into.len()]);
        }
        if there { into.len() } else { 0 }
    };
    let tables = segment.tables();
    let mut unwinder = RemoteUnwinder::default();
    let snapshot = tables.snapshot().unwrap();
    let first = unwinder.unwind(&snapshot, &registers, copy, &mut read);
    assert_eq!(unwinder.unwind(&snapshot, &registers, copy, &mut read), first, "used again");
    first
}

fn expected(frames: usize) -> Vec<u64> {
    let callers = (1..frames as u64).map(|frame| return_address(frame) | RETURN_ADDRESS);
    std::iter::once(CODE + 0x100).chain(callers).collect()
}

#[test]
fn copied_stack_needs_nothing_else() {
    let stack = unwind(FRAME * 21, 0..0);
    assert_eq!(stack, RemoteStack { frames: expected(20), end: EndReason::Unproven, late: None });
}

#[test]
fn frames_beyond_the_copy_are_marked() {
    // The copy ends in the seventh frame, where the return address to the eighth would be.
    let stack = unwind(FRAME * 7 - 8, STACK..STACK + STACK_LEN);
    assert_eq!(
        stack,
        RemoteStack { frames: expected(20), end: EndReason::Unproven, late: Some(7) }
    );
}

#[test]
fn stack_ends_where_nothing_can_be_read() {
    let stack = unwind(FRAME * 7 - 8, 0..0);
    assert_eq!((stack.frames, stack.late), (expected(7), None));
    assert_eq!(stack.end, EndReason::Gap);
    let nothing = unwind(0, 0..0);
    assert_eq!((nothing.frames, nothing.end), (expected(1), EndReason::Gap));
}
