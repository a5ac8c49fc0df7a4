//! Walks over lists of frames that are made by hand.

extern crate std;
use std::collections::HashMap;
use std::vec::Vec;

use super::*;
use crate::runtime::FRAMES_MAX;
use crate::runtime::word::{ENTRY, FOREIGN, ManagedFrame, UNPROVEN, sections};
use crate::sync::Ordering;

const CURRENT: u64 = 0x7000;
const BAILOUT: u64 = 0x7008;
const THROWN: u64 = 0x7010;
const HANDLING: u64 = 0x7018;
const STACK: u64 = 0x7ff0_0000;
const LOOP_STACK: u64 = STACK + 0x100;
const FIRST: u64 = 0x10_0000;
/// The flag of a call from native code, as frames have it.
const FROM_NATIVE: u64 = 1 << 17;

/// A layout like that of 8.2.
const LAYOUT: PhpLayout = PhpLayout {
    current: CURRENT,
    bailout: BAILOUT,
    thrown: THROWN,
    handling: HANDLING,
    loop_start: 0x4000,
    loop_end: 0x5000,
    code: 88,
    code_len: 80,
    file: 152,
    lines: 160,
    generator_frame: 56,
    generator_inner: 152,
    generator_placeholder: 184,
    has_registers: 1,
};

#[derive(Default)]
struct Memory {
    words: HashMap<u64, u64>,
    loads: usize,
}

impl WordReader for Memory {
    fn load(&mut self, avma: u64) -> Option<u64> {
        assert_eq!(avma & 7, 0);
        self.loads += 1;
        self.words.get(&avma).copied()
    }
}

/// A frame of a list.
#[derive(Clone, Copy)]
enum Item {
    /// A function in PHP that another one called.
    User(u64),
    /// One that native code called.
    Entry(u64),
    /// A function in C.
    Internal(u64),
    /// A frame without a function.
    Inserted,
}
use Item::{Entry, Inserted, Internal, User};

fn function(number: u64) -> u64 {
    0x2000_0000 + number * 0x1000
}

fn frame(index: usize) -> u64 {
    FIRST + index as u64 * 0x400
}

/// Returns the address of an instruction of a function.
fn position(number: u64, index: u64) -> u64 {
    function(number) + 0x400 + index * 32
}

/// The line of an instruction.
fn line(number: u64, index: u64) -> u32 {
    (number * 100 + 10 + index) as u32
}

impl Memory {
    /// Makes a process with these frames, leaf first. Each is at the instruction of its index.
    fn of(items: &[Item]) -> Self {
        let mut memory = Self::default();
        memory.set(CURRENT, if items.is_empty() { 0 } else { frame(0) });
        memory.set(BAILOUT, STACK + 0x1000);
        memory.set(THROWN, 0);
        for at in (STACK..LOOP_STACK).step_by(8) {
            memory.set(at, at);
        }
        for (index, item) in items.iter().enumerate() {
            let at = frame(index);
            let (callee, call) = match *item {
                User(number) => (function(number), 0),
                Entry(number) => (function(number), FROM_NATIVE),
                // Native code calls functions in C, too.
                Internal(number) => (function(number), FROM_NATIVE),
                Inserted => (0, 0),
            };
            let number = callee.saturating_sub(function(0)) / 0x1000;
            memory.set(at, position(number, index as u64));
            memory.set(at + 24, callee);
            memory.set(at + 32, 0x33);
            memory.set(at + 40, call);
            memory.set(at + 48, if index + 1 == items.len() { 0 } else { frame(index + 1) });
            match item {
                Internal(number) => memory.make_function(*number, 1),
                User(number) | Entry(number) => memory.make_function(*number, 2),
                Inserted => {}
            }
        }
        memory
    }

    fn set(&mut self, at: u64, word: u64) {
        self.words.insert(at, word);
    }

