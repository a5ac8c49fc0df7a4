//! Tests with corrupt tables and stacks: every walk ends and stays within its bounds.
//!
//! # Safety
//! Tables are read from memory that the test owns, with its real length.

use std::vec::Vec;

use super::code_heap::{CodeHeap, CodeIdentity, CodeRows, HeapSpan, InterpreterLayout};
use super::rule::{Rule, op};
use super::tables::{Header, MAGIC, Snapshot, Tables};
use super::walk::Machine;
use super::x86_64::Registers;
use super::{EndReason, Memory, aarch64, unwind};
use crate::ABI_VERSION;
use crate::runtime::RuntimeBlock;
use crate::runtime::v8::{ABSENT, V8Layout};
use crate::runtime::word::{self, FrameFunction, FrameWord};
use crate::sync::{AtomicU64, Ordering};

const BOUNDS: (u64, u64) = (0x7000_0000, 0x7001_0000);
const CODE: (u64, u64) = (0x1000, 0x5000);
const DEPTH: usize = 256;
const SWITCHES: usize = 64;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns mostly numbers that are meaningful in the tables and stacks.
    fn plausible(&mut self) -> u64 {
        let offset = self.next();
        match self.next() % 10 {
            0 => BOUNDS.0 + offset % 0x1_0000,
            1..4 => BOUNDS.0 + ((offset % 0x1_0000) & !7),
            4..8 => CODE.0 + offset % (CODE.1 - CODE.0),
            8 => (offset % 128).saturating_sub(64),
            _ => offset,
        }
    }
}

/// A stack of random words that checks every address that the walk loads from.
struct Checked {
    random: Random,
    mostly_code: bool,
    bounds: (u64, u64),
    loads: usize,
    objects: usize,
    without_function: usize,
}

/// The first and the last instance type of functions of V8.
const FUNCTIONS: (u64, u64) = (0x800, 0x801);

impl Memory for Checked {
    fn load(&mut self, avma: u64) -> Option<u64> {
        assert!(avma.is_multiple_of(8), "{avma:#x} is not aligned");
        assert!(self.bounds.0 <= avma && avma <= self.bounds.1 - 8, "{avma:#x} out of bounds");
        self.loads += 1;
        let readable = !self.random.next().is_multiple_of(64);
        let code = CODE.0 + self.random.next() % (CODE.1 - CODE.0);
        // Half of the stacks contain mostly return addresses, so that walks get far.
        let mostly_code = self.mostly_code && !self.random.next().is_multiple_of(16);
        readable.then(|| if mostly_code { code } else { self.random.plausible() })
    }

    fn rebound(&mut self, _: u64) -> bool {
        let lo = self.random.plausible() & !7;
        self.bounds = (lo, lo.saturating_add((self.random.next() % 0x10000) & !7).max(8));
        !self.random.next().is_multiple_of(4)
    }

    fn bounds(&self) -> (u64, u64) {
        self.bounds
    }

    fn load_code(&mut self, _: u64) -> Option<u64> {
        self.loads += 1;
        Some(self.random.plausible())
    }

    fn load_object(&mut self, avma: u64) -> Option<u64> {
        assert!(avma.is_multiple_of(8), "{avma:#x} is not aligned");
        self.objects += 1;
        let types = FUNCTIONS.0 + self.random.next() % 4;
        match self.random.next() % 16 {
            0 => None,
            1 => Some(self.random.next()),
            // Where a map has its type, in half of all maps.
            _ if avma % 16 == 8 => Some(types << 32 | self.random.next() & !0xffff_0000_0000),
            _ => Some(self.random.plausible() & !7 | 1),
        }
    }

    fn count_no_function(&mut self) {
        self.without_function += 1;
    }
}

