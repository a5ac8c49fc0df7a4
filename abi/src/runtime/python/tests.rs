//! Walks over lists of frames that are made by hand.

extern crate std;
use std::collections::HashMap;
use std::vec::Vec;

use super::*;
use crate::context::RecordKind;
use crate::runtime::word::{EMPTY, UNPROVEN, sections};
use crate::runtime::{NamelessTask, TASK_CUT, TASK_NUMBER, TASK_WORDS};
use crate::sync::Ordering;

const THREAD: u64 = 0x7000;
const STATE: u64 = 0x8000;
const TYPE: u64 = 0x9000;
const FIRST: u64 = 0x10_0000;

/// A layout like that of 3.12, with a key.
fn layout() -> PythonLayout {
    PythonLayout {
        state_kind: RecordKind::Offset as u64,
        state_offset: 8u64.wrapping_neg(),
        state_module: 0,
        key: 0x318,
        key_value: u64::MAX,
        current_state: 0,
        code_type: TYPE,
        code_mask: !3,
        interpreters: 0,
        task: TaskLayout::NONE,
        state_frame: 56,
        chain_frame: 0,
        frame_previous: 8,
        frame_code: 0,
        frame_instruction: 56,
        instruction: Instruction::Pointer as u16,
        frame_entry: ABSENT,
        frame_owner: 70,
        owner_shim: 3,
        is_each_entry: 0,
        code_start: 192,
        cookie_words: [ABSENT; COOKIE_WORDS],
        cookie_halves: [92, 68, ABSENT],
        cookie_name: ABSENT,
        interpreter_next: 0,
        interpreter_threads: 72,
        state_next: 8,
        state_pointer: 136,
        state_call: ABSENT,
        call_previous: ABSENT,
        reserved: [0; 1],
    }
}

#[derive(Default)]
struct Memory {
    words: HashMap<u64, u64>,
    loads: usize,
    /// The stack pointer.
    stack: u64,
}

impl WordReader for Memory {
    fn load(&mut self, avma: u64) -> Option<u64> {
        assert_eq!(avma & 7, 0);
        self.loads += 1;
        self.words.get(&avma).copied()
    }
}

fn code_of(number: u64) -> u64 {
    0x20_0000 + number * 0x200
}

impl Memory {
    /// Makes a thread whose frames are these, leaf first: `None` is a shim.
    fn of(frames: &[Option<u64>]) -> Self {
        let mut memory = Self::default();
        let mut set = |at: u64, word: u64| memory.words.insert(at, word);
        let at = |index: usize| FIRST + index as u64 * 0x80;
        set(THREAD - 8, STATE);
        set(STATE + 56, STATE + 0x100);
        set(STATE + 0x100, if frames.is_empty() { 0 } else { at(0) });
        for (index, frame) in frames.iter().enumerate() {
            let code = frame.map_or(0, code_of);
            let last = index + 1 == frames.len();
            set(at(index), code | 1);
            set(at(index) + 8, if last { 0 } else { at(index + 1) });
            set(at(index) + 56, code + 192 + 10 * (index as u64 + 1));
            set(at(index) + 64, if frame.is_none() { 3 << 48 } else { 0x77 });
            set(code + 8, TYPE);
            set(code + 64, 7 << 32);
            set(code + 88, (code << 32) | 5);
        }
        memory
    }

    fn set(&mut self, at: u64, word: u64) {
        self.words.insert(at, word);
    }

    fn unset(&mut self, at: u64) {
        self.words.remove(&at);
    }

    fn capture(&mut self, layout: &PythonLayout, room: usize) -> (Captured, Vec<ManagedFrame>) {
        let words: Vec<AtomicU64> = (0..room).map(|_| AtomicU64::new(0)).collect();
        let thread = CapturedThread { stack: self.stack, ..CapturedThread::of(THREAD) };
        let captured = capture(5, layout, thread, self, &words);
        let Captured::Section { words: count, .. } = captured else {
            return (captured, Vec::new());
        };
        let words: Vec<u64> =
            words[..count].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let section = sections(&words).next().expect("a section");
        assert_eq!(section.runtime, 5);
        let frames: Vec<_> = section.frames().collect();
        assert_eq!(words.len(), 1 + 2 * frames.len());
        (captured, frames)
    }
}

