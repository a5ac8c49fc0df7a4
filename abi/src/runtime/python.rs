//! The frames of a thread that runs CPython 3.8 to 3.14.
//!
//! The interpreter keeps a thread's frames in a list, leaf first, from the thread's state. The
//! offsets differ between versions; [`PythonLayout`] has those of one interpreter.
//!
//! # Invariants
//! - At most [`FRAMES_MAX`] frames and [`SKIPPED_MAX`] skipped ones, each with a bounded number of
//!   loads.

use super::word::{ENTRY, FOREIGN, FRAME_WORDS, ManagedFrame, SectionEnd, header};
use super::{Captured, WordReader};
use crate::context::{RecordKind, TlsLocation, Unreadable};
use crate::sync::{AtomicU64, Ordering};

/// Maximum number of frames in a section.
pub const FRAMES_MAX: usize = 1024;
/// Maximum number of frames without code of the program that are skipped in one list.
pub const SKIPPED_MAX: usize = FRAMES_MAX;
/// Stands for a field that this version does not have.
pub const ABSENT: u16 = u16::MAX;
/// Number of pointers from which the cookie of a code object is computed.
pub const COOKIE_WORDS: usize = 6;
/// Number of 32-bit fields from which the cookie of a code object is computed.
pub const COOKIE_HALVES: usize = 3;

/// How the instruction field of a frame gives the position, in bytes from the first instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Instruction {
    /// A 32-bit offset in bytes (3.8 and 3.9).
    Bytes = 0,
    /// A 32-bit offset in units of two bytes (3.10).
    Units = 1,
    /// A pointer (3.11 and later).
    Pointer = 2,
}

/// The offsets in one interpreter's structures, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PythonLayout {
    /// [`RecordKind`] of the variable with the thread's state, which is 0 while the thread does not
    /// hold the interpreter's lock. 0 if there is no such variable.
    pub state_kind: u64,
    /// Offset of that variable: see [`TlsLocation`].
    pub state_offset: u64,
    /// Module of that variable: see [`TlsLocation`].
    pub state_module: u64,
    /// Distance from the thread pointer to the value of the thread-specific key that holds the
    /// thread's state, or 0 for none. With [`Self::key_value`], to a pointer to the key's block.
    pub key: u64,
    /// Offset of the value in the key's block, or `u64::MAX` if there is no such block.
    pub key_value: u64,
    /// Address of the type of code objects (AVMA).
    pub code_type: u64,
    /// The bits of [`Self::frame_code`] that are an address.
    pub code_mask: u64,
    /// From a thread's state to the current frame, or to [`Self::chain_frame`]'s structure.
    pub state_frame: u16,
    /// From that structure to the current frame, or [`ABSENT`] if there is no such structure.
    pub chain_frame: u16,
    /// From a frame to its caller.
    pub frame_previous: u16,
    /// From a frame to its code object.
    pub frame_code: u16,
    /// From a frame to its instruction.
    pub frame_instruction: u16,
    /// [`Instruction`].
    pub instruction: u16,
    /// From a frame to the byte that is not 0 if native code called it, or [`ABSENT`].
    pub frame_entry: u16,
    /// From a frame to the byte that tells who owns it, or [`ABSENT`].
    pub frame_owner: u16,
    /// The least value of that byte for a frame that only marks a call from native code.
    pub owner_shim: u16,
    /// 1 if native code calls every frame.
    pub is_each_entry: u16,
    /// From a code object to its first instruction.
    pub code_start: u16,
    /// Pointers of a code object that enter its cookie, or [`ABSENT`].
    pub cookie_words: [u16; COOKIE_WORDS],
    /// 32-bit fields of a code object that enter its cookie, or [`ABSENT`].
    pub cookie_halves: [u16; COOKIE_HALVES],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PythonLayout>() == 7 * 8 + 20 * 2);
/// Offset of an object's type.
const OBJECT_TYPE: u64 = 8;

/// The error for memory that could not be read.
struct Lost;

impl From<Unreadable> for Lost {
    fn from(_: Unreadable) -> Self {
        Self
    }
}

/// The reads of one interpreter's structures.
struct Reader<'a, M> {
    layout: &'a PythonLayout,
    memory: &'a mut M,
}