    fn make_function(&mut self, number: u64, kind: u64) {
        let at = function(number);
        self.set(at, 0x55_0000_0000 | kind);
        self.set(at + 8, at + 0x200);
        self.set(at + 16, 0);
        self.set(at + 80, 8);
        self.set(at + 88, position(number, 0));
        self.set(at + 152, 0x60_0000);
        self.set(at + 160, 20 << 32 | 10);
        self.set(at + 0x200 + 8, 1 << 63 | number);
        self.set(0x60_0000 + 8, 1 << 63 | 0x77);
        for index in 0..8 {
            self.set(position(number, index) + 24, 0x3e << 32 | u64::from(line(number, index)));
        }
    }

    fn capture_by(
        &mut self,
        layout: &PhpLayout,
        thread: CapturedThread,
    ) -> (Captured, Vec<ManagedFrame>) {
        let words: Vec<AtomicU64> = (0..4096).map(|_| AtomicU64::new(0)).collect();
        let captured = capture(5, layout, thread, self, &words);
        let Captured::Section { words: count, .. } = captured else {
            return (captured, Vec::new());
        };
        let words: Vec<u64> =
            words[..count].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let section = sections(&words).next().expect("a section");
        assert_eq!(section.runtime, 5);
        (captured, section.frames().collect())
    }

    fn capture(&mut self) -> (Captured, Vec<ManagedFrame>) {
        self.capture_by(&LAYOUT, thread([frame(0), position(0, 0)]))
    }

    /// Returns the line of the innermost frame.
    fn innermost_line(&mut self, thread: CapturedThread) -> u32 {
        self.capture_by(&LAYOUT, thread).1[0].position
    }
}

fn thread([frame, position]: [u64; 2]) -> CapturedThread {
    let pointer = STACK + 0x10_0000;
    let registers = [frame, position, 0, 0, 0];
    CapturedThread {
        stack: STACK,
        loop_stack: LOOP_STACK,
        registers,
        ..CapturedThread::of(pointer)
    }
}

fn shape(frames: &[ManagedFrame]) -> Vec<(u64, u8, u32)> {
    let number = |it: &ManagedFrame| it.object.saturating_sub(function(0)) / 0x1000;
    frames.iter().map(|it| (number(it), it.flags, it.position)).collect()
}

#[test]
fn frames_up_to_a_call_from_native_code_are_a_segment() {
    let mut memory = Memory::of(&[User(1), Entry(2), Internal(3), User(4), Inserted, Entry(4)]);
    let (captured, frames) = memory.capture();
    assert_eq!(captured, Captured::Section { words: 11, end: SectionEnd::Root, foreign: 0 });
    let expected = [
        (1, 0, line(1, 0)),
        (2, ENTRY, line(2, 1)),
        (3, 0, 0),
        (4, 0, line(4, 3)),
        (4, ENTRY, line(4, 5)),
    ];
    assert_eq!(shape(&frames), expected);
    assert_eq!(frames[3].cookie, frames[4].cookie);
    assert_ne!(frames[1].cookie, frames[3].cookie);
    assert_eq!(Memory::of(&[]).capture().0, Captured::Nothing);
}

#[test]
fn frames_of_another_thread_are_not_proven() {
    let mut memory = Memory::of(&[User(1), Entry(2)]);
    for other in [0, STACK - 8, STACK + 0x20_0000] {
        memory.set(BAILOUT, other);
        let (_, frames) = memory.capture();
        assert!(frames.iter().all(|it| it.flags & UNPROVEN != 0), "{other:x}");
    }
}

#[test]
fn the_innermost_line_is_that_of_the_register() {
    let mut memory = Memory::of(&[User(1), Entry(2)]);
    let at = |current, place| thread([current, place]);
    assert_eq!(memory.innermost_line(at(frame(0), position(1, 5))), line(1, 5));
    // Of another frame, of another function, or within an instruction.
    for other in [
        at(frame(1), position(1, 5)),
        at(frame(0), position(2, 5)),
        at(frame(0), position(1, 5) + 8),
    ] {
        assert_eq!(memory.innermost_line(other), line(1, 0), "what the frame has stored");
    }
    // The loop's frame is not known.
    let unknown = CapturedThread { loop_stack: 0, ..at(frame(0), position(1, 5)) };
    assert_eq!(memory.innermost_line(unknown), 0);
    let (_, frames) = memory.capture_by(&PhpLayout { has_registers: 0, ..LAYOUT }, unknown);
    assert_eq!(frames[0].position, line(1, 0), "each instruction stores its position");
}

