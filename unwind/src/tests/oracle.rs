//! The instruction-exact oracle. It steps a real program, keeps a shadow stack of its calls and
//! returns, and compares the walk with the shadow stack at every instruction.
//!
//! The shadow stack does not depend on call frame information, so the oracle detects wrong
//! information as well.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::Signal;
use traceprof_abi::layout::DEPTH_MAX;
use traceprof_abi::unwind::rule::op;
use traceprof_abi::unwind::{
    EndReason, RETURN_ADDRESS, Registers, Rule, Unwound, lookup_avma, unwind,
};

use super::SegmentMemory;
use super::child::{ChildStack, Stepped};
use super::known_bad::{KnownBad, known_bad, places};
use crate::{RemoteStack, RemoteUnwinder, StackCopy, TableWriter};

const RAX: usize = 0;
/// Register names in the order of their DWARF numbers.
const REGISTERS: [&str; 16] = [
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
const RT_SIGRETURN: u64 = 15;
/// mmap, mprotect, munmap, brk: the oracle reads the mappings again after them.
const MAPPING_CALLS: [u64; 4] = [9, 10, 11, 12];
/// Every how many instructions the stack is also unwound from a copy.
const COPIED_EVERY: u64 = 16;
/// At most one in this many instructions may be in code that is known to be bad: 1.3 % in code that
/// throws exceptions all the time, 0.9 % in cryptography.
const EXCUSED_PART: u64 = 70;
/// Maximum number of wrong stacks that are printed, each of another location.
const SHOWN_MAX: usize = 12;

/// A frame that is not the leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Caller {
    word: u64,
    /// Address of the return address on the stack, or the highest address if unknown.
    slot: u64,
}

/// A stack as the walk found it.
#[derive(Debug, Clone)]
struct Found {
    frames: Vec<u64>,
    end: EndReason,
}

/// The results of the comparison.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) steps: u64,
    /// Stacks with all frames right that ended at the root.
    pub(super) exact: u64,
    /// Exact stacks of frames that are about to jump into another frame.
    pub(super) resumed: u64,
    /// Stacks that are not exact, in code that is known to be bad.
    pub(super) excused: BTreeMap<KnownBad, u64>,
    pub(super) deepest: usize,
    pub(super) signal_frames: u64,
    /// Instructions by module.
    pub(super) modules: BTreeMap<String, u64>,
    wrong: BTreeMap<String, Wrong>,
}

/// The errors at one location.
#[derive(Debug, Default)]
struct Wrong {
    times: u64,
    svmas: BTreeSet<u64>,
    first: String,
}

impl Tally {
    /// Asserts that the stack of every instruction was right, except where it is known to be wrong.
    pub(super) fn assert_exact(&self, name: &str) {
        let Self { steps, exact, resumed, excused, deepest, signal_frames, modules, wrong, .. } =
            self;
        eprintln!(
            "{name}: {steps} steps, {exact} exact, {resumed} of them about to jump, {excused:?}\n\
             deepest {deepest}, {signal_frames} above a signal's frame, {modules:?}"
        );
        let shown: Vec<String> = wrong
            .iter()
            .take(SHOWN_MAX)
            .map(|(place, it)| format!("{place}: {} at {:x?}\n{}", it.times, it.svmas, it.first))
            .collect();
        assert!(shown.is_empty(), "{name}: of {steps} steps\n{}", shown.join("\n"));
        let excused: u64 = excused.values().sum();
        assert_eq!(exact + excused, *steps);
        assert!(excused * EXCUSED_PART <= *steps, "{name}: {excused} of {steps} are excused");
    }
}

impl Tally {
    /// Asserts that no stack had a wrong frame.
    pub(super) fn assert_never_wrong(&self, name: &str) {
        let Self { steps, exact, wrong, .. } = self;
        eprintln!("{name}: {exact} of {steps} exact, {:?}", wrong.keys());
        let is_gap = |place: &&String| place.ends_with(EndReason::Gap.name());
        let shown: Vec<_> = wrong.iter().filter(|(place, _)| !is_gap(place)).collect();
        assert!(shown.is_empty(), "{name}: {shown:#x?}");
    }
}

/// A program under comparison.
pub(super) struct Oracle<'s> {
    pub(super) child: Stepped,
    pub(super) writer: TableWriter<'s>,
    segment: &'s SegmentMemory,
    frames: Vec<AtomicU64>,
    shadow: Vec<Caller>,
    /// Stacks found while the program was about to jump into another frame.
    jumping: Vec<(u64, Found)>,
    outside: RemoteUnwinder,
    known_bad: Vec<KnownBad>,
    /// Results of [`places`] by module and address: each call reads all symbols of the module.
    places: HashMap<(String, u64), Vec<String>>,
    pub(super) tally: Tally,
}

