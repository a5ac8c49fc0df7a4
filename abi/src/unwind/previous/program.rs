//! A program with a stack of its own kind, which calls, returns, handles signals and changes
//! stacks, and is sampled in between: for the tests of walks that take over from the one before.
//!
//! # Safety
//! Tables are read in memory that the test owns, with the length that it has.

use std::vec::Vec;

use super::super::Tables;
use super::super::rule::{Rule, fp_op, op};
use super::super::tables::{Header, MAGIC, RBX_LOST};
use super::super::walk::{Memory, unwind};
use super::super::x86_64::{RBP, RSP, Registers};
use super::{Previous, WORDS, Walked, unwind_on};
use crate::ABI_VERSION;
use crate::layout::DEPTH_MAX;
use crate::sync::{AtomicU64, Ordering};

/// Code, in blocks of 256 bytes that have one rule each.
pub(super) const CODE: u64 = 0x10_0000;
pub(super) const BLOCKS: u64 = 64;
pub(super) const BLOCK: u64 = 256;
/// The first blocks that have these rules; up to the first of them sp alone is moved.
pub(super) const SAVES_FP: u64 = 20;
pub(super) const OF_FP: u64 = 28;
pub(super) const OTHERS: u64 = 32;
pub(super) const DEREF_SP: u64 = OTHERS;
pub(super) const SIGNAL: u64 = OTHERS + 1;
pub(super) const STOP: u64 = OTHERS + 2;
pub(super) const SWITCH: u64 = OTHERS + 3;
pub(super) const GAP: u64 = OTHERS + 4;
pub(super) const DEREF_FP: u64 = OTHERS + 5;
pub(super) const FP_IN_FRAME: u64 = OTHERS + 6;
pub(super) const CLEARS_FP: u64 = OTHERS + 7;
pub(super) const AT_SP: u64 = OTHERS + 8;
pub(super) const SAVES_RBX: u64 = OTHERS + 9;
pub(super) const OF_RBX: u64 = OTHERS + 10;
pub(super) const FAR: u64 = OTHERS + 14;
pub(super) const DEREF_SP_ADD: u64 = OTHERS + 15;
/// Of these, those that are called now and then.
pub(super) const EXCHANGED: [u64; 7] =
    [DEREF_SP, GAP, DEREF_FP, FP_IN_FRAME, AT_SP, OF_RBX, DEREF_SP_ADD];
/// What the frame of [`FAR`] takes, and some.
pub(super) const FAR_BYTES: u64 = 2300 * 8;