#[test]
fn a_line_that_a_word_on_the_stack_contradicts_is_unknown() {
    let mut memory = Memory::of(&[User(1), Entry(2)]);
    let other = thread([0, 0]);
    memory.set(STACK + 0x40, position(1, 0));
    memory.set(STACK + 0x48, position(2, 7));
    assert_eq!(memory.innermost_line(other), line(1, 0));
    memory.set(STACK + 0x48, position(1, 6));
    assert_eq!(memory.innermost_line(other), 0);
    memory.set(LOOP_STACK, position(1, 6));
    memory.set(STACK + 0x48, 0);
    assert_eq!(memory.innermost_line(other), line(1, 0), "behind the frames that count");
    let far = CapturedThread { loop_stack: STACK + 0x10_0000, ..other };
    assert_eq!(memory.innermost_line(far), 0, "too many words");
}

#[test]
fn the_line_of_an_exception_is_that_of_its_throw() {
    let mut memory = Memory::of(&[User(1), Entry(2)]);
    let other = thread([0, 0]);
    for place in [HANDLING, HANDLING + 64] {
        memory.set(frame(0), place);
        memory.set(THROWN, position(1, 4));
        assert_eq!(memory.innermost_line(other), line(1, 4));
        memory.set(THROWN, position(2, 4));
        assert_eq!(memory.innermost_line(other), 0, "of another function");
    }
    memory.set(frame(0), HANDLING + 96);
    assert_eq!(memory.innermost_line(other), 0);
}

/// Makes generators that delegate: the outermost one is in the third frame of the list.
fn delegating(count: u64) -> Memory {
    let mut memory = Memory::of(&[Entry(1), Inserted, User(2), Entry(3)]);
    let generator =
        |number: u64| if number == 0 { frame(1) - 184 } else { 0x900_0000 + number * 0x200 };
    memory.set(frame(1) + 32, generator(0));
    for number in 0..=count {
        let is_running = number == count;
        let own = if is_running { frame(0) } else { 0xb00_0000 + number * 0x100 };
        memory.set(generator(number) + 56, own);
        memory.set(generator(number) + 152, if is_running { 0 } else { generator(number + 1) });
        if is_running {
            continue;
        }
        memory.set(own, position(5 + number, 2));
        memory.set(own + 24, function(5 + number));
        memory.make_function(5 + number, 2);
    }
    memory
}

#[test]
fn generators_that_delegate_are_callers_of_the_one_that_runs() {
    let (captured, frames) = delegating(2).capture();
    assert_eq!(captured, Captured::Section { words: 11, end: SectionEnd::Root, foreign: 0 });
    let expected = [
        (1, 0, line(1, 0)),
        (6, 0, line(6, 2)),
        (5, ENTRY, line(5, 2)),
        (2, 0, line(2, 2)),
        (3, ENTRY, line(3, 3)),
    ];
    assert_eq!(shape(&frames), expected);
}

#[test]
fn the_generator_that_runs_may_be_about_to_delegate() {
    let mut memory = delegating(2);
    memory.set(0x900_0000 + 2 * 0x200 + 152, 0x98_0000);
    let (_, frames) = memory.capture();
    let numbers: Vec<u64> = shape(&frames).into_iter().map(|(number, ..)| number).collect();
    assert_eq!(numbers, [1, 6, 5, 2, 3]);
}

#[test]
fn a_generator_that_nothing_resumes_has_an_unknown_caller() {
    let mut memory = Memory::of(&[Entry(1)]);
    memory.set(frame(0) + 40, FROM_NATIVE | 1 << 24);
    let (captured, frames) = memory.capture();
    assert!(matches!(captured, Captured::Section { end: SectionEnd::Unlinked, foreign: 1, .. }));
    assert_eq!(frames[1].flags, FOREIGN | ENTRY);
}