impl<'s> Oracle<'s> {
    pub(super) fn new(command: Command, segment: &'s SegmentMemory) -> Self {
        let mut writer = TableWriter::new(segment.words());
        let mut child = Stepped::start(command);
        child.publish(&mut writer);
        Self {
            child,
            writer,
            segment,
            frames: (0..DEPTH_MAX).map(|_| AtomicU64::new(0)).collect(),
            shadow: Vec::new(),
            jumping: Vec::new(),
            outside: RemoteUnwinder::default(),
            known_bad: known_bad(),
            places: HashMap::new(),
            tally: Tally::default(),
        }
    }

    pub(super) fn unwind(&mut self, registers: &Registers) -> Unwound {
        let tables = self.segment.tables();
        if tables.snapshot().unwrap().writable(registers.sp).is_none() {
            self.child.publish(&mut self.writer);
        }
        let snapshot = tables.snapshot().unwrap();
        let mut stack = ChildStack::new(&self.child, snapshot, registers.sp);
        unwind(&snapshot, registers, &mut stack, &self.frames)
    }

    /// Unwinds from a copy of some length. The remainder is read from the process.
    fn unwind_outside(&mut self, registers: &Registers) -> RemoteStack {
        let tables = self.segment.tables();
        let snapshot = tables.snapshot().unwrap();
        let mut bytes = vec![0; (self.tally.steps * 13 % 1024 + 128) as usize];
        let avma = (registers.sp - 128) & !7;
        let there = self.child.read(avma, &mut bytes);
        let bytes = if there { &bytes[..] } else { &[] };
        let copy = StackCopy { avma, bytes };
        let child = &self.child;
        let mut read = |avma, into: &mut [u8]| if child.read(avma, into) { into.len() } else { 0 };
        self.outside.unwind(&snapshot, registers, copy, &mut read)
    }

    fn rule(&self, pc: u64) -> Option<Rule> {
        let tables = self.segment.tables();
        let snapshot = tables.snapshot().unwrap();
        let range = snapshot.range(pc)?;
        snapshot.module(range).map(|it| it.rule(pc.wrapping_sub(range.bias)))
    }

    /// Returns whether the rule says that the frame is about to jump into another one.
    fn is_jumping(&self, pc: u64) -> bool {
        let jumps = |rule: Rule| matches!(rule.op, op::FROM_REGISTERS | op::FROM_CONTEXT);
        self.rule(pc).is_some_and(jumps)
    }

