//! Walks over frames that are made by hand.

extern crate std;
mod compiled;

use std::collections::HashMap;
use std::vec::Vec;

use super::*;
use crate::context::RecordKind;
use crate::runtime::FRAMES_MAX;
use crate::runtime::word::{ENTRY, FOREIGN, ManagedFrame, sections};
use crate::sync::Ordering;

const POINTER: u64 = 0x7000;
const CONTEXT: u64 = 0x8000;
const ARRAY_START: u64 = 0x10_0000;
const ARRAY_LEN: u64 = 0x8000;
const END: u64 = ARRAY_START + ARRAY_LEN * 8;
const STACK: u64 = 0x7ff0_0000;
const PATH: u64 = 0x60_0000;
const CLASS_AT: u64 = 0x50_0000;

/// The layout of 3.1.
const LAYOUT: RubyLayout = RubyLayout {
    context_kind: RecordKind::Offset as u64,
    context_offset: 8u64.wrapping_neg(),
    context_module: 0,
    context_stack: 144,
    context_stack_len: 160,
    frame_len: 64,
    frame_compiled: 0,
    body_path: 64,
    body_name: 80,
    body_place: 88,
    body_place_words: 4,
    body_lines_len: 136,
    body_compiled: 280,
    class_number: 32,
    class_name: 0,
    class_object: 0,
    text_start: 16,
    reserved: [0; 2],
};

/// The layout of 3.3.
const LAYOUT_3_3: RubyLayout = RubyLayout {
    context_stack: 152,
    context_stack_len: 168,
    frame_len: 56,
    frame_compiled: 48,
    body_place_words: 3,
    body_lines_len: 128,
    body_compiled: 288,
    class_number: 0,
    class_name: 152,
    class_object: 128,
    text_start: 24,
    ..LAYOUT
};

struct Memory {
    layout: RubyLayout,
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

/// A frame of an array.
#[derive(Clone, Copy)]
enum Item {
    /// A method in Ruby that another one called.
    Method(u64),
    /// A block that native code called.
    Block(u64),
    /// A method in C.
    InC(u64),
    /// A block in C, the frame below all others, or that of a library in C.
    Nothing(u64),
}
use Item::{Block, InC, Method, Nothing};

/// The addresses of what belongs to a number: its body and its method.
fn body(number: u64) -> u64 {
    0x20_0000 + number * 0x1000
}

fn method(number: u64) -> u64 {
    body(number) + 0x800
}

impl Memory {
    /// Makes a thread of 3.1 with these frames, leaf first. Each has the position of its index.
    fn of(items: &[Item]) -> Self {
        Self::with(LAYOUT, items)
    }

    /// Makes such a thread of a version.
    fn with(layout: RubyLayout, items: &[Item]) -> Self {
        let mut memory = Self { layout, words: HashMap::new(), loads: 0 };
        let frame_len = u64::from(layout.frame_len);
        memory.set(POINTER - 8, CONTEXT);
        memory.set(CONTEXT, ARRAY_START);
        memory.set(CONTEXT + 8, ARRAY_LEN);
        memory.set(CONTEXT + 16, END - items.len() as u64 * frame_len);
        memory.set(CONTEXT + u64::from(layout.context_stack), STACK);
        memory.set(CONTEXT + u64::from(layout.context_stack_len), 0x10_0000);
        for (index, item) in items.iter().enumerate() {
            let frame = END - (items.len() - index) as u64 * frame_len;
            memory.set(frame + u64::from(layout.frame_compiled), 0);
            let environment = 0x30_0000 + index as u64 * 0x100;
            let (number, flags) = match *item {
                Method(number) => (number, 0x1111_0003),
                Block(number) => (number, 0x2222_0021),
                InC(number) => (number, 0x5555_0083),
                Nothing(flags) => (0, flags),
            };
            memory.set(frame, body(number) + 0x400 + index as u64 * 8);
            memory.set(frame + 16, body(number) + 0x200);
            memory.set(frame + 32, environment);
            memory.set(environment - 16, method(number));
            memory.set(environment, flags);
            memory.make(number, matches!(item, InC(_)));
        }
        memory
    }