#[test]
fn generators_that_are_not_known_are_not_left_out() {
    let unknown = [(1, 0), (0, FOREIGN | ENTRY), (2, 0), (3, ENTRY)];
    let check = |mut memory: Memory, layout: &PhpLayout| {
        let (_, frames) = memory.capture_by(layout, thread([0, 0]));
        let shape: Vec<_> =
            shape(&frames).into_iter().map(|(number, flags, _)| (number, flags)).collect();
        assert_eq!(shape, unknown);
    };
    check(delegating(2), &PhpLayout { generator_frame: ABSENT, ..LAYOUT });
    check(delegating(2), &PhpLayout { generator_placeholder: 192, ..LAYOUT });
    // They are in a circle.
    let mut circle = delegating(2);
    circle.set(0x900_0000 + 0x200 + 152, 0x900_0000 + 0x200);
    check(circle, &LAYOUT);
}

#[test]
fn many_generators_that_delegate_are_all_there() {
    let (captured, frames) = delegating(100).capture();
    assert!(matches!(captured, Captured::Section { end: SectionEnd::Root, foreign: 0, .. }));
    let expected: Vec<(u64, u8)> =
        [(1, 0)].into_iter().chain((6..105).rev().map(|number| (number, 0))).collect();
    let found: Vec<(u64, u8)> =
        shape(&frames).into_iter().map(|(number, flags, _)| (number, flags)).collect();
    assert_eq!(found, [&expected[..], &[(5, ENTRY), (2, 0), (3, ENTRY)]].concat());
}

#[test]
fn generators_behind_one_that_is_unreadable_are_left_out() {
    let mut memory = delegating(4);
    memory.words.remove(&(0xb00_0000 + 2 * 0x100 + 24));
    let (captured, frames) = memory.capture();
    assert!(matches!(captured, Captured::Section { end: SectionEnd::Unreadable, foreign: 0, .. }));
    assert_eq!(shape(&frames).into_iter().map(|(number, ..)| number).collect::<Vec<_>>(), [1]);
}

#[test]
fn the_innermost_generators_that_delegate_are_stored_if_there_is_no_room_for_all() {
    let count = FRAMES_MAX as u64 + 200;
    let (captured, frames) = delegating(count).capture();
    assert!(matches!(captured, Captured::Section { end: SectionEnd::Depth, foreign: 0, .. }));
    let found: Vec<u64> = shape(&frames).into_iter().map(|(number, ..)| number).collect();
    let innermost = (0..FRAMES_MAX as u64 - 1).map(|place| 4 + count - place);
    assert_eq!(found, [1].into_iter().chain(innermost).collect::<Vec<_>>());
}

#[test]
fn generators_without_an_end_take_a_bounded_time() {
    let inserted: Vec<Item> = [Entry(1)].into_iter().chain([Inserted; 500]).collect();
    let mut memory = Memory::of(&inserted);
    for index in 1..=500 {
        let generator = frame(index) - 184;
        memory.set(frame(index) + 32, generator);
        memory.set(generator + 56, 0x1);
        memory.set(generator + 152, generator);
    }
    memory.capture();
    assert!(memory.loads < 20_000, "{}", memory.loads);
}

#[test]
fn lists_without_an_end_are_cut() {
    let mut memory = Memory::of(&[User(1), Entry(2)]);
    memory.set(frame(1) + 48, frame(0));
    let (captured, frames) = memory.capture();
    assert!(matches!(captured, Captured::Section { end: SectionEnd::Depth, .. }));
    assert_eq!(frames.len(), FRAMES_MAX);
    let mut inserted = Memory::of(&[Inserted, Inserted]);
    inserted.set(frame(1) + 48, frame(0));
    let (captured, frames) = inserted.capture();
    assert!(matches!(captured, Captured::Section { end: SectionEnd::Depth, .. }));
    assert!(frames.is_empty() && inserted.loads < 20_000, "{}", inserted.loads);
}

