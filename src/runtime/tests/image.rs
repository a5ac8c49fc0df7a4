//! The memory of a process with an interpreter, made by hand: one thread with two frames of one
//! function, and a frame that marks a call from native code where the version has such frames.

use traceprof_abi::runtime::python::{ABSENT, Instruction};

use crate::runtime::python::{Structures, structures};

/// Addresses relative to the start of the memory.
const INTERPRETER: u64 = 0xa80;
pub(super) const STATE: u64 = 0xb00;
const CHAIN: u64 = 0xc00;
pub(super) const THREAD: u64 = 0xd00;
/// Memory without contents.
pub(super) const NO_FRAME: u64 = 0x1040;
const FRAMES: [u64; 3] = [0x1100, 0x1180, 0x1200];
pub(super) const CODE: u64 = 0x1280;
pub(super) const NAME: u64 = 0x1380;
const FILE: u64 = 0x1400;
pub(super) const TABLE: u64 = 0x1480;
const END: u64 = 0x1500;
/// Where [`super::super::fuzz_entry`] has the type of code objects.
pub(super) const CODE_TYPE: u64 = 0x9c0;
const KEY: u64 = 1;
const TID: u64 = 4321;

/// Returns the offset of the first interpreter in the runtime's state.
pub(super) fn interpreters(minor: u8) -> u64 {
    if minor < 13 { structures(minor).unwrap().threads.interpreters } else { 0x2c8 }
}

/// Returns where the pointer to the innermost frame is.
pub(super) fn frame_at(minor: u8) -> u64 {
    let layout = structures(minor).unwrap().layout;
    match layout.chain_frame {
        ABSENT => STATE + u64::from(layout.state_frame),
        offset => CHAIN + u64::from(offset),
    }
}

pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    start: u64,
}

impl Image {
    /// Makes the memory of a process with an interpreter of this minor version.
    pub(super) fn of(minor: u8, start: u64) -> Self {
        let mut image = Self { bytes: vec![0; END as usize], start };
        let known = structures(minor).unwrap();
        image.runtime(minor, &known);
        image.thread(&known);
        image.frames(&known);
        image.code(&known);
        image
    }

    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn word(&mut self, at: u64, word: u64) {
        self.put(at, &word.to_le_bytes());
    }

    fn pointer(&mut self, at: u64, to: u64) {
        self.word(at, self.start + to);
    }

    fn runtime(&mut self, minor: u8, known: &Structures) {
        let threads = known.threads;
        let (next, first) = match minor {
            13 | 14 => {
                self.published(minor, known);
                (0, 8)
            }
            _ => (threads.interpreter_next, threads.interpreter_threads),
        };
        self.pointer(interpreters(minor), INTERPRETER);
        self.word(INTERPRETER + next, 0);
        self.pointer(INTERPRETER + first, STATE);
        self.word(u64::from(known.key), KEY << 32 | 1);
        self.pointer(CODE_TYPE + 24, CODE_TYPE + 40);
        self.word(CODE_TYPE + 32, known.code.len as u64);
        self.put(CODE_TYPE + 40, b"code\0");
    }

    /// Writes what the interpreter publishes.
    fn published(&mut self, minor: u8, known: &Structures) {
        let (layout, code, threads) = (&known.layout, &known.code, &known.threads);
        let small = |offset: u16| u64::from(offset);
        let mut words = vec![u64::from_le_bytes(*b"xdebugpy")];
        words.extend([0x0300_00f0 | u64::from(minor) << 16, 0]);
        words.extend([1 << 16, 0, interpreters(minor)]);
        words.extend([1 << 12, 0, 0, 8]);
        words.resize(words.len() + if minor == 13 { 9 } else { 12 }, 0);
        let (pointer, tid) = (threads.state_pointer, threads.state_tid.unwrap());
        words.extend([400, 0, threads.state_next, threads.state_interpreter]);
        words.extend([small(layout.state_frame), pointer, tid, 0, 0]);
        let fields = [layout.frame_previous, layout.frame_code, layout.frame_instruction];
        words.push(80);
        words.extend(fields.map(small));
        words.extend([72, small(layout.frame_owner)]);
        words.resize(words.len() + if minor == 13 { 0 } else { 2 }, 0);
        let fields = [code.file, 120, code.name, code.lines, code.first_line];
        words.push(code.len as u64 + 8);
        words.extend(fields.map(|offset| offset as u64));
        words.extend([0, 0, 0, small(layout.code_start)]);
        words.resize(words.len() + if minor == 13 { 0 } else { 1 }, 0);
        words.extend([16, 8, 416, 24, 0, 0]);
        words.resize(words.len() + if minor == 13 { 14 } else { 18 }, 0);
        words.extend([40, 16, 32, 64, 32, 16, known.text.ascii as u64]);
        for (index, word) in words.into_iter().enumerate() {
            self.word(index as u64 * 8, word);
        }
    }