    fn set(&mut self, at: u64, word: u64) {
        self.words.insert(at, word);
    }

    fn make(&mut self, number: u64, is_in_c: bool) {
        let body = body(number);
        self.set(body, 100 << 32 | 1);
        self.set(body + 8, body + 0x400);
        for at in [88, 96, 104, 112, 128, 136] {
            self.set(body + at, number + at);
        }
        self.set(body + u64::from(self.layout.body_compiled), 0);
        self.set(body + 64, PATH);
        self.set(body + 80, body + 0x600);
        self.set(body + 0x200 + 16, body);
        // A pair of paths, and a string elsewhere that does not begin at a word.
        self.set(PATH, 7 | EMBEDDING | 2 << 15);
        self.set(PATH + 16, PATH + 0x100);
        self.set(PATH + 0x100, 5 | EMBEDDING);
        self.set(PATH + 0x100 + 16, 13);
        self.set(PATH + 0x100 + 24, PATH + 0x203);
        for at in (0..32).step_by(8) {
            self.set(PATH + 0x200 + at, 0x6161_6161_6161_6161);
        }
        self.text(body + 0x600, number);
        let method = method(number);
        self.set(method, 0x1a | 6 << 12);
        self.set(method + 16, method + 0x40);
        self.set(method + 32, CLASS_AT);
        self.set(method + 0x40, u64::from(is_in_c));
        self.set(method + 0x48, body + 0x200);
        self.set(method + 0x68, number);
        self.set(CLASS_AT + 32, 77);
        self.set(CLASS_AT, 2);
        self.set(CLASS_AT + 152, CLASS_AT + 0x200);
        self.text(CLASS_AT + 0x200, 0x4141);
    }

    /// Makes a string of two bytes.
    fn text(&mut self, at: u64, text: u64) {
        self.set(at, 5 | 2 << 14);
        self.set(at + 16, 2);
        self.set(at + u64::from(self.layout.text_start), text & 0xffff | 0x7777 << 16);
    }

    fn capture_on(&mut self, stack: u64) -> (Captured, Vec<ManagedFrame>) {
        self.capture_of(CapturedThread { stack, ..CapturedThread::of(POINTER) })
    }