#[test]
fn unreadable_memory_ends_the_list() {
    let mut memory = Memory::of(&[User(1), User(2), Entry(3)]);
    memory.words.remove(&(frame(1) + 48));
    let (captured, frames) = memory.capture();
    assert!(matches!(captured, Captured::Section { end: SectionEnd::Unreadable, .. }));
    assert_eq!(frames.len(), 1);
    memory.words.remove(&CURRENT);
    assert_eq!(memory.capture().0, Captured::Unreadable);
}

#[test]
fn what_is_no_function_has_no_name() {
    for (at, word) in [(0, 7), (8, 3), (152, 0), (152, 0x123)] {
        let mut memory = Memory::of(&[User(1), Entry(2)]);
        memory.set(function(1) + at, word);
        let (_, frames) = memory.capture();
        assert_eq!((frames[0].flags, frames[0].cookie), (FOREIGN, 0), "{at}");
    }
}

#[test]
fn cookies_are_those_of_all_names() {
    let cookie_with = |at: u64, word: u64| {
        let mut memory = Memory::of(&[User(1)]);
        memory.set(0x61_0000, 0x61_0100);
        memory.set(0x61_0008, 0x61_0200);
        memory.set(0x61_0208, 1 << 63 | 5);
        memory.set(at, word);
        cookie(&LAYOUT, function(1), &mut memory).expect("a function")
    };
    let usual = cookie_with(0x99_0000, 0);
    let at = function(1);
    let changes =
        [(at, 4), (at + 0x208, 1 << 63 | 9), (at + 16, 0x61_0000), (0x60_0008, 9), (at + 160, 11)];
    for (at, word) in changes {
        assert_ne!(cookie_with(at, word), usual, "{at:x}");
    }
    // One in the class of another function has that class, and all else of its own.
    let mut memory = Memory::of(&[User(1), User(2)]);
    memory.set(0x61_0000, 0x61_0100);
    memory.set(0x61_0008, 0x61_0200);
    memory.set(0x61_0208, 1 << 63 | 5);
    memory.set(at + 16, 0x61_0000);
    let in_class = cookie(&LAYOUT, at, &mut memory);
    memory.set(at + 16, 0);
    memory.set(function(2) + 16, 0x61_0000);
    assert_eq!(cookie_in_class(&LAYOUT, (at, function(2)), &mut memory), in_class);
    assert_ne!(cookie(&LAYOUT, at, &mut memory), in_class);
    // Where the instructions are is no part of it: the function may be compiled again.
    assert_eq!(cookie_with(at + 88, 0x123), usual);
}

#[test]
fn names_without_a_hash_have_that_of_their_bytes() {
    let text = b"hello world";
    let hash = text.iter().fold(TextHash::EMPTY, |hash, byte| hash.with(*byte)).finish();
    let cookie_of = |hash: u64| {
        let mut memory = Memory::of(&[User(1)]);
        let name = function(1) + 0x200;
        memory.set(name + 8, hash);
        memory.set(name + 16, text.len() as u64);
        memory.set(name + 24, u64::from_le_bytes(*b"hello wo"));
        memory.set(name + 32, u64::from_le_bytes(*b"rld\0zzzz"));
        cookie(&LAYOUT, function(1), &mut memory).expect("a function")
    };
    assert_eq!(cookie_of(0), cookie_of(hash));
    // As the interpreter has it for its own strings.
    let known = b"foo".iter().fold(TextHash::EMPTY, |hash, byte| hash.with(*byte)).finish();
    assert_eq!(known, 0x8000_0000_0b88_7389);
}

#[test]
fn the_list_of_a_fiber_is_cut_where_nothing_resumes_it() {
    let mut memory = Memory::of(&[Entry(1), Internal(2), Entry(3)]);
    memory.set(function(2) + 8, 0);
    let (captured, frames) = memory.capture();
    assert!(matches!(captured, Captured::Section { end: SectionEnd::Root, .. }));
    assert_eq!(frames.len(), 2, "the bottom has no function");
    memory.set(frame(1) + 48, 0);
    let (captured, frames) = memory.capture();
    assert!(matches!(captured, Captured::Section { end: SectionEnd::Unlinked, .. }));
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[1].flags, FOREIGN | ENTRY, "of the caller");
}