pub(super) struct Random(u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

pub(super) fn code(block: u64) -> u64 {
    CODE + block * BLOCK + 8
}

pub(super) fn rule(block: u64) -> Rule {
    let sp = |words: u64| Rule { cfa_off: words as i32 * 8, ..Rule::plain(op::SP) };
    let others = [
        Rule::plain(op::DEREF_SP_8),
        Rule::SIGNAL,
        Rule::STOP,
        Rule::FP_SWITCH,
        Rule::GAP_FP,
        Rule { op: op::DEREF_FP_8, ..Rule::FP_STD },
        Rule { fp_op: fp_op::AT_FP, fp_off: 0, ..sp(6) },
        Rule { fp_op: fp_op::CLEAR, ..sp(2) },
        Rule { fp_op: fp_op::AT_SP, fp_off: 1, ..sp(3) },
        // As the lazy binding of the dynamic linker has it: rbx is kept by one and used by the
        // next.
        Rule { fp_op: fp_op::AT_CFA, fp_off: -2, ..sp(4) },
        Rule { cfa_off: 64, ..Rule::plain(op::REG_LEAF + 3) },
        Rule { op: op::SP_INJECTED, ..sp(2) },
        Rule::plain(op::FROM_REGISTERS),
        Rule::GAP_GUESS,
        // A frame pointer that lies too far away for a link.
        Rule { fp_op: fp_op::AT_CFA, fp_off: -2100, ..sp(2110) },
        Rule { cfa_off: 8 << 24 | 8, ..Rule::plain(op::DEREF_SP_ADD) },
    ];
    match block {
        0..SAVES_FP => sp(1 + block % 10),
        SAVES_FP..OF_FP => Rule { fp_op: fp_op::AT_CFA, fp_off: -2, ..sp(2 + block % 5) },
        OF_FP..OTHERS => Rule::FP_STD,
        _ => others.get((block - OTHERS) as usize).copied().unwrap_or(sp(2)),
    }
}

/// A segment with one module; rbx is saved by one block of it.
pub(super) struct Segment(Vec<[u64; 2]>);

impl Segment {
    pub(super) fn new() -> Self {
        let mut words = std::vec![[0u64; 2]; 512];
        words[0] = [MAGIC, u64::from(ABI_VERSION)];
        words[1][0] = size_of::<Header>() as u64;
        let flat = words.as_flattened_mut();
        // Snapshot of generation 1 at 64, whose module is at 256; its parts are at the offsets that
        // follow.
        flat[8..15].copy_from_slice(&[1, 1, 0, CODE, CODE + BLOCKS * BLOCK, 0, 256]);
        let pair = |low: u64, high: u64| low | high << 32;
        flat[32..38].copy_from_slice(&[
            CODE,
            pair(BLOCKS, BLOCKS),
            pair(1024, 2048),
            pair(3072, 4096),
            pair(BLOCKS, 0),
            pair(5120, 0),
        ]);
        for word in 0..=BLOCKS / 2 {
            flat[128 + word as usize] = pair(word * 2, word * 2 + 1);
        }
        for block in 0..BLOCKS {
            flat[384 + block as usize / 4] |= block << (block % 4 * 16);
            flat[512 + block as usize] = rule(block).to_bits();
            let slot = match block - block.min(OTHERS) {
                9 => -3,
                7 | 8 => 0,
                _ => RBX_LOST,
            };
            flat[640 + block as usize / 4] |= u64::from(slot as u16) << (block % 4 * 16);
        }
        Self(words)
    }

    pub(super) fn tables(&self) -> Tables {
        assert_eq!(self.0.as_ptr() as usize % 16, 0);
        // SAFETY: aligned as asserted, as long as said, and written through a unique reference
        // alone, while no snapshot is used.
        unsafe { Tables::new(self.0.as_ptr().cast(), size_of_val(&self.0[..])) }
    }

    /// Publishes the rules that were there at first, if they are others now.
    pub(super) fn restore(&mut self) {
        if self.0.as_flattened()[9].is_multiple_of(2) {
            self.exchange(&mut Random(1));
        }
    }

    /// Publishes the next generation. In each other one some of the rules are others.
    pub(super) fn exchange(&mut self, random: &mut Random) {
        let flat = self.0.as_flattened_mut();
        flat[9] += 1;
        let is_other = flat[9].is_multiple_of(2);
        for block in 0..SAVES_FP {
            let number = if is_other && random.one_in(8) { random.below(OTHERS) } else { block };
            flat[512 + block as usize] = rule(number).to_bits();
        }
    }
}

/// A mapping that is used as a stack.
#[derive(Clone)]
pub(super) struct Stack {
    pub(super) base: u64,
    pub(super) words: Vec<u64>,
}

impl Stack {
    pub(super) fn end(&self) -> u64 {
        self.base + self.words.len() as u64 * 8
    }

    pub(super) fn holds(&self, avma: u64) -> bool {
        self.base <= avma && avma < self.end()
    }

    pub(super) fn word(&mut self, avma: u64) -> Option<&mut u64> {
        let offset = avma.checked_sub(self.base)?;
        self.words.get_mut(offset as usize / 8)
    }
}

/// Memory of a thread with several stacks.
pub(super) struct Stacks {
    pub(super) stacks: Vec<Stack>,
    pub(super) bounds: (u64, u64),
    pub(super) read: Vec<u64>,
    /// What the code holds changes with it.
    pub(super) code: u64,
}

impl Memory for Stacks {
    fn load(&mut self, avma: u64) -> Option<u64> {
        assert!(avma.is_multiple_of(8) && self.bounds.0 <= avma && avma + 8 <= self.bounds.1);
        self.read.push(avma);
        self.stacks.iter_mut().find(|it| it.holds(avma))?.word(avma).copied()
    }

    fn rebound(&mut self, sp: u64) -> bool {
        let found = self.stacks.iter().find(|it| it.holds(sp));
        let low = |base: u64| base.max(sp.saturating_sub(128));
        self.bounds = found.map_or((sp, sp), |it| (low(it.base), it.end()));
        found.is_some()
    }

    fn bounds(&self) -> (u64, u64) {
        self.bounds
    }

    fn load_code(&mut self, avma: u64) -> Option<u64> {
        Some(avma.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17) ^ self.code)
    }
}

/// A frame of the program that runs.
#[derive(Clone, Copy)]
pub(super) struct Running {
    pub(super) pc: u64,
    pub(super) sp: u64,
    pub(super) fp: u64,
}

/// A thread that is sampled again and again.
pub(super) struct Sampled {
    pub(super) random: Random,
    pub(super) segment: Segment,
    pub(super) memory: Stacks,
    /// The program's frames, the outermost first.
    pub(super) running: Vec<Running>,
    pub(super) registers: Registers,
    pub(super) words: Vec<AtomicU64>,
    pub(super) plain: Vec<AtomicU64>,
    pub(super) read: Vec<u64>,
    /// Shallow stacks are kept as well.
    pub(super) any_depth: bool,
    /// Words of the stacks, at first.
    pub(super) lengths: Vec<usize>,
    /// What was written over last, and where.
    pub(super) disturbed: (u64, u64),
}

