//! Frames that compiled code makes, against code of each version.

use super::*;

/// Code that 3.1.2 has compiled for a call of a method, from a `mov` of its environment on, and
/// that for a call of a method in C. They make the frame at byte 8, and store what it runs last
/// at bytes 0x36, 0x39 or 0x36.
const CALL: [u8; 0x42] = [
    0x48, 0xc7, 0x40, 0xf8, 3, 0, 0x11, 0x11, 0x49, 0x83, 0xed, 0x40, 0x4d, 0x89, 0x6c, 0x24, 0x10,
    0x48, 0x8b, 0x4b, 0xf8, 0x49, 0x89, 0x4d, 0x18, 0x48, 0x89, 0xc3, 0x49, 0x89, 0x45, 0x08, 0x49,
    0x89, 0x45, 0x30, 0x48, 0x83, 0xe8, 0x08, 0x49, 0x89, 0x45, 0x20, 0x48, 0xb8, 0xc8, 0x81, 0x3e,
    0xe5, 0xb7, 0x7f, 0, 0, 0x49, 0x89, 0x45, 0x10, 0x49, 0xc7, 0x45, 0x28, 0, 0, 0, 0,
];
const CALL_OF_C: [u8; 0x42] = [
    0x48, 0xc7, 0x40, 0xf8, 0x83, 0, 0x55, 0x55, 0x49, 0x83, 0x6c, 0x24, 0x10, 0x40, 0x49, 0x8b,
    0x4c, 0x24, 0x10, 0x48, 0xc7, 0x01, 0, 0, 0, 0, 0x48, 0x89, 0x41, 0x08, 0x48, 0xc7, 0x41, 0x10,
    0, 0, 0, 0, 0x48, 0xc7, 0x41, 0x28, 0, 0, 0, 0, 0x48, 0x89, 0x41, 0x30, 0x48, 0x83, 0xe8, 0x08,
    0x48, 0x89, 0x41, 0x20, 0x48, 0x8b, 0x43, 0x18, 0x48, 0x89, 0x41, 0x18,
];

#[test]
fn frames_that_compiled_code_is_about_to_make_are_left_out() {
    // What the frame belongs to begins with the word behind the receiver's offset.
    let far = {
        let mut code = CALL.to_vec();
        code.splice(0x11..0x15, [0x48, 0x8b, 0x8b, 0x88, 0xff, 0xff, 0xff]);
        code
    };
    let codes = [(CALL.to_vec(), 0x11, 0x36), (far, 0x11, 0x39), (CALL_OF_C.to_vec(), 0xe, 0x36)];
    for ((code, made, stored), shift) in
        codes.iter().flat_map(|it| [0, 3, 7].map(|shift| (it, shift)))
    {
        let mut memory = Memory::of(&[Method(1), Method(2), Method(3)]);
        let start = 0x70_0000 + shift;
        let mut bytes = std::vec![0x90; 160];
        bytes[shift as usize..][..code.len()].copy_from_slice(code);
        for (word, at) in bytes.chunks_exact(8).zip((0x70_0000..).step_by(8)) {
            memory.set(at, u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        for at in 0..code.len() as u64 {
            let thread = CapturedThread { pc: start + at, ..CapturedThread::of(POINTER) };
            let frames = shape(&memory.capture_of(thread).1);
            let expected = [(method(1), 0, INNERMOST), (method(2), 0, 1), (method(3), 0, 2)];
            let is_incomplete = (*made..=*stored).contains(&at);
            assert_eq!(frames, &expected[usize::from(is_incomplete)..], "{shift}: {at:#x}");
        }
    }
}

/// Compiled code of 3.3 completes a frame before it is the innermost one.
#[test]
fn no_code_is_looked_at_for_frames_of_3_3() {
    let mut memory = Memory::with(LAYOUT_3_3, &[Method(1), Method(2)]);
    for (word, at) in CALL.chunks_exact(8).zip((0x70_0000..).step_by(8)) {
        memory.set(at, u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    let thread = CapturedThread { pc: 0x70_0020, ..CapturedThread::of(POINTER) };
    let expected = [(method(1), 0, INNERMOST), (method(2), 0, 1)];
    assert_eq!(shape(&memory.capture_of(thread).1), expected);
    let with_code = std::mem::take(&mut memory.loads);
    memory.capture();
    assert_eq!(memory.loads, with_code);
}