#[test]
fn another_name_at_the_same_address_has_another_cookie() {
    const NAME: u64 = 0x70_0000;
    let layout = PythonLayout { cookie_name: 128, ..layout() };
    let mut memory = Memory::of(&[Some(1)]);
    memory.set(code_of(1) + 128, NAME);
    assert_eq!(cookie(&layout, code_of(1), &mut memory), None, "the name is unreadable");
    let mut with_hash = |hash| {
        memory.set(NAME + 24, hash);
        cookie(&layout, code_of(1), &mut memory).unwrap()
    };
    assert_ne!(with_hash(5), with_hash(6));
    assert_eq!(with_hash(5), with_hash(5));
}

fn shape(frames: &[ManagedFrame]) -> Vec<(u64, u8, u32)> {
    frames.iter().map(|it| (it.object, it.flags, it.position)).collect()
}

fn section(frames: usize, end: SectionEnd, foreign: usize) -> Captured {
    Captured::Section { words: 1 + 2 * frames, end, foreign }
}

#[test]
fn frames_before_a_shim_and_the_last_one_are_entries() {
    let mut memory = Memory::of(&[Some(1), Some(2), None, Some(3), Some(1), None]);
    let (captured, frames) = memory.capture(&layout(), 100);
    assert_eq!(captured, section(4, SectionEnd::Root, 0));
    let expected = [
        (code_of(1), 0, 10),
        (code_of(2), ENTRY, 20),
        (code_of(3), 0, 40),
        (code_of(1), ENTRY, 50),
    ];
    assert_eq!(shape(&frames), expected);
    assert_ne!(frames[0].cookie, frames[1].cookie);
    assert_eq!(frames[0].cookie, frames[3].cookie);
    assert_eq!(cookie(&layout(), code_of(2), &mut memory), Some(frames[1].cookie));
}

#[test]
fn a_thread_without_the_lock_is_found_by_its_key() {
    let mut memory = Memory::of(&[Some(1), None]);
    memory.words.insert(THREAD - 8, 0);
    assert_eq!(memory.capture(&layout(), 9).0, Captured::Unreadable, "the key is unreadable");
    memory.words.insert(THREAD + 0x318, 0);
    assert_eq!(memory.capture(&layout(), 9).0, Captured::Nothing);
    memory.words.insert(THREAD + 0x318, STATE);
    assert_eq!(memory.capture(&layout(), 9).0, section(1, SectionEnd::Root, 0));
    memory.words.insert(THREAD + 0x318, 0xa000);
    memory.words.insert(0xa018, STATE);
    let far = PythonLayout { key_value: 0x18, ..layout() };
    assert_eq!(memory.capture(&far, 9).0, section(1, SectionEnd::Root, 0));
    let none = PythonLayout { key: 0, ..layout() };
    assert_eq!(memory.capture(&none, 9).0, Captured::Nothing);
    assert_eq!(Memory::of(&[]).capture(&layout(), 9).0, Captured::Nothing);
}

#[test]
fn older_frames_have_offsets_and_each_is_an_entry() {
    let mut memory = Memory::of(&[Some(1), Some(2)]);
    memory.words.insert(FIRST + 96, 21 << 32 | 99);
    memory.words.insert(FIRST + 0x80 + 96, 22 << 32 | 98);
    let old = PythonLayout {
        frame_owner: ABSENT,
        is_each_entry: 1,
        instruction: Instruction::Units as u16,
        frame_instruction: 100,
        ..layout()
    };
    let frames = memory.capture(&old, 100).1;
    assert_eq!(shape(&frames), [(code_of(1), ENTRY, 42), (code_of(2), ENTRY, 44)]);
    let older = PythonLayout { instruction: 0, frame_instruction: 96, ..old };
    assert_eq!(shape(&memory.capture(&older, 100).1)[0].2, 99);
    let flagged = PythonLayout { frame_entry: 64, is_each_entry: 0, ..older };
    memory.words.insert(FIRST + 64, 0);
    let flags: Vec<u8> = memory.capture(&flagged, 100).1.iter().map(|it| it.flags).collect();
    assert_eq!(flags, [0, ENTRY]);
}