impl<M: WordReader> Reader<'_, M> {
    fn word(&mut self, avma: u64) -> Result<u64, Lost> {
        if avma & 7 != 0 {
            return Err(Lost);
        }
        self.memory.load(avma).ok_or(Lost)
    }

    /// Loads a pointer field of a structure.
    fn field(&mut self, base: u64, offset: u16) -> Result<u64, Lost> {
        self.word(base.wrapping_add(u64::from(offset)))
    }

    /// Loads a 32-bit field of a structure that is aligned to 8 bytes.
    fn half(&mut self, base: u64, offset: u16) -> Result<u32, Lost> {
        let word = self.field(base, offset & !7)?;
        Ok((word >> (u32::from(offset & 4) * 8)) as u32)
    }

    /// Loads a byte of a structure that is aligned to 8 bytes.
    fn byte(&mut self, base: u64, offset: u16) -> Result<u8, Lost> {
        let word = self.field(base, offset & !7)?;
        Ok((word >> (u32::from(offset & 7) * 8)) as u8)
    }

    /// Returns the state of the thread with this thread pointer, or 0.
    fn thread_state(&mut self, thread_pointer: u64) -> Result<u64, Lost> {
        let PythonLayout { state_kind, state_offset: offset, state_module: module, .. } =
            *self.layout;
        let kind = RecordKind::ALL.into_iter().find(|kind| *kind as u64 == state_kind);
        if let Some(kind) = kind {
            let way = TlsLocation { kind, offset, module };
            let variable = way.variable(thread_pointer, |avma| self.memory.load(avma))?;
            // Each interpreter of the process has states of its own. The variable knows the
            // current one.
            let state = variable.map_or(Ok(0), |variable| self.word(variable))?;
            if state != 0 {
                return Ok(state);
            }
        }
        let PythonLayout { key, key_value, .. } = *self.layout;
        if key == 0 {
            return Ok(0);
        }
        let value = self.word(thread_pointer.wrapping_add(key))?;
        if key_value == u64::MAX || value == 0 {
            return Ok(value);
        }
        self.word(value.wrapping_add(key_value))
    }

    /// Returns the innermost frame of a thread, or 0.
    fn leaf(&mut self, thread_pointer: u64) -> Result<u64, Lost> {
        let state = self.thread_state(thread_pointer)?;
        if state == 0 {
            return Ok(0);
        }
        let frame = self.field(state, self.layout.state_frame)?;
        if frame == 0 || self.layout.chain_frame == ABSENT {
            return Ok(frame);
        }
        self.field(frame, self.layout.chain_frame)
    }

    /// Whether a frame only marks a call from native code.
    fn is_shim(&mut self, frame: u64) -> Result<bool, Lost> {
        let PythonLayout { frame_owner, owner_shim, .. } = *self.layout;
        Ok(frame_owner != ABSENT && u16::from(self.byte(frame, frame_owner)?) >= owner_shim)
    }

    fn managed_frame(&mut self, frame: u64, code: u64) -> Result<ManagedFrame, Lost> {
        let PythonLayout { frame_entry, is_each_entry, code_start, .. } = *self.layout;
        let is_entry =
            is_each_entry != 0 || frame_entry != ABSENT && self.byte(frame, frame_entry)? != 0;
        let at = self.layout.frame_instruction;
        let position = match self.layout.instruction {
            it if it == Instruction::Pointer as u16 => {
                let start = code.wrapping_add(u64::from(code_start));
                self.field(frame, at)?.wrapping_sub(start) as u32
            }
            it if it == Instruction::Units as u16 => self.half(frame, at)?.wrapping_mul(2),
            _ => self.half(frame, at)?,
        };
        let flags = if is_entry { ENTRY } else { 0 };
        Ok(match cookie(self.layout, code, self.memory) {
            Some(cookie) => ManagedFrame { object: code, flags, position, cookie },
            None => ManagedFrame { object: code, flags: flags | FOREIGN, position, cookie: 0 },
        })
    }
}

/// Returns the cookie of a code object. `None` if it is no code object, or unreadable.
///
/// The recorder compares the cookie at the capture with that of the object that it reads later.
pub fn cookie(layout: &PythonLayout, code: u64, memory: &mut impl WordReader) -> Option<u32> {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut reader = Reader { layout, memory };
    let kind = reader.word(code.wrapping_add(OBJECT_TYPE)).ok()?;
    if kind != layout.code_type {
        return None;
    }
    let mut state = 0u64;
    for at in layout.cookie_words.into_iter().filter(|at| *at != ABSENT) {
        state = (state ^ reader.field(code, at).ok()?).wrapping_mul(K).rotate_left(29);
    }
    for at in layout.cookie_halves.into_iter().filter(|at| *at != ABSENT) {
        state = (state ^ u64::from(reader.half(code, at).ok()?)).wrapping_mul(K).rotate_left(29);
    }
    Some((state ^ state >> 32) as u32)
}