    pub(super) fn words(&self, depth: usize) -> Vec<u64> {
        self.frames[..depth].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn compare(&mut self, registers: &Registers) {
        let unwound = self.unwind(registers);
        let found = Found { frames: self.words(unwound.depth), end: unwound.end };
        if self.tally.steps.is_multiple_of(COPIED_EVERY) {
            let outside = self.unwind_outside(registers);
            assert_eq!((&outside.frames, outside.end), (&found.frames, found.end));
        }
        let callers = self.shadow.iter().rev().map(|caller| caller.word);
        let truth: Vec<u64> = std::iter::once(registers.pc).chain(callers).collect();
        let tally = &mut self.tally;
        tally.steps += 1;
        tally.deepest = tally.deepest.max(truth.len());
        tally.signal_frames += u64::from(truth[1..].iter().any(|word| word & RETURN_ADDRESS == 0));
        if let Some((module, _)) = self.child.place(registers.pc) {
            *tally.modules.entry(module.to_owned()).or_default() += 1;
        }
        if self.is_jumping(registers.pc) {
            // The destination is known after the jump.
            self.jumping.push((registers.pc, found));
            return;
        }
        for (pc, found) in std::mem::take(&mut self.jumping) {
            let landed = [&[pc, truth[0] | RETURN_ADDRESS], &truth[1..]].concat();
            self.tally.resumed += 1;
            self.judge(&landed, &found);
        }
        self.judge(&truth, &found);
    }

    fn judge(&mut self, truth: &[u64], found: &Found) {
        let Found { frames, end } = found;
        if frames == truth && *end == EndReason::Root {
            self.tally.exact += 1;
            return;
        }
        let is_right = truth.starts_with(frames) && *end != EndReason::Root;
        let outcome = if is_right { end.name() } else { "wrong" };
        let right = frames.iter().zip(truth).take_while(|(found, there)| found == there).count();
        // The frames after the last right one were not found.
        let last = lookup_avma(frames[right.saturating_sub(1)]);
        let (module, bytes) = self.child.place(last).unwrap_or(("nowhere", None));
        let mut places = bytes.map_or_else(Vec::new, |(bytes, svma)| {
            let known = self.places.entry((module.to_owned(), svma));
            known.or_insert_with(|| places(bytes, svma)).clone()
        });
        let op = self.rule(last).map_or(op::BAD, |rule| rule.op);
        // All registers of the running function are known.
        let base = REGISTERS.get(usize::from(op.wrapping_sub(op::REG_LEAF)));
        places.extend(base.filter(|_| right > 1).map(|name| format!("cfa={name}")));
        let known = self.known_bad.iter().find(|it| it.excuses(module, &places, outcome));
        if let Some(known) = known {
            *self.tally.excused.entry(*known).or_default() += 1;
            return;
        }
        let svma = bytes.map_or(last, |(_, svma)| svma);
        let wrong = self.tally.wrong.entry(format!("{module} {places:?} {outcome}")).or_default();
        wrong.times += 1;
        wrong.svmas.insert(svma);
        if wrong.first.is_empty() {
            wrong.first = format!("{truth:x?}\nis not {frames:x?} {end:?}");
        }
    }

    /// Follows one instruction in the shadow stack.
    fn follow(&mut self, before: &Registers, instruction: [u8; 8], after: &Registers) {
        let pushed = after.sp.wrapping_add(8) == before.sp;
        let is_prefix = |byte: &u8| matches!(byte, 0x40..=0x4F | 0x66 | 0xF2 | 0xF3 | 0x3E);
        let prefixes = instruction.iter().take_while(|byte| is_prefix(byte)).count();
        match instruction[prefixes..] {
            [0xE8, ..] if pushed => self.call(after.sp),
            [0xFF, modrm, ..] if modrm >> 3 & 7 == 2 && pushed => self.call(after.sp),
            // A `ret` that jumps to an address just pushed is not a return.
            [0xC3 | 0xC2, ..] if self.is_seeded_at_top() => {
                self.shadow.pop();
            }
            [0xC3 | 0xC2, ..] => self.leave(after.sp),
            [0xFF, modrm, ..] if modrm >> 3 & 7 == 4 => self.leave(after.sp),
            [0x0F, 0x05, ..] if before.gpr[RAX] == RT_SIGRETURN => {
                assert_eq!(self.shadow.pop().map(|caller| caller.word), Some(after.pc));
            }
            [0x0F, 0x05, ..] if MAPPING_CALLS.contains(&before.gpr[RAX]) => {
                self.child.publish(&mut self.writer);
            }
            _ => {}
        }
    }

    fn call(&mut self, slot: u64) {
        let word = self.child.word(slot).unwrap() | RETURN_ADDRESS;
        self.shadow.push(Caller { word, slot });
    }

    /// Returns whether the current function is one that the program was in when stepping started.
    fn is_seeded_at_top(&self) -> bool {
        self.shadow.last().is_some_and(|caller| caller.slot == u64::MAX)
    }

    /// Removes frames whose return address is below sp: longjmp and exceptions leave frames without
    /// a return. Frames on another stack may still be live.
    fn leave(&mut self, sp: u64) {
        let tables = self.segment.tables();
        let snapshot = tables.snapshot().unwrap();
        let Some((lo, _)) = snapshot.writable(sp) else { return };
        while self.shadow.last().is_some_and(|caller| (lo..sp).contains(&caller.slot)) {
            self.shadow.pop();
        }
    }

    /// Steps until a mark (true) or the end (false).
    pub(super) fn step_to_mark(&mut self, registers: &mut Registers) -> bool {
        let mut signal = None;
        loop {
            let instruction = self.child.instruction(registers.pc);
            let given = signal.take();
            let Some(stopped) = self.child.step(given) else { return false };
            let after = self.child.registers();
            if given.is_some() {
                // This is the first instruction of the handler: the interrupted frame is exact.
                self.shadow.push(Caller { word: registers.pc, slot: registers.sp });
                self.call(after.sp);
            } else if stopped == Signal::SIGTRAP {
                self.follow(registers, instruction, &after);
            }
            *registers = after;
            if given.is_none() && instruction[0] == 0xCC {
                return true;
            }
            if stopped != Signal::SIGTRAP {
                signal = Some(stopped);
            }
            self.compare(registers);
        }
    }

    /// Uses the stack that the walk finds as the shadow stack: stepping starts in main.
    pub(super) fn seed(&mut self, registers: &Registers) {
        let unwound = self.unwind(registers);
        assert_eq!(unwound.end, EndReason::Root, "{:x?}", self.words(unwound.depth));
        let callers = self.words(unwound.depth).split_off(1);
        self.shadow = callers.iter().rev().map(|&word| Caller { word, slot: u64::MAX }).collect();
    }
}
