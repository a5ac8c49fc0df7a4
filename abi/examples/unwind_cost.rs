//! Walks up an invented stack, again and again, so that the instructions can be counted:
//! `unwind_cost DEPTH ROUNDS`. The difference of two runs with different rounds is the cost of
//! walks. `scripts/bench unwind` counts with callgrind.
//!
//! # Safety
//! Tables are read from memory that the program owns, with its real length.

use traceprof_abi::ABI_VERSION;
use traceprof_abi::layout::DEPTH_MAX;
use traceprof_abi::runtime::lua::LuaStacks;
use traceprof_abi::sync::AtomicU64;
use traceprof_abi::unwind::rule::{Rule, fp_op, op};
use traceprof_abi::unwind::tables::{Header, MAGIC, Tables};
use traceprof_abi::unwind::{EndReason, Memory, Registers, Snapshot, Unwound, unwind};

const CODE: u64 = 0x10_0000;
const BLOCK: u64 = 256;
const BLOCKS: u64 = 64;
/// Number of rows in each block.
const ROWS: u64 = 16;
const ROOT: u64 = BLOCKS - 1;
const STACK: u64 = 0x7000_0000;

/// Returns a block's rule. Every third function saves the frame pointer, the others move only sp.
fn rule(block: u64) -> Rule {
    let sp = Rule { cfa_off: 16 + (block % 6 * 8) as i32, ..Rule::plain(op::SP) };
    match block {
        ROOT => Rule::STOP,
        _ if block.is_multiple_of(3) => Rule { fp_op: fp_op::AT_CFA, fp_off: -2, ..sp },
        _ => sp,
    }
}

/// Returns a segment with one module: a snapshot at 64, the module at 256, and then its parts.
fn segment() -> Vec<[u64; 2]> {
    const PARTS: [u64; 4] = [1024, 2048, 4096, 8192];
    let mut bytes = vec![0u8; 16 << 10];
    let mut put = |at: u64, value: &[u8]| {
        bytes[at as usize..at as usize + value.len()].copy_from_slice(value);
    };
    let mut words = |at: u64, words: &[u64]| {
        for (word, at) in words.iter().zip((at..).step_by(8)) {
            put(at, &word.to_le_bytes());
        }
    };
    words(0, &[MAGIC, u64::from(ABI_VERSION), size_of::<Header>() as u64]);
    words(64, &[1, 1, 0, CODE, CODE + BLOCKS * BLOCK, 0, 256]);
    let pair = |low: u64, high: u64| low | high << 32;
    let [blocks, lows, ids, rules] = PARTS;
    let counts = [pair(BLOCKS, BLOCKS * ROWS), pair(blocks, lows), pair(ids, rules)];
    words(256, &[&[CODE][..], &counts, &[pair(BLOCKS, 0), 0]].concat());
    for block in 0..=BLOCKS {
        put(blocks + block * 4, &((block * ROWS) as u32).to_le_bytes());
    }
    for row in 0..BLOCKS * ROWS {
        put(lows + row, &[(row % ROWS * (BLOCK / ROWS)) as u8]);
        put(ids + row * 2, &((row / ROWS) as u16).to_le_bytes());
    }
    for block in 0..BLOCKS {
        put(rules + block * 8, &rule(block).to_bits().to_le_bytes());
    }
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    bytes.chunks(16).map(|pair| [word(&pair[..8]), word(&pair[8..])]).collect()
}

/// A stack of `depth` frames, including the leaf.
struct Stack {
    words: Vec<u64>,
    registers: Registers,
}

impl Stack {
    fn new(depth: u64) -> Self {
        let mut words = vec![0; depth as usize * 8 + 8];
        let mut sp = words.len() * 8 - 16;
        let code = |block: u64| CODE + block * BLOCK + BLOCK / 2;
        for number in 1..depth {
            let block = if number == 1 { ROOT } else { (number - 1) % ROOT };
            words[sp / 8 - 1] = code(block);
            sp -= rule(number % ROOT).cfa_off as usize;
        }
        let (pc, sp) = (code((depth - 1) % ROOT), STACK + sp as u64);
        Self { words, registers: Registers { pc, sp, ..Registers::default() } }
    }
}

impl Memory for Stack {
    #[inline]
    fn load(&mut self, avma: u64) -> Option<u64> {
        self.words.get((avma - STACK) as usize / 8).copied()
    }

    fn rebound(&mut self, _: u64) -> bool {
        false
    }

    #[inline]
    fn bounds(&self) -> (u64, u64) {
        (STACK, STACK + self.words.len() as u64 * 8)
    }
}

/// Walks `rounds` times, and returns the result of the last walk.
fn walk(snapshot: &Snapshot<'_>, depth: u64, rounds: u64) -> Option<Unwound> {
    let frames: Vec<AtomicU64> = (0..DEPTH_MAX).map(|_| AtomicU64::new(0)).collect();
    let mut stack = Stack::new(depth);
    let registers = stack.registers;
    (0..rounds).map(|_| unwind(snapshot, &registers, &mut stack, &frames)).last()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [depth, rounds] = &arguments[..] else {
        eprintln!("usage: unwind_cost DEPTH ROUNDS");
        return;
    };
    let number = |word: &String| word.parse().expect("a number");
    let (depth, rounds) = (number(depth), number(rounds));
    let words = segment();
    assert!((words.as_ptr() as usize).is_multiple_of(16));
    // SAFETY: aligned as asserted, of the given length, and not written while it is in use.
    let tables = unsafe { Tables::new(words.as_ptr().cast(), size_of_val(&words[..])) };
    let snapshot = tables.snapshot().expect("the segment has a snapshot");
    let expected = Unwound {
        depth: depth as usize,
        end: EndReason::Root,
        loop_stack: 0,
        lua: LuaStacks::default(),
    };
    assert_eq!(walk(&snapshot, depth, rounds), Some(expected));
}