#[test]
fn a_list_without_a_shim_at_its_end_is_being_changed() {
    let mut memory = Memory::of(&[Some(1), None, Some(2)]);
    let (captured, frames) = memory.capture(&layout(), 100);
    assert_eq!(captured, section(2, SectionEnd::Unlinked, 0));
    assert_eq!(shape(&frames).iter().map(|it| it.1).collect::<Vec<_>>(), [ENTRY, 0]);
}

#[test]
fn damaged_lists_end_and_say_why() {
    let mut circle = Memory::of(&[Some(1), Some(2)]);
    circle.words.insert(FIRST + 0x80 + 8, FIRST);
    assert_eq!(circle.capture(&layout(), 100).0, section(49, SectionEnd::Depth, 0));
    assert_eq!(circle.capture(&layout(), 1 << 14).0, section(FRAMES_MAX, SectionEnd::Depth, 0));
    let mut shims = Memory::of(&[None]);
    shims.words.insert(FIRST + 8, FIRST);
    assert_eq!(shims.capture(&layout(), 100).0, section(49, SectionEnd::Depth, 0));
    for wild in [1, 0x18, u64::MAX, u64::MAX - 7] {
        let mut memory = Memory::of(&[Some(1), Some(2)]);
        memory.words.insert(FIRST + 8, wild);
        assert_eq!(memory.capture(&layout(), 100).0, section(1, SectionEnd::Unreadable, 0));
        memory.words.insert(FIRST, wild);
        let (captured, frames) = memory.capture(&layout(), 100);
        assert_eq!(captured, section(1, SectionEnd::Unreadable, 1));
        assert_eq!((frames[0].flags, frames[0].cookie), (FOREIGN, 0));
        memory.words.insert(STATE + 56, wild);
        assert_eq!(memory.capture(&layout(), 100).0, Captured::Unreadable);
    }
    assert_eq!(Memory::of(&[Some(1)]).capture(&layout(), 0).0, Captured::Refused);
    assert_eq!(Memory::of(&[Some(1)]).capture(&layout(), 2).0, section(0, SectionEnd::Depth, 0));
}

#[test]
fn blocks_hold_layouts() {
    use crate::runtime::RuntimeBlock;
    let block = RuntimeBlock::of_python(&layout());
    assert_eq!(block.python(), Some(&layout()));
    let words = block.words();
    assert_eq!((words[0], words[1], words[7]), (1, RecordKind::Offset as u64, TYPE));
}

#[test]
fn the_holder_of_the_lock_has_its_state_in_the_variable() {
    let mut memory = Memory::of(&[]);
    assert!(holds_lock(&layout(), THREAD, &mut memory));
    memory.words.insert(THREAD - 8, 0);
    memory.words.insert(THREAD + 0x318, STATE);
    assert!(!holds_lock(&layout(), THREAD, &mut memory), "the key has it as well without the lock");
    assert!(!holds_lock(&layout(), THREAD + 0x100, &mut memory), "unreadable");
    assert!(!PythonLayout { state_kind: 0, ..layout() }.tells_lock());
}

#[test]
fn of_one_lock_the_holder_is_found_by_its_state() {
    const CURRENT: u64 = 0xa000;
    let old = PythonLayout { state_kind: 0, current_state: CURRENT, ..layout() };
    assert!(old.tells_lock());
    let mut memory = Memory::of(&[]);
    let mut check = |current: u64, owner: u64, expected: bool| {
        memory.words.insert(CURRENT, current);
        memory.words.insert(STATE + 136, owner);
        assert_eq!(holds_lock(&old, THREAD, &mut memory), expected, "{current:x} {owner:x}");
    };
    check(STATE, THREAD, true);
    check(STATE, THREAD + 0x1000, false);
    check(0, THREAD, false);
    // Neither is readable.
    check(STATE + 0x4000, THREAD, false);
    check(STATE + 3, THREAD, false);
    check(u64::MAX - 7, THREAD, false);
}