pub(super) fn zeroes(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

pub(super) fn values(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

impl Sampled {
    pub(super) fn new(seed: u64, lengths: &[usize]) -> Self {
        let stack = |(number, &length): (usize, &usize)| Stack {
            base: 0x7000_0000 + 0x100_0000 * number as u64,
            words: std::vec![0; length],
        };
        let stacks: Vec<Stack> = lengths.iter().enumerate().map(stack).collect();
        let sp = stacks[0].end() - 64;
        Self {
            random: Random(seed),
            segment: Segment::new(),
            memory: Stacks { stacks, bounds: (0, 0), read: Vec::new(), code: 0 },
            running: std::vec![Running { pc: code(STOP), sp, fp: 0 }],
            registers: Registers::default(),
            words: zeroes(WORDS),
            plain: zeroes(DEPTH_MAX),
            read: Vec::new(),
            any_depth: seed.is_multiple_of(2),
            lengths: lengths.to_vec(),
            disturbed: (0, 0),
        }
    }

    /// A place in one of the stacks.
    pub(super) fn place(&mut self) -> u64 {
        let number = self.random.below(self.memory.stacks.len() as u64) as usize;
        let stack = &self.memory.stacks[number];
        stack.base + self.random.below(stack.words.len() as u64) * 8
    }

    /// What a word of a stack may be.
    fn telling(&mut self) -> u64 {
        match self.random.below(12) {
            0 => self.random.next(),
            1..4 => self.place(),
            4 => code(self.random.below(BLOCKS)),
            _ => code(self.random.below(OTHERS)),
        }
    }

    pub(super) fn write(&mut self, avma: u64, value: u64) {
        if let Some(word) = self.memory.stacks.iter_mut().find_map(|it| it.word(avma)) {
            self.disturbed = (avma, *word);
            *word = value;
        }
    }

    pub(super) fn last(&self) -> Running {
        self.running[self.running.len() - 1]
    }

    /// Calls a function of this block, whose frame is as its rule says.
    pub(super) fn call(&mut self, block: u64) {
        let Running { pc, sp: cfa, fp } = self.last();
        let some = self.random.below(6) * 8;
        self.write(cfa - 8, pc);
        let (sp, own_fp) = match block {
            0..SAVES_FP => (cfa - u64::from(rule(block).cfa_off as u32), fp),
            SAVES_FP..OF_FP => {
                self.write(cfa - 16, fp);
                (cfa - u64::from(rule(block).cfa_off as u32), self.telling())
            }
            OF_FP..OTHERS | SWITCH | GAP => {
                self.write(cfa - 16, fp);
                let other = self.memory.stacks[1].end() - 64;
                (if block == SWITCH { other - some } else { cfa - 16 - some }, cfa - 16)
            }
            DEREF_SP => {
                self.write(cfa - 24 - some, cfa - 8);
                (cfa - 24 - some, fp)
            }
            DEREF_FP => {
                self.write(cfa - 16, fp);
                self.write(cfa - 48, cfa - 8);
                (cfa - 64 - some, cfa - 64)
            }
            FP_IN_FRAME => {
                self.write(cfa - 32, fp);
                (cfa - 48, cfa - 32)
            }
            AT_SP => {
                self.write(cfa - 16, fp);
                (cfa - 24, self.telling())
            }
            FAR => {
                self.write(cfa - 2100 * 8, fp);
                (cfa - 2110 * 8, self.telling())
            }
            DEREF_SP_ADD => {
                self.write(cfa - 24 - some, cfa - 64);
                (cfa - 32 - some, fp)
            }
            OF_RBX => {
                let sp = cfa - 24 - some;
                self.running.push(Running { pc: code(block), sp, fp });
                self.write(sp - 8, code(block));
                self.write(sp - 16, fp);
                self.write(sp - 24, cfa - 64);
                return self.running.push(Running { pc: code(SAVES_RBX), sp: sp - 32, fp });
            }
            _ => (cfa - 16, self.telling()),
        };
        self.running.push(Running { pc: code(block), sp, fp: own_fp });
    }

    /// Handles a signal, on one of the stacks.
    fn interrupt(&mut self) {
        let Running { pc, sp, fp } = self.last();
        let other = &self.memory.stacks[2];
        let top = if other.holds(sp) || self.random.one_in(2) { sp - 128 } else { other.end() };
        let context = top - 256;
        for (slot, value) in [(10, fp), (15, sp), (16, pc)] {
            self.write(context + 40 + slot * 8, value);
        }
        self.running.push(Running { pc: code(SIGNAL), sp: context, fp: 0 });
    }

    /// What a program does between two samples.
    pub(super) fn run(&mut self) {
        let returns = match self.random.below(12) {
            // A longjmp, or an exception.
            0 => self.random.below(self.running.len() as u64),
            _ => self.random.below(8).min(self.running.len() as u64 - 1),
        };
        self.running.truncate(self.running.len() - returns as usize);
        for _ in 0..self.random.below(12) {
            let Running { sp, .. } = self.last();
            let room = |it: &Stack| it.holds(sp).then(|| sp - it.base);
            let room = self.memory.stacks.iter().find_map(room).unwrap_or(0);
            match self.random.below(40) {
                _ if room < 1024 => {}
                0 if self.last().pc != code(OF_RBX) => self.interrupt(),
                1 if self.memory.stacks[0].holds(sp) => self.call(SWITCH),
                2 if room > FAR_BYTES => self.call(FAR),
                // Whose caller has none.
                3 if self.last().fp == 0 => self.call(CLEARS_FP),
                4..12 => {
                    let block = self.random.below(EXCHANGED.len() as u64) as usize;
                    self.call(EXCHANGED[block]);
                }
                _ => {
                    let block = self.random.below(OTHERS);
                    self.call(block);
                }
            }
        }
        self.stand();
    }

    /// The program is where its innermost frame is.
    pub(super) fn stand(&mut self) {
        let Running { pc, sp, fp } = self.last();
        let mut gpr = [0; 16];
        gpr.fill_with(|| self.place());
        (gpr[RBP], gpr[RSP]) = (fp, sp);
        self.registers = Registers { pc, sp, fp, gpr };
    }

    /// What a program had better not do, but might.
    pub(super) fn disturb(&mut self) {
        self.disturbed = (0, 0);
        match self.random.below(32) {
            // A word that decides, now or in what lies above it.
            0..5 => {
                let (at, value) = (self.read_place(), self.telling());
                self.write(at, value);
            }
            5 => self.flip_bit(),
            // It becomes what another word of those that decide holds.
            6 => {
                let number = self.random.below(self.running.len() as u64) as usize;
                let at = self.read_place();
                self.write(at, self.running[number].fp);
            }
            // The same pc at another sp, and another at the same.
            14 => self.registers.sp = self.registers.sp.wrapping_add(self.random.below(8) * 8),
            7 => self.registers.pc = code(self.random.below(BLOCKS)),
            8 => self.registers.fp = self.place(),
            9 => self.registers.sp = self.place(),
            10 => {
                let at = self.read_place();
                self.write(at, code(SWITCH));
            }
            11 => self.memory.code = self.random.next(),
            12 => self.segment.exchange(&mut self.random),
            // The mapping above is joined with this one, or is not any more.
            13 => {
                let number = self.random.below(self.memory.stacks.len() as u64) as usize;
                let (length, joined) = (self.lengths[number], self.random.below(4) as usize);
                let filling = self.telling();
                self.memory.stacks[number].words.resize(length + joined, filling);
            }
            _ => {}
        }
    }

    fn flip_bit(&mut self) {
        let (at, bit) = (self.read_place(), self.random.below(64));
        let word = self.memory.stacks.iter_mut().find_map(|it| it.word(at)).map(|word| *word);
        self.write(at, word.unwrap_or(0) ^ 1 << bit);
    }

    /// The place of a word that the last walk read, or behind it.
    fn read_place(&mut self) -> u64 {
        let count = self.read.len() as u64;
        let number = self.random.below(count.max(1)) as usize;
        let offset = self.random.below(2) * 8;
        self.read.get(number).copied().unwrap_or(self.registers.sp) + offset
    }

    /// Walks both ways and compares.
    pub(super) fn check(&mut self) -> Walked {
        let tables = self.segment.tables();
        let snapshot = tables.snapshot().unwrap();
        let start = |memory: &mut Stacks| {
            memory.rebound(self.registers.sp);
            memory.read.clear();
        };
        start(&mut self.memory);
        let plain = unwind(&snapshot, &self.registers, &mut self.memory, &self.plain);
        self.read = core::mem::take(&mut self.memory.read);
        start(&mut self.memory);
        let previous = Previous::new(&self.words).unwrap();
        let previous = if self.any_depth { previous.of_any_depth() } else { previous };
        let walked = unwind_on(&snapshot, &self.registers, &mut self.memory, previous);
        let stepped = values(&self.plain[..plain.depth]);
        assert_eq!((values(previous.frames(&walked)), walked.unwound), (stepped, plain));
        walked
    }
}