fn walk(words: &[[u64; 2]], random: &mut Random) -> Option<(usize, EndReason)> {
    // SAFETY: aligned to at least 8 and, for an allocation of pairs this large, to 16 (asserted).
    // Not written while the view is in use.
    let tables = unsafe { Tables::new(words.as_ptr().cast(), size_of_val(words)) };
    assert_eq!(words.as_ptr() as usize % 16, 0);
    let snapshot = tables.snapshot()?;
    let good = random.next() % 2;
    let registers = Registers {
        pc: if good == 1 { CODE.0 + random.next() % (CODE.1 - CODE.0) } else { random.plausible() },
        sp: if good == 1 { BOUNDS.0 + 256 } else { random.plausible() },
        fp: random.plausible(),
        gpr: core::array::from_fn(|_| random.plausible()),
    };
    let other = aarch64::Registers {
        pc: registers.pc,
        sp: registers.sp,
        fp: registers.fp,
        lr: random.plausible(),
        pac_mask: random.next() & random.next(),
    };
    walk_from(&snapshot, &other, good == 1, random);
    Some(walk_from(&snapshot, &registers, good == 1, random))
}

fn walk_from(
    snapshot: &Snapshot<'_>,
    registers: &impl Machine,
    mostly_code: bool,
    random: &mut Random,
) -> (usize, EndReason) {
    let frames: Vec<AtomicU64> = (0..DEPTH).map(|_| AtomicU64::new(0)).collect();
    let mut memory = Checked {
        random: Random(random.next() | 1),
        mostly_code,
        bounds: BOUNDS,
        loads: 0,
        objects: 0,
        without_function: 0,
    };
    let unwound = unwind(snapshot, registers, &mut memory, &frames);
    assert!(unwound.depth >= 1 && unwound.depth <= DEPTH);
    // The search for a caller on another stack adds loads, a bounded number of times.
    assert!(memory.loads <= DEPTH * 24 + SWITCHES * 512, "{} loads", memory.loads);
    let unwritten = &frames[unwound.depth..];
    assert!(unwritten.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    // A function takes seven loads at most, and two for its bytecodes.
    assert!(memory.objects <= DEPTH * 9, "{} loads of objects", memory.objects);
    (unwound.depth, unwound.end)
}

fn head(words: &mut [[u64; 2]], snapshot: u64) {
    words[0] = [MAGIC, u64::from(ABI_VERSION)];
    words[1][0] = snapshot;
}

#[test]
fn random_segments_end_every_walk() {
    let mut random = Random(0x5EED);
    let mut walked = 0;
    for _ in 0..20_000 {
        let len = 16 + (random.next() % 48) as usize;
        let mut words: Vec<[u64; 2]> =
            (0..len).map(|_| [random.plausible(), random.plausible()]).collect();
        let offset = (random.next() % (len as u64 * 16 + 64)) & !(random.next() & 15);
        head(&mut words, offset);
        // The counts sometimes fit, so that more than the header is read.
        if let Some(word) = words.get_mut(offset as usize / 16) {
            word[0] = (random.next() % 6) | ((random.next() % 6) << 32);
        }
        if let Some(word) = words.get_mut(offset as usize / 16 + 1) {
            word[1] = random.next() % 2;
        }
        walked += usize::from(walk(&words, &mut random).is_some());
    }
    assert!(walked > 1_000, "only {walked} segments had a valid snapshot");
}

/// Returns a valid segment with one range and one module, whose rules are random.
fn module_with_random_rules(random: &mut Random) -> Vec<[u64; 2]> {
    const RULES: u64 = 64;
    const BLOCKS: u64 = 0x40;
    let mut words = std::vec![[0u64; 2]; 512];
    head(&mut words, size_of::<Header>() as u64);
    let flat = words.as_flattened_mut();
    // Snapshot at 64: one range [0x1000, 0x5000) with its module at 256.
    flat[8..16].copy_from_slice(&[1, 1, 0, 0, CODE.0, CODE.1, 0, 256]);
    // One row for each block of 256 bytes: blocks at 1024, lows at 2048, ids at 3072, rules at
    // 4096.
    let pair = |low: u64, high: u64| low | high << 32;
    flat[32..38].copy_from_slice(&[
        0x1000,
        pair(BLOCKS, BLOCKS),
        pair(1024, 2048),
        pair(3072, 4096),
        pair(RULES, 0),
        pair(5120 * (random.next() % 2), 0),
    ]);
    for word in 0..(BLOCKS / 2 + 1) {
        flat[128 + word as usize] = pair(word * 2, word * 2 + 1);
    }
    for word in 0..(BLOCKS / 4) {
        let id = |i| (word * 4 + i) % RULES;
        flat[384 + word as usize] = id(0) | id(1) << 16 | id(2) << 32 | id(3) << 48;
    }
    for word in 0..RULES {
        let number = random.next();
        let op = match number % 4 {
            0 => number as u8,
            1 | 2 => op::SP,
            _ => (number >> 8) as u8 % 27,
        };
        // The largest frame that the unwinder searches.
        let large = if op == op::FP_CALLER { 4096 } else { 0x40 };
        let rule = Rule {
            op,
            fp_op: (number >> 16) as u8 % 16,
            fp_off: (number >> 24) as i16 % 16,
            cfa_off: (number >> 40) as i32 % 0x100 / 8 * 8 + large,
        };
        flat[512 + word as usize] = rule.to_bits();
        flat[640 + word as usize / 4] = random.next() & 0x000F_000F_000F_000F;
    }
    words
}

#[test]
fn random_rules_and_stacks_end_every_walk() {
    let mut random = Random(0xFEED);
    let mut ends = [0usize; EndReason::ALL.len()];
    let mut deepest = 0;
    for _ in 0..3_000 {
        let words = module_with_random_rules(&mut random);
        for _ in 0..20 {
            let (depth, end) = walk(&words, &mut random).expect("the segment is valid");
            ends[end as usize] += 1;
            deepest = deepest.max(depth);
        }
    }
    std::eprintln!("{ends:?}, deepest {deepest}");
    assert!(deepest > 16, "no walk went deep");
    let reached = |reason: EndReason| ends[reason as usize] > 0;
    for reason in EndReason::ALL {
        let is_other = matches!(reason, EndReason::Depth | EndReason::Copied);
        assert!(reached(reason) || is_other, "no walk ended with {reason:?}");
    }
}

/// Returns a segment whose code is a heap with one table of random rules for each two segments.
fn heap_with_random_rules(random: &mut Random) -> Vec<[u64; 2]> {
    const HEAP: u64 = 256;
    const PAGE: u64 = 1024;
    const TABLES: u64 = PAGE + 8 * 512;
    const TABLE_BYTES: u64 = 512;
    const SHIFT: u32 = 8;
    const ROWS: usize = 16;
    let mut words = std::vec![[0u64; 2]; (TABLES + 32 * TABLE_BYTES) as usize / 16];
    head(&mut words, 64);
    words[4] = [1 | 1 << 32, 1];
    words[6] = [CODE.0, CODE.1];
    words[7] = [0, HEAP << 32];
    words[8] = [BOUNDS.0, BOUNDS.1];
    let shared: Vec<AtomicU64> = words.as_flattened().iter().copied().map(AtomicU64::new).collect();
    let interpreter = InterpreterLayout { runtime: 1, position_slot: random.next() as i8 };
    let span = HeapSpan { low: CODE.0, high: CODE.1, shift: SHIFT };
    let heap = CodeHeap::create(&shared, HEAP, span, interpreter).expect("a possible heap");
    heap.publish_page(0, PAGE);
    let segments = ((CODE.1 - CODE.0) >> SHIFT) as usize;
    for (number, first) in (0..segments).step_by(2).enumerate() {
        let rows: Vec<(u32, Rule)> = (0..ROWS as u32)
            .map(|row| {
                let bits = random.next();
                let op = match bits >> 8 & 15 {
                    0 => op::SENDER_LEAF + (bits >> 16 & 15) as u8,
                    1 | 2 => op::INTERPRETED,
                    3 | 4 => op::DEOPTIMIZED,
                    5 => op::RETURN_BARRIER,
                    6 => op::RETURN_BELOW,
                    7 => bits as u8,
                    _ => op::SP,
                };
                let location = if bits >> 20 & 1 == 0 { bits as u8 } else { bits as u8 & 3 };
                let cfa_off = match op {
                    op::INTERPRETED | op::SENDER_LEAF.. => i32::from_le_bytes([8, 0, 0, location]),
                    _ => (bits >> 32) as i32 % 256 / 8 * 8 + 64,
                };
                let fp_off = (bits >> 24) as i16 % 32;
                let fp_op = if bits >> 52 & 3 == 0 { (bits >> 54) as u8 % 6 } else { 0 };
                (row * 32, Rule { op, fp_op, fp_off, cfa_off })
            })
            .collect();
        let start = CODE.0 + ((first as u64) << SHIFT);
        let offset = TABLES + number as u64 * TABLE_BYTES;
        // Some are of other code, and some say nothing.
        let at = match random.next() % 16 {
            0 => start - 4,
            1 => start + 4,
            2 => u64::MAX - 3,
            _ => 0,
        };
        let used_before = [0, 9, u32::MAX][number % 3];
        let identity = CodeIdentity { at, value: CODE.0 as u32 + number as u32, used_before };
        let code = CodeRows { start, length: 2 << SHIFT, identity, rows: &rows };
        code.store(&shared, offset).expect("room");
        heap.publish(first..first + 2, offset);
    }
    for (word, shared) in words.as_flattened_mut().iter_mut().zip(&shared) {
        *word = shared.load(Ordering::Relaxed);
    }
    words
}

#[test]
fn random_rules_of_generated_code_end_every_walk() {
    let mut random = Random(0xC0DE);
    let mut ends = [0usize; EndReason::ALL.len()];
    let mut deepest = 0;
    for round in 0..2_000 {
        let mut words = heap_with_random_rules(&mut random);
        for _ in 0..round % 4 * 8 {
            let at = 16 + (random.next() % (words.len() as u64 - 16)) as usize;
            words[at] = [random.plausible(), random.next() % 8192];
        }
        for _ in 0..20 {
            let Some((depth, end)) = walk(&words, &mut random) else { continue };
            ends[end as usize] += 1;
            deepest = deepest.max(depth);
        }
    }
    std::eprintln!("{ends:?}, deepest {deepest}");
    assert!(deepest > 8, "no walk went deep");
    let reached = [EndReason::NoModule, EndReason::BadRule, EndReason::Range];
    assert!(reached.iter().all(|reason| ends[*reason as usize] > 0));
}

/// A stack of frame records, each with slots of random words above the one below.
struct Records {
    random: Random,
    bounds: (u64, u64),
    checked: Checked,
}

impl Memory for Records {
    fn load(&mut self, avma: u64) -> Option<u64> {
        let place = (avma - self.bounds.0) / 8 % 8;
        // Of eight words: the offset, the bytecodes, one more, the function and the context, and
        // the record at a multiple of 64 bytes.
        Some(match place {
            0 if self.random.next().is_multiple_of(32) => self.random.plausible(),
            0 => avma + 64,
            1 => CODE.0 + self.random.next() % (CODE.1 - CODE.0),
            3 if self.random.next().is_multiple_of(2) => self.random.next() << 32,
            _ => self.random.plausible() & !7 | 1,
        })
    }

    fn rebound(&mut self, _: u64) -> bool {
        true
    }

    fn bounds(&self) -> (u64, u64) {
        self.bounds
    }

    fn load_object(&mut self, avma: u64) -> Option<u64> {
        self.checked.load_object(avma)
    }

    fn count_no_function(&mut self) {
        self.checked.count_no_function();
    }
}

/// Returns a segment with two ranges of code, no writable one, and a block. The first range is
/// without a file, and the second is that of a module with one rule, in which interpreted functions
/// run.
fn segment_with_v8(layout: &V8Layout) -> Vec<[u64; 2]> {
    const MODULE: u64 = 640;
    const TABLE: u64 = MODULE + 64;
    const RULES: u64 = TABLE + 16;
    let pair = |low: u64, high: u64| low | high << 32;
    let middle = CODE.0.midpoint(CODE.1);
    let mut words = std::vec![[0u64; 2]; 64];
    head(&mut words, size_of::<Header>() as u64);
    let flat = words.as_flattened_mut();
    flat[8..12].copy_from_slice(&[2, 1, 0, 1]);
    flat[12..20].copy_from_slice(&[CODE.0, middle, 0, 0, middle, CODE.1, 0, MODULE]);
    let block = RuntimeBlock::of_v8(layout).words();
    flat[20..20 + block.len()].copy_from_slice(&block);
    let module = [0, 0, pair(TABLE, TABLE), pair(TABLE, RULES), 1];
    flat[MODULE as usize / 8..][..module.len()].copy_from_slice(&module);
    flat[RULES as usize / 8] = Rule::GAP_FP.to_bits();
    words
}

#[test]
fn random_objects_of_v8_give_functions_or_none() {
    let mut random = Random(0x0FF5E7);
    let layout = V8Layout {
        function_first: FUNCTIONS.0 as u16,
        function_last: FUNCTIONS.1 as u16,
        shared_type: 1,
        bytecodes_type: FUNCTIONS.0 as u16 + 2,
        map_instance_type: 12,
        function_shared: 32,
        shared_script: 40,
        shared_literal: 60,
        shared_unique: 64,
        script_id: 64,
        reserved: [0; 2],
    };
    let (mut functions, mut positions, mut others, mut frames) = (0, 0, 0, 0);
    for round in 0..500 {
        let layout = match round % 4 {
            0 => V8Layout { shared_unique: ABSENT, ..layout },
            // A segment that was overwritten: any offset is safe.
            1 => V8Layout {
                map_instance_type: random.next() as u16,
                function_shared: random.next() as u16,
                shared_unique: random.next() as u16,
                ..layout
            },
            _ => layout,
        };
        let words = segment_with_v8(&layout);
        // SAFETY: as in `walk`.
        let tables = unsafe { Tables::new(words.as_ptr().cast(), size_of_val(&*words)) };
        let snapshot = tables.snapshot().expect("the segment is valid");
        let sp = BOUNDS.0 + 24;
        let registers = Registers { pc: CODE.0 + 64, sp, fp: BOUNDS.0 + 64, gpr: [0; 16] };
        let store: Vec<AtomicU64> = (0..DEPTH).map(|_| AtomicU64::new(0)).collect();
        let checked = Checked {
            random: Random(random.next() | 1),
            mostly_code: false,
            bounds: BOUNDS,
            loads: 0,
            objects: 0,
            without_function: 0,
        };
        let mut memory = Records { random: Random(random.next() | 1), bounds: BOUNDS, checked };
        let unwound = unwind(&snapshot, &registers, &mut memory, &store);
        let found: Vec<u64> =
            store[..unwound.depth].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let (all, sections) = word::split(&found);
        assert_eq!((all.len(), sections.len()), (found.len(), 0));
        assert_eq!(word::whole_frames(all).len(), all.len());
        for frame in word::frames(all) {
            frames += 1;
            let FrameWord::WithFunction(_, function) = frame else { continue };
            functions += usize::from(function.object != 0);
            positions += usize::from(function.position != FrameFunction::NOWHERE);
        }
        others += memory.checked.without_function;
    }
    std::eprintln!("{frames} frames, {functions} functions, {positions} with a position");
    assert!(frames > 5_000 && functions > 100 && positions > 10 && others > 1_000);
}

#[test]
fn segment_of_another_version_is_refused() {
    let mut words = std::vec![[0u64; 2]; 64];
    head(&mut words, 64);
    // SAFETY: as in `walk`.
    let tables = unsafe { Tables::new(words.as_ptr().cast(), 1024) };
    assert!(tables.snapshot().is_some());
    words[0][1] += 1;
    // SAFETY: as in `walk`.
    let tables = unsafe { Tables::new(words.as_ptr().cast(), 1024) };
    assert!(tables.snapshot().is_none());
}