    fn capture_of(&mut self, thread: CapturedThread) -> (Captured, Vec<ManagedFrame>) {
        let words: Vec<AtomicU64> = (0..4096).map(|_| AtomicU64::new(0)).collect();
        let layout = self.layout;
        let captured = capture(5, &layout, thread, self, &words);
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
        self.capture_on(STACK - 0x100)
    }
}

fn shape(frames: &[ManagedFrame]) -> Vec<(u64, u8, u32)> {
    frames.iter().map(|it| (it.object, it.flags, it.position)).collect()
}

#[test]
fn frames_up_to_a_call_from_native_code_are_a_segment() {
    let bottom = Nothing(0x7999_0021);
    let mut memory =
        Memory::of(&[Method(1), Block(2), InC(3), Nothing(0x6666_0081), Method(4), bottom]);
    let (captured, frames) = memory.capture();
    assert_eq!(captured, Captured::Section { words: 9, end: SectionEnd::Root, foreign: 0 });
    let expected =
        [(method(1), 0, INNERMOST), (body(2), ENTRY, 1), (method(3), 0, 0), (method(4), 0, 4)];
    assert_eq!(shape(&frames), expected);
    let cookies: Vec<u32> = frames.iter().map(|it| it.cookie).collect();
    assert!((1..4).all(|at| !cookies[..at].contains(&cookies[at])), "{cookies:x?}");
    assert_eq!(Memory::of(&[bottom]).capture().0, Captured::Nothing);
    let mut memory = Memory::of(&[Method(1), Nothing(0x4444_0023), Method(2)]);
    assert_eq!(shape(&memory.capture().1)[1], (body(0), ENTRY, 1), "a file");
    memory.set(END - 128, 0);
    let expected = [(method(1), 0, INNERMOST), (method(2), 0, 2)];
    assert_eq!(shape(&memory.capture().1), expected, "a library in C");
}

#[test]
fn methods_are_found_behind_variables_and_not_elsewhere() {
    let object = |entry: u64, definition: u64| {
        let mut memory = Memory::of(&[Method(1)]);
        memory.set(0x30_0000 - 16, 0x40_0000);
        memory.set(0x40_0000, 0x1a | 2 << 12);
        memory.set(0x40_0008, entry);
        memory.set(method(1) + 0x40, definition);
        shape(&memory.capture().1)[0].0
    };
    assert_eq!(object(method(1), 0), method(1));
    assert_eq!(object(0, 0), body(1), "no method");
    assert_eq!(object(0x40_0000, 0), body(1), "no entry");
    assert_eq!(object(method(1), 4), body(1), "another definition");
    let mut memory = Memory::of(&[Method(1)]);
    memory.set(method(1) + 0x48, body(2) + 0x200);
    assert_eq!(shape(&memory.capture().1)[0].0, body(1), "of other code");
}

#[test]
fn a_compiled_innermost_frame_has_no_position() {
    let mut memory = Memory::of(&[Method(1), Method(2)]);
    for number in [1, 2] {
        memory.set(body(number) + 280, 0x7f00_0000_1000);
    }
    let positions: Vec<u32> = memory.capture().1.iter().map(|it| it.position).collect();
    assert_eq!(positions, [NOWHERE, 1]);
    memory.set(body(1) + 280, 2);
    assert_eq!(memory.capture().1[0].position, INNERMOST, "no code");
    memory.set(END - 128, body(1) + 0x400 + 100 * 8);
    assert_eq!(memory.capture().1[0].position, 100 | INNERMOST, "behind the last instruction");
    for wild in [0, body(1) + 0x3f8, body(1) + 0x401, body(1) + 0x400 + 101 * 8] {
        memory.set(END - 128, wild);
        assert_eq!(memory.capture().1[0].position, NOWHERE, "{wild:x}");
    }
}

#[test]
fn frames_of_another_stack_are_not_linked() {
    let mut memory = Memory::of(&[Method(1)]);
    for other in [STACK + 8, STACK - 0x10_0008] {
        let (captured, frames) = memory.capture_on(other);
        let expected = Captured::Section { words: 3, end: SectionEnd::Unlinked, foreign: 1 };
        assert_eq!(captured, expected);
        assert_eq!(shape(&frames), [(0, FOREIGN | ENTRY, 0)]);
    }
    for own in [0, STACK, STACK - 0x10_0000] {
        assert_eq!(memory.capture_on(own).1.len(), 1, "{own:x}");
    }
    memory.set(CONTEXT + 160, 0);
    assert_eq!(memory.capture_on(8).1.len(), 1, "a stack of unknown length");
}

#[test]
fn threads_without_a_context_have_no_frames() {
    for (at, expected) in [
        (POINTER - 8, Captured::Nothing),
        (CONTEXT, Captured::Nothing),
        (CONTEXT + 16, Captured::Nothing),
    ] {
        let mut memory = Memory::of(&[Method(1)]);
        memory.set(at, 0);
        assert_eq!(memory.capture().0, expected, "{at:x}");
        memory.words.remove(&at);
        assert_eq!(memory.capture().0, Captured::Unreadable, "{at:x}");
    }
    for wild in [ARRAY_START - 8, END + 8, END - 60] {
        let mut memory = Memory::of(&[Method(1)]);
        memory.set(CONTEXT + 16, wild);
        assert_eq!(memory.capture().0, Captured::Unreadable, "{wild:x}");
    }
}

#[test]
fn cookies_change_with_names_places_and_numbers() {
    let cookie = |object: u64, change: &dyn Fn(&mut Memory)| {
        let mut memory = Memory::of(&[Method(1)]);
        change(&mut memory);
        super::cookie(&LAYOUT, object, &mut memory)
    };
    let (of_body, of_method) = (cookie(body(1), &|_| {}), cookie(method(1), &|_| {}));
    assert!(of_body.is_some() && of_method.is_some() && of_body != of_method);
    let same: [&dyn Fn(&mut Memory); 4] = [
        // What is behind the last byte, and the same bytes elsewhere.
        &|it| it.set(body(1) + 0x610, 1),
        &|it| it.set(PATH + 0x210, 0x6161_6161_6161_6161),
        &|it| it.set(PATH + 0x118, PATH + 0x208),
        // Memory behind the last byte may be unreadable.
        &|it| {
            it.words.remove(&(PATH + 0x210));
        },
    ];
    for change in same {
        assert_eq!(cookie(body(1), change), of_body);
    }
    let others: [&dyn Fn(&mut Memory); 9] = [
        &|it| it.text(body(1) + 0x600, 2),
        &|it| it.set(PATH + 0x208, 0x6161_6161_6161_6261),
        &|it| it.set(PATH + 0x110, 12),
        &|it| it.set(body(1), 101 << 32 | 1),
        &|it| it.set(body(1) + 88, 1),
        &|it| it.set(body(1) + 96, 1),
        &|it| it.set(body(1) + 104, 1),
        &|it| it.set(body(1) + 112, 1),
        &|it| it.set(body(1) + 136, 1),
    ];
    for (number, change) in others.iter().enumerate() {
        let other = cookie(body(1), change);
        assert!(other.is_some() && other != of_body, "{number}");
    }
    let others: [&dyn Fn(&mut Memory); 3] =
        [&|it| it.set(method(1) + 0x68, 9), &|it| it.set(CLASS_AT + 32, 78), &|it| {
            it.set(method(1) + 32, 0x51_0000);
            it.set(0x51_0000 + 32, 77);
        }];
    for change in others {
        assert!(cookie(method(1), change).is_some_and(|it| Some(it) != of_method));
    }
    let none: [&dyn Fn(&mut Memory); 4] = [
        &|it| it.set(body(1), 9),
        &|it| it.set(body(1) + 0x600, 6 | 2 << 14),
        &|it| it.set(PATH, 7),
        &|it| it.set(PATH + 0x110, TEXT_MAX + 1),
    ];
    for change in none {
        assert_eq!(cookie(body(1), change), None);
    }
}

#[test]
fn frames_of_3_3_are_shorter_and_tell_that_they_are_compiled() {
    let mut memory = Memory::with(LAYOUT_3_3, &[Method(1), Block(2), InC(3), Method(4)]);
    let expected =
        [(method(1), 0, INNERMOST), (body(2), ENTRY, 1), (method(3), 0, 0), (method(4), 0, 3)];
    assert_eq!(shape(&memory.capture().1), expected);
    for frame in 1..=4 {
        memory.set(END - frame * 56 + 48, 0x7f00_0000_1000);
    }
    let positions: Vec<u32> = memory.capture().1.iter().map(|it| it.position).collect();
    assert_eq!(positions, [NOWHERE, 1, 0, 3]);
    memory.set(END - 4 * 56 + 48, 0);
    memory.set(body(1) + 288, 0x7f00_0000_1000);
    assert_eq!(memory.capture().1[0].position, NOWHERE);
}

#[test]
fn cookies_of_3_3_change_with_the_names_of_classes() {
    let cookie = |object: u64, change: &dyn Fn(&mut Memory)| {
        let mut memory = Memory::with(LAYOUT_3_3, &[Method(1)]);
        change(&mut memory);
        super::cookie(&LAYOUT_3_3, object, &mut memory)
    };
    let of_one = |it: &mut Memory, object: u64| {
        it.set(CLASS_AT, 2 | SINGLETON);
        it.set(CLASS_AT + 128, object);
        it.set(object, 3);
        it.set(object + 152, CLASS_AT + 0x200);
    };
    let changes: [&dyn Fn(&mut Memory); 8] = [
        &|_| {},
        &|it| it.set(method(1) + 0x68, 9),
        &|it| it.text(CLASS_AT + 0x200, 0x4142),
        &|it| it.set(CLASS_AT + 0x200 + 16, 1),
        &|it| it.set(CLASS_AT + 152, 0),
        &|it| of_one(it, CLASS_AT + 0x400),
        &|it| {
            of_one(it, CLASS_AT + 0x400);
            it.text(CLASS_AT + 0x200, 0x4142);
        },
        &|it| {
            of_one(it, CLASS_AT + 0x400);
            it.set(CLASS_AT + 0x400, 1);
        },
    ];
    let cookies = changes.map(|change| cookie(method(1), change));
    for (number, one) in cookies.iter().enumerate() {
        assert!(one.is_some() && !cookies[..number].contains(one), "{number}: {cookies:x?}");
    }
    let moved = cookie(method(1), &|it| {
        let class = CLASS_AT + 0x800;
        it.set(method(1) + 32, class);
        it.set(class, 2);
        it.set(class + 152, class + 0x300);
        it.text(class + 0x300, 0x4141);
    });
    assert_eq!(moved, cookies[0], "the same name elsewhere");
    let of_body = cookie(body(1), &|_| {});
    let others: [&dyn Fn(&mut Memory); 3] =
        [&|it| it.text(body(1) + 0x600, 2), &|it| it.set(body(1) + 104, 1), &|it| {
            it.set(body(1) + 128, 1)
        }];
    for change in others {
        assert!(of_body.is_some() && cookie(body(1), change) != of_body);
    }
    assert_eq!(cookie(body(1), &|it| it.set(body(1) + 112, 1)), of_body, "the lines");
}

#[test]
fn the_deepest_stacks_and_damaged_frames_end() {
    let mut memory = Memory::of(&[Method(1); FRAMES_MAX + 5]);
    let (captured, frames) = memory.capture();
    assert_eq!(frames.len(), FRAMES_MAX);
    assert!(matches!(captured, Captured::Section { end: SectionEnd::Depth, .. }), "{captured:?}");
    let mut memory = Memory::of(&[Nothing(0x6666_0081); 3 * FRAMES_MAX]);
    let expected = Captured::Section { words: 1, end: SectionEnd::Depth, foreign: 0 };
    assert_eq!(memory.capture().0, expected);
    let mut memory = Memory::of(&[Method(1), Nothing(0x1234_0021), Method(2)]);
    let frames = shape(&memory.capture().1);
    assert_eq!(frames[1], (0, FOREIGN | ENTRY, 0));
    let mut memory = Memory::of(&[Method(1); 3]);
    memory.words.remove(&(END - 64 + 32));
    let (captured, frames) = memory.capture();
    assert_eq!(frames.len(), 2);
    let expected = Captured::Section { words: 5, end: SectionEnd::Unreadable, foreign: 0 };
    assert_eq!(captured, expected);
    let mut state = 7u64;
    for _ in 0..2000 {
        let mut memory = Memory::of(&[Method(1), Block(2), InC(3), Method(4)]);
        let mut places: Vec<u64> = memory.words.keys().copied().collect();
        places.sort_unstable();
        for _ in 0..4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = places[(state >> 33) as usize % places.len()];
            let wild = [0, 1, u64::MAX, places[(state >> 40) as usize % places.len()], state];
            memory.set(at, wild[(state >> 20) as usize % wild.len()]);
        }
        memory.capture();
        assert!(memory.loads < 400 * FRAMES_MAX, "{} loads", memory.loads);
    }
}
