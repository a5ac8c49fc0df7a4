//! Walks over lists of frames that are made by hand.

extern crate std;
use std::collections::HashMap;
use std::vec::Vec;

use super::*;
use crate::context::RecordKind;
use crate::runtime::word::sections;

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
        state_pointer: 136,
        reserved: [0; 3],
    }
}

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

    fn capture(&mut self, layout: &PythonLayout, room: usize) -> (Captured, Vec<ManagedFrame>) {
        let words: Vec<AtomicU64> = (0..room).map(|_| AtomicU64::new(0)).collect();
        let captured = capture(5, layout, THREAD, self, &words);
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
    assert_eq!(shims.capture(&layout(), 100).0, section(0, SectionEnd::Depth, 0));
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