    fn thread(&mut self, known: &Structures) {
        let (threads, layout) = (known.threads, known.layout);
        self.pointer(STATE + threads.state_interpreter, INTERPRETER);
        self.pointer(STATE + threads.state_pointer, THREAD);
        if let Some(tid) = threads.state_tid {
            self.word(STATE + tid, TID);
        }
        self.pointer(THREAD, THREAD);
        self.word(THREAD + 0x2d0, TID);
        self.pointer(THREAD + 0x318 + KEY * 16, STATE);
        let frame = STATE + u64::from(layout.state_frame);
        if layout.chain_frame == ABSENT {
            return self.pointer(frame, FRAMES[0]);
        }
        self.pointer(frame, CHAIN);
        self.pointer(CHAIN + u64::from(layout.chain_frame), FRAMES[0]);
    }

    fn frames(&mut self, known: &Structures) {
        let layout = known.layout;
        let has_shims = layout.frame_owner != ABSENT;
        let frames = if has_shims { &FRAMES[..] } else { &FRAMES[..2] };
        for (index, frame) in frames.iter().enumerate() {
            if let Some(previous) = frames.get(index + 1) {
                self.pointer(frame + u64::from(layout.frame_previous), *previous);
            }
            self.pointer(frame + u64::from(layout.frame_code), CODE);
            // The second instruction, and the third.
            let position = 2 * (index as u64 + 1);
            let at = frame + u64::from(layout.frame_instruction);
            match layout.instruction {
                it if it == Instruction::Pointer as u16 => {
                    self.pointer(at, CODE + u64::from(layout.code_start) + position);
                }
                it if it == Instruction::Units as u16 => {
                    self.put(at, &(position as u32 / 2).to_le_bytes());
                }
                _ => self.put(at, &(position as u32).to_le_bytes()),
            }
            if has_shims && index == 2 {
                self.put(frame + u64::from(layout.frame_owner), &[3]);
            }
        }
    }

    fn code(&mut self, known: &Structures) {
        let code = known.code;
        self.word(CODE, 1);
        self.pointer(CODE + 8, CODE_TYPE);
        self.pointer(CODE + code.name as u64, NAME);
        self.pointer(CODE + code.file as u64, FILE);
        self.pointer(CODE + code.lines as u64, TABLE);
        self.put(CODE + code.first_line as u64, &70u32.to_le_bytes());
        for half in known.layout.cookie_halves.iter().take(1).filter(|_| code.len >= 192) {
            self.put(CODE + u64::from(*half), &99u32.to_le_bytes());
        }
        self.text(NAME, &"größe".chars().map(|it| it as u8).collect::<Vec<_>>(), known.text.other);
        self.put(NAME + 32, &[1 << 2 | 1 << 5]);
        self.text(FILE, b"of/a.py", known.text.ascii);
        self.put(FILE + 32, &[1 << 2 | 1 << 5 | 1 << 6]);
        let table: &[u8] = match code.len {
            // Two bytes of the first line, then 3 lines more, then 2 less.
            176 if known.layout.instruction == Instruction::Units as u16 => &[2, 0, 2, 3, 2, 0xfe],
            176 => &[2, 3, 2, 0xfe],
            _ => &[0x80, 0, 0xe8, 6, 0xe8, 5],
        };
        self.word(TABLE, 1);
        self.word(TABLE + 16, table.len() as u64);
        self.put(TABLE + 32, table);
    }

    fn text(&mut self, at: u64, characters: &[u8], start: usize) {
        self.word(at, 1);
        self.word(at + 16, characters.len() as u64);
        self.put(at + start as u64, characters);
    }
}