/// Addresses of the thread's states in two interpreters, and of another thread's.
const OTHER_STATE: u64 = 0x8800;
const FOREIGN_STATE: u64 = 0x9800;
const INTERPRETERS: u64 = 0x1000;
const STACK: u64 = 0x6000;

/// Makes two interpreters. The thread has the state with `frames` in the first one, and one with
/// the frames from `OTHERS` on in the second one. Both lists are interleaved on the stack by `at`.
fn of_two(lists: [&[(u64, Option<u64>)]; 2]) -> (PythonLayout, Memory) {
    let mut memory = Memory::of(&[]);
    let mut set = |at: u64, word: u64| memory.words.insert(at, word);
    let interpreters = [0x2000, 0x3000];
    set(INTERPRETERS, interpreters[0]);
    for (index, interpreter) in interpreters.into_iter().enumerate() {
        set(interpreter, *interpreters.get(index + 1).unwrap_or(&0));
    }
    let states = [(0x2000, STATE, FOREIGN_STATE, THREAD), (0x3000, OTHER_STATE, 0, THREAD)];
    for ((interpreter, state, next, pointer), frames) in states.into_iter().zip(lists) {
        set(interpreter + 72, state);
        set(state + 8, next);
        set(state + 136, pointer);
        set(state + 56, state + 0x100);
        set(state + 0x100, frames.first().map_or(0, |(at, _)| *at));
        for (index, (at, number)) in frames.iter().enumerate() {
            let code = number.map_or(0, code_of);
            set(*at, code);
            set(at + 8, frames.get(index + 1).map_or(0, |(at, _)| *at));
            set(at + 56, code + 192);
            set(at + 64, if number.is_none() { 3 << 48 } else { 0 });
            set(code + 8, TYPE);
            set(code + 64, 0);
            set(code + 88, code << 32);
        }
    }
    set(FOREIGN_STATE + 8, 0);
    set(FOREIGN_STATE + 136, 0x7700);
    (PythonLayout { interpreters: INTERPRETERS, ..layout() }, memory)
}

fn flagged(frames: &[ManagedFrame]) -> Vec<(u64, u8)> {
    frames.iter().map(|it| (it.object, it.flags)).collect()
}

#[test]
fn lists_of_several_interpreters_are_merged_by_their_calls() {
    let outer = [(0xb000, Some(1)), (STACK + 0x800, None)];
    let inner = [(0xc000, Some(2)), (0xc080, Some(3)), (STACK + 0x100, None)];
    let (layout, mut memory) = of_two([&outer, &inner]);
    let merged =
        |flags: u8| vec![(code_of(2), flags), (code_of(3), ENTRY | flags), (code_of(1), ENTRY)];
    memory.stack = STACK;
    let (captured, frames) = memory.capture(&layout, 100);
    assert_eq!((captured, flagged(&frames)), (section(3, SectionEnd::Root, 0), merged(0)));
    memory.stack = 0;
    assert_eq!(flagged(&memory.capture(&layout, 100).1), merged(UNPROVEN), "without the stack");
    memory.stack = STACK + 0x200;
    assert_eq!(flagged(&memory.capture(&layout, 100).1), merged(UNPROVEN), "on another stack");
}

#[test]
fn frames_of_the_known_state_are_kept_if_another_list_is_damaged() {
    let outer = [(0xb000, Some(1)), (STACK + 0x800, None)];
    let inner = [(0xc000, Some(2)), (STACK + 0x100, None)];
    let (layout, mut memory) = of_two([&outer, &inner]);
    memory.stack = STACK;
    memory.set(0xc000 + 8, 9);
    let (captured, frames) = memory.capture(&layout, 100);
    assert_eq!(captured, section(1, SectionEnd::Unlinked, 0));
    assert_eq!(flagged(&frames), [(code_of(1), ENTRY)]);
    memory.set(STATE + 0x100, 0);
    assert_eq!(memory.capture(&layout, 100).0, Captured::Unreadable, "no other list");
}

