//! Generated code without unwind information, which is assumed to keep frame pointers. Frame
//! records are trusted, but no zero in them proves a root.

use traceprof_abi::unwind::{EndReason, RBP, RETURN_ADDRESS, RSP, Registers};

use super::SegmentMemory;
use crate::{ExecRange, RemoteStack, RemoteUnwinder, StackCopy, TableWriter};

const CODE: u64 = 0x1000_0000;
const CODE_LEN: u64 = 256;
/// The thread's stack, and a separate stack that the code keeps its frames on.
const STACK: u64 = 0x7000_0000_0000;
const OTHER: u64 = 0x6000_0000_0000;
/// Return addresses after the calls `call` and `call *8(%rax)`, and one that follows no call.
const CALLERS: [u64; 2] = [CODE + 0x45, CODE + 0x83];
const NO_CALLER: u64 = CODE + 0x60;

fn code() -> Vec<u8> {
    let mut code = vec![0x90; CODE_LEN as usize];
    code[0x40] = 0xE8;
    code[0x80..0x83].copy_from_slice(&[0xFF, 0x50, 8]);
    code
}

/// Unwinds a leaf in the code. `words` are the stack words from sp on, `other` those of the other
/// stack.
fn unwound(fp: u64, words: &[u64], other: &[u64]) -> (Vec<u64>, EndReason) {
    let segment = SegmentMemory::new(1 << 16);
    let mut writer = TableWriter::new(segment.words());
    let range = ExecRange { start: CODE, end: CODE + CODE_LEN, bias: 0, module: None };
    let writable = [(OTHER, OTHER + 4096), (STACK, STACK + 4096)];
    writer.publish(&[range], &writable).unwrap();
    let mut registers = Registers { pc: CODE + 8, sp: STACK, fp, gpr: [0; 16] };
    (registers.gpr[RSP], registers.gpr[RBP]) = (STACK, fp);
    let bytes =
        |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let (copy, mut page, code) = (bytes(words), bytes(other), code());
    page.resize(4096, 0);
    let mut read = |avma: u64, into: &mut [u8]| {
        let from = |base: u64, bytes: &[u8]| {
            let at = usize::try_from(avma.checked_sub(base)?).ok()?;
            bytes.get(at..at + into.len()).map(<[u8]>::to_vec)
        };
        let there = from(CODE, &code).or_else(|| from(OTHER, &page));
        there.map_or(0, |bytes| {
            into.copy_from_slice(&bytes);
            bytes.len()
        })
    };
    let (tables, mut unwinder) = (segment.tables(), RemoteUnwinder::default());
    let copy = StackCopy { avma: STACK, bytes: &copy };
    let RemoteStack { frames, end, .. } =
        unwinder.unwind(&tables.snapshot().unwrap(), &registers, copy, &mut read);
    assert_eq!(frames[0], CODE + 8);
    (frames[1..].iter().map(|word| word & !RETURN_ADDRESS).collect(), end)
}

#[test]
fn a_frame_pointer_of_zero_in_a_record_ends_the_chain_and_proves_no_root() {
    let [inner, outer] = CALLERS;
    let record = STACK + 32;
    let two = [0, 0, record, inner, 0, outer];
    assert_eq!(unwound(STACK + 16, &two, &[]), (vec![inner, outer], EndReason::Unproven));
    // The register of a leaf may contain any value.
    assert_eq!(unwound(0, &two, &[]), (vec![], EndReason::Gap));
}

#[test]
fn a_return_address_of_zero_is_no_root() {
    let [inner, _] = CALLERS;
    for (saved, ret) in [(0, 0), (STACK + 48, 0), (0, 1)] {
        assert_eq!(unwound(STACK + 16, &[0, 0, saved, ret], &[]), (vec![], EndReason::Gap));
    }
    let words = [0, 0, STACK + 32, inner, 0, 0];
    assert_eq!(unwound(STACK + 16, &words, &[]), (vec![inner], EndReason::Gap));
}

/// Code that calls C on the thread's own stack: the frame record below sp leads to another stack.
#[test]
fn frames_on_a_stack_of_the_codes_own_are_followed() {
    let [inner, outer] = CALLERS;
    // The leaf's frame record. Its caller keeps its frames elsewhere.
    let words = [0, 0, OTHER, inner];
    let check = |other: &[u64], callers: &[u64], end: EndReason| {
        assert_eq!(unwound(STACK + 16, &words, other), (callers.to_vec(), end), "{other:x?}");
    };
    check(&[0, outer], &[inner, outer], EndReason::Unproven);
    check(&[OTHER + 16, outer, 0, inner], &[inner, outer, inner], EndReason::Unproven);
    // These are not frame records.
    check(&[0, NO_CALLER], &[inner], EndReason::Gap);
    check(&[8, outer], &[inner], EndReason::Gap);
    check(&[OTHER, outer], &[inner], EndReason::Gap);
    check(&[0, STACK], &[inner], EndReason::Gap);
    check(&[0, 0], &[inner], EndReason::Gap);
}

/// Words below sp on the same stack, or far above it, are stale.
#[test]
fn no_other_stack_is_on_the_same_one() {
    let [inner, outer] = CALLERS;
    let words = [0, 0, STACK + 64, inner, 0, outer];
    let above = |fp| unwound(fp, &words, &[]);
    assert_eq!(above(STACK + 16).0, [inner], "the record at the end is not there");
    // The caller's record is below the frame that was just left.
    let under = [0, 0, STACK, inner];
    assert_eq!(unwound(STACK + 16, &under, &[]), (vec![inner], EndReason::Gap));
    let dead = [0, outer, STACK, inner, 0, outer];
    assert_eq!(unwound(STACK + 16, &dead, &[]), (vec![inner], EndReason::Gap));
}