/// Writes the section of a thread's frames: see [`super::capture`].
pub fn capture(
    index: usize,
    layout: &PythonLayout,
    thread_pointer: u64,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Captured {
    let mut reader = Reader { layout, memory };
    let Ok(leaf) = reader.leaf(thread_pointer) else { return Captured::Unreadable };
    if leaf == 0 {
        return Captured::Nothing;
    }
    let Some((head, room)) = words.split_first() else { return Captured::Refused };
    let (frames, end, foreign) = walk(&mut reader, leaf, room);
    // Relaxed: the words are the caller's own until it publishes them.
    head.store(header(index, end, frames), Ordering::Relaxed);
    let words = frames.wrapping_mul(FRAME_WORDS).wrapping_add(1);
    if frames == 0 && end == SectionEnd::Root {
        return Captured::Nothing;
    }
    Captured::Section { words, end, foreign }
}

/// Stores the frames from `frame` on, leaf first. Returns their number, the reason of their end and
/// the number of foreign ones.
fn walk<M: WordReader>(
    reader: &mut Reader<'_, M>,
    mut frame: u64,
    room: &[AtomicU64],
) -> (usize, SectionEnd, usize) {
    let (pairs, _) = room.as_chunks::<FRAME_WORDS>();
    let (mut count, mut foreign, mut skipped) = (0usize, 0usize, 0usize);
    while frame != 0 {
        let Ok((previous, managed)) = step(reader, frame) else {
            return (count, SectionEnd::Unreadable, foreign);
        };
        match managed {
            Some(managed) => {
                let free = pairs.get(count).filter(|_| count < FRAMES_MAX);
                let Some(pair) = free else { return (count, SectionEnd::Depth, foreign) };
                store(pair, managed);
                count = count.wrapping_add(1);
                foreign = foreign.wrapping_add(usize::from(managed.flags & FOREIGN != 0));
            }
            None if skipped >= SKIPPED_MAX => return (count, SectionEnd::Depth, foreign),
            None => {
                skipped = skipped.wrapping_add(1);
                // The call that the shim marks is that of the frame before it.
                if let Some([first, _]) = pairs.get(count.wrapping_sub(1)) {
                    let marked = first.load(Ordering::Relaxed) | ManagedFrame::ENTRY_WORD;
                    first.store(marked, Ordering::Relaxed);
                }
            }
        }
        frame = previous;
    }
    // Native code called the last frame.
    if let Some([first, _]) = pairs.get(count.wrapping_sub(1)) {
        let marked = first.load(Ordering::Relaxed) | ManagedFrame::ENTRY_WORD;
        first.store(marked, Ordering::Relaxed);
    }
    (count, SectionEnd::Root, foreign)
}

/// Returns a frame's caller, and the frame itself unless it only marks a call from native code.
fn step<M: WordReader>(
    reader: &mut Reader<'_, M>,
    frame: u64,
) -> Result<(u64, Option<ManagedFrame>), Lost> {
    let previous = reader.field(frame, reader.layout.frame_previous)?;
    let code = reader.field(frame, reader.layout.frame_code)? & reader.layout.code_mask;
    if reader.is_shim(frame)? {
        return Ok((previous, None));
    }
    Ok((previous, Some(reader.managed_frame(frame, code)?)))
}

fn store(pair: &[AtomicU64; FRAME_WORDS], managed: ManagedFrame) {
    for (to, word) in pair.iter().zip(managed.words()) {
        // Relaxed: the words are the caller's own until it publishes them.
        to.store(word, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use std::collections::HashMap;
    use std::vec::Vec;

    use super::super::word::sections;
    use super::*;

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
        let mut memory = Memory::of(&[Some(1)]);
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
        assert_eq!(
            Memory::of(&[Some(1)]).capture(&layout(), 2).0,
            section(0, SectionEnd::Depth, 0)
        );
    }

    #[test]
    fn blocks_hold_layouts() {
        use crate::runtime::RuntimeBlock;
        let block = RuntimeBlock::of_python(&layout());
        assert_eq!(block.python(), Some(&layout()));
        let words = block.words();
        assert_eq!((words[0], words[1], words[6]), (1, RecordKind::Offset as u64, TYPE));
    }
}