#[test]
fn lists_that_call_each_other_alternate() {
    let one = [(0xb000, Some(1)), (STACK + 0x100, None), (0xb080, Some(2)), (STACK + 0x800, None)];
    let other = [(0xc000, Some(3)), (STACK + 0x400, None)];
    let (layout, mut memory) = of_two([&one, &other]);
    memory.stack = STACK;
    let frames = memory.capture(&layout, 100).1;
    let expected = [1, 3, 2].map(|number| (code_of(number), ENTRY));
    assert_eq!(flagged(&frames), expected);
}

#[test]
fn calls_whose_frame_has_ended_are_kept() {
    let mut memory = Memory::of(&[None, Some(1), None, None, Some(2), None]);
    let (captured, frames) = memory.capture(&layout(), 100);
    assert_eq!(captured, section(4, SectionEnd::Root, 0));
    let (ended, called) = ((0, ENTRY | EMPTY), ENTRY);
    let expected = [ended, (code_of(1), called), ended, (code_of(2), called)];
    assert_eq!(flagged(&frames), expected);
    assert_eq!(Memory::of(&[None]).capture(&layout(), 100).0, Captured::Nothing);
}

#[test]
fn first_states_say_that_inner_frames_may_be_missing() {
    let (layout, mut memory) = of_two([&[(0xb000, Some(1))], &[]]);
    memory.words.insert(THREAD + 0x318, STATE);
    let old = PythonLayout { state_kind: 0, frame_owner: ABSENT, ..layout };
    assert_eq!(memory.capture(&old, 100).0, section(1, SectionEnd::Outer, 0));
    memory.words.insert(0x2000, 0);
    assert_eq!(memory.capture(&old, 100).0, section(1, SectionEnd::Root, 0), "one interpreter");
}

#[test]
fn damaged_lists_of_states_end() {
    let outer = [(0xb000, Some(1)), (STACK + 0x800, None)];
    let circle = |change: &dyn Fn(&mut Memory)| {
        let (layout, mut memory) = of_two([&outer, &[]]);
        change(&mut memory);
        memory.loads = 0;
        let captured = memory.capture(&layout, 100).0;
        assert!(memory.loads < 2000, "{}", memory.loads);
        captured
    };
    let cut = section(1, SectionEnd::Unlinked, 0);
    assert_eq!(circle(&|it| it.set(0x3000, 0x2000)), cut);
    assert_eq!(circle(&|it| it.set(FOREIGN_STATE + 8, FOREIGN_STATE)), cut);
    assert_eq!(circle(&|it| it.unset(FOREIGN_STATE + 8)), cut);
    assert_eq!(circle(&|it| it.set(0x2000, 9)), cut);
    assert_eq!(circle(&|_| ()), section(1, SectionEnd::Root, 0));
}

/// A layout with tasks, and a thread whose task has this name.
fn with_task(name: &[u64]) -> (PythonLayout, Memory) {
    const TASK: u64 = 0xd000;
    let mut memory = Memory::of(&[Some(1), None]);
    let mut set = |at: u64, word: u64| memory.words.insert(at, word);
    set(STATE + 872, TASK);
    set(TASK + 8, 0xe000);
    set(TASK + 104, 1 << 32);
    set(TASK + 136, 0xf000);
    set(0xe000 + 32, 200);
    for (at, word) in (0xf000..).step_by(8).zip(name) {
        set(at, *word);
    }
    let task = TaskLayout {
        number_type: 0x111,
        text_type: 0x222,
        state_task: 872,
        size: 168,
        name: 136,
        mark: 108,
    };
    (PythonLayout { task, ..layout() }, memory)
}

/// Returns the captured name.
fn name_of((layout, mut memory): (PythonLayout, Memory)) -> Option<(u64, Vec<u8>)> {
    let words: Vec<AtomicU64> = (0..TASK_WORDS).map(|_| AtomicU64::new(u64::MAX)).collect();
    let used = task_name(&layout, THREAD, &mut memory, &words).unwrap_or(0);
    let words: Vec<u64> = words[..used].iter().map(|word| word.load(Ordering::Relaxed)).collect();
    let (head, rest) = words.split_first_chunk::<2>()?;
    let bytes: Vec<u8> = rest.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(bytes[head[0] as usize - 8..], [0; 8][..bytes.len() + 8 - head[0] as usize]);
    Some((head[1], bytes[..head[0] as usize - 8].to_vec()))
}

#[test]
fn names_of_tasks_are_numbers_or_characters() {
    let number = |shape, digits| name_of(with_task(&[1, 0x111, shape, digits]));
    let value = |value: u64| Some((TASK_NUMBER, value.to_le_bytes().to_vec()));
    assert_eq!(number(1 << 3, 0xdead_0000_0000_000c), value(12));
    assert_eq!(number(2 << 3 | 4, 3 << 32 | 5), value(3 << 30 | 5));
    assert_eq!(number(3 << 3, 1), None, "too large");
    assert_eq!(number(1 << 3 | 2, 1), None, "negative");
    let ascii = (1 << 2 | 1 << 5 | 1 << 6) as u64;
    let text = |count, state, words: &[u64]| {
        let head = [1, 0x222, count, 0, state];
        name_of(with_task(&[&head[..], words].concat()))
    };
    let word = u64::from_le_bytes(*b"abcdefgh");
    let chars = |kind, bytes: &[u8]| Some((kind, bytes.to_vec()));
    assert_eq!(text(3, ascii, &[word]), chars(1, b"abc"));
    assert_eq!(text(8, ascii << 14, &[word]), chars(1, b"abcdefgh"), "bits of the other builds");
    let wide = (2 << 2 | 1 << 5) as u64;
    assert_eq!(text(3, wide, &[0, 0, word]), chars(2, b"abcdef"));
    assert_eq!(text(1000, ascii, &[word; 16]), chars(1 | TASK_CUT, &b"abcdefgh".repeat(16)));
    assert_eq!(text(3, ascii & !(1 << 5), &[word]), None, "not compact");
    assert_eq!(text(9, ascii, &[word]), None, "unreadable");
}

#[test]
fn other_objects_are_no_tasks() {
    let without = |change: &dyn Fn(&mut PythonLayout, &mut Memory)| {
        let (mut layout, mut memory) = with_task(&[1, 0x111, 1 << 3, 7]);
        change(&mut layout, &mut memory);
        name_of((layout, memory))
    };
    assert!(without(&|_, _| ()).is_some());
    assert_eq!(without(&|_, it| it.set(0xe000 + 32, 160)), None, "small objects");
    assert_eq!(without(&|_, it| it.set(0xd000 + 104, 0)), None, "no mark");
    assert_eq!(without(&|_, it| it.set(0xf008, 0x333)), None, "another name");
    let (layout, mut memory) = with_task(&[1, 0x111, 1 << 3, 7]);
    let words = [const { AtomicU64::new(0) }; TASK_WORDS];
    memory.set(0xd000 + 104, 0);
    assert_eq!(task_name(&layout, THREAD, &mut memory, &words), Err(NamelessTask), "no mark");
    memory.set(STATE + 872, 0);
    assert_eq!(task_name(&layout, THREAD, &mut memory, &words), Ok(0), "no task");
    for wild in [1, 8, u64::MAX - 7] {
        assert_eq!(without(&|_, it| it.set(STATE + 872, wild)), None);
        assert_eq!(without(&|_, it| it.set(0xd000 + 136, wild)), None);
    }
    assert_eq!(without(&|it, _| it.task = TaskLayout::NONE), None);
}
