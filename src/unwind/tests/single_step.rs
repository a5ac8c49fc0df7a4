//! The instruction-exact oracle: a real program is stepped, a shadow stack kept from its calls and
//! returns, and the walk compared with it at every instruction.
//!
//! The truth does not come from call frame information, so wrong information shows as well.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::Signal;
use traceprof_abi::layout::DEPTH_MAX;
use traceprof_abi::unwind::{EndReason, RETURN_ADDRESS, Registers, Unwound, unwind};

use super::SegmentMemory;
use super::child::{RemoteStack, Stepped};
use crate::unwind::{OutsideStack, OutsideUnwinder, StackCopy, TableWriter};

const RAX: usize = 0;
const RT_SIGRETURN: u64 = 15;
/// mmap, mprotect, munmap, brk: after them the mappings are read again.
const MAPPING_CALLS: [u64; 4] = [9, 10, 11, 12];

/// At one of so many instructions the stack is unwound from a copy as well.
const COPIED_EVERY: u64 = 16;

/// A frame that is not the leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Caller {
    word: u64,
    /// Where on the stack the return address is; the highest address where it is not known.
    slot: u64,
}

/// What came of comparing.
#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    /// All frames right, ended at the root.
    exact: u64,
    /// All frames that there are right, ended early, by reason.
    short: BTreeMap<&'static str, u64>,
    /// All frames right, the root not recognised, by reason.
    unrooted: BTreeMap<&'static str, u64>,
    deepest: usize,
    signal_frames: u64,
    wrong: Vec<String>,
}

struct Oracle<'s> {
    child: Stepped,
    writer: TableWriter<'s>,
    segment: &'s SegmentMemory,
    frames: Vec<AtomicU64>,
    shadow: Vec<Caller>,
    outside: OutsideUnwinder,
    tally: Tally,
}

impl<'s> Oracle<'s> {
    fn new(program: &Path, segment: &'s SegmentMemory) -> Self {
        let mut writer = TableWriter::new(segment.words());
        let mut child = Stepped::start(program);
        child.publish(&mut writer);
        let frames = (0..DEPTH_MAX).map(|_| AtomicU64::new(0)).collect();
        let (shadow, outside, tally) = (Vec::new(), OutsideUnwinder::default(), Tally::default());
        Self { child, writer, segment, frames, shadow, outside, tally }
    }

    fn unwind(&mut self, registers: &Registers) -> Unwound {
        let tables = self.segment.tables();
        if tables.snapshot().unwrap().writable(registers.sp).is_none() {
            self.child.publish(&mut self.writer);
        }
        let snapshot = tables.snapshot().unwrap();
        let mut stack = RemoteStack::new(&self.child, snapshot, registers.sp);
        unwind(&snapshot, registers, &mut stack, &self.frames)
    }

    /// From a copy of some length, which the rest is read behind.
    fn unwind_outside(&mut self, registers: &Registers) -> OutsideStack {
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

    fn words(&self, depth: usize) -> Vec<u64> {
        self.frames[..depth].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn compare(&mut self, registers: &Registers) {
        let unwound = self.unwind(registers);
        let found = self.words(unwound.depth);
        if self.tally.steps.is_multiple_of(COPIED_EVERY) {
            let outside = self.unwind_outside(registers);
            assert_eq!((outside.frames, outside.end), (found.clone(), unwound.end));
        }
        let callers = self.shadow.iter().rev().map(|caller| caller.word);
        let truth: Vec<u64> = std::iter::once(registers.pc).chain(callers).collect();
        let tally = &mut self.tally;
        tally.steps += 1;
        tally.deepest = tally.deepest.max(truth.len());
        tally.signal_frames += u64::from(truth[1..].iter().any(|word| word & RETURN_ADDRESS == 0));
        if found == truth && unwound.end == EndReason::Root {
            tally.exact += 1;
        } else if found == truth {
            *tally.unrooted.entry(unwound.end.name()).or_default() += 1;
        } else if truth.starts_with(&found) && unwound.end != EndReason::Root {
            *tally.short.entry(unwound.end.name()).or_default() += 1;
        } else {
            tally.wrong.push(format!("{:x?}\nis not {:x?} {:?}", truth, found, unwound.end));
        }
    }

    /// Follows one instruction in the shadow stack.
    fn follow(&mut self, before: &Registers, instruction: [u8; 3], after: &Registers) {
        let pushed = after.sp.wrapping_add(8) == before.sp;
        // With a REX, BND or NOTRACK prefix the opcode is the second byte.
        let opcode = match instruction {
            [0x40..=0x4F | 0xF2 | 0x3E, rest @ ..] => rest,
            [first, second, _] => [first, second],
        };
        match opcode {
            [0xE8, _] if pushed => self.call(after.sp),
            [0xFF, modrm] if modrm >> 3 & 7 == 2 && pushed => self.call(after.sp),
            [0xC3 | 0xC2, _] => self.ret(before.sp),
            [0xFF, modrm] if modrm >> 3 & 7 == 4 => {
                // longjmp leaves frames without returning from them.
                while self.shadow.last().is_some_and(|caller| caller.slot < after.sp) {
                    self.shadow.pop();
                }
            }
            [0x0F, 0x05] if before.gpr[RAX] == RT_SIGRETURN => {
                assert_eq!(self.shadow.pop().map(|caller| caller.word), Some(after.pc));
            }
            [0x0F, 0x05] if MAPPING_CALLS.contains(&before.gpr[RAX]) => {
                self.child.publish(&mut self.writer);
            }
            _ => {}
        }
    }

    fn call(&mut self, slot: u64) {
        let word = self.child.word(slot).unwrap() | RETURN_ADDRESS;
        self.shadow.push(Caller { word, slot });
    }

    fn ret(&mut self, slot: u64) {
        // A `ret` that jumps to an address just pushed is no return.
        if self.shadow.last().is_some_and(|caller| caller.slot == slot || caller.slot == u64::MAX) {
            self.shadow.pop();
        }
    }

    /// Steps until a mark (true) or the end (false).
    fn step_to_mark(&mut self, registers: &mut Registers) -> bool {
        let mut signal = None;
        loop {
            let instruction = self.child.instruction(registers.pc);
            let given = signal.take();
            let Some(stopped) = self.child.step(given) else { return false };
            let after = self.child.registers();
            if given.is_some() {
                // The first instruction of the handler: the interrupted frame is exact.
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

    /// Runs at full speed to the deepest recursion, compares there, and on to the last mark.
    fn recurse(&mut self) -> Registers {
        assert_eq!(self.child.run(), Some(Signal::SIGTRAP));
        let registers = self.child.registers();
        let unwound = self.unwind(&registers);
        assert_eq!(unwound, Unwound { depth: DEPTH_MAX, end: EndReason::Depth });
        let words = self.words(unwound.depth);
        assert!(words[1] & RETURN_ADDRESS != 0);
        assert!(words[1..].iter().all(|&word| word == words[1]), "one function, one call");
        assert_eq!(self.child.run(), Some(Signal::SIGTRAP));
        self.child.registers()
    }

    /// Takes the stack that the walk finds as the shadow: the program starts to be stepped in main.
    fn seed(&mut self, registers: &Registers) {
        let unwound = self.unwind(registers);
        assert_eq!(unwound.end, EndReason::Root, "{:x?}", self.words(unwound.depth));
        let callers = self.words(unwound.depth).split_off(1);
        self.shadow = callers.iter().rev().map(|&word| Caller { word, slot: u64::MAX }).collect();
    }
}

fn compiled(directory: &Path, flags: &[&str]) -> PathBuf {
    let source = directory.join("callers.c");
    std::fs::write(&source, include_str!("callers.c")).unwrap();
    let program = directory.join("callers");
    let mut command = Command::new("cc");
    let status = command.args(flags).arg("-o").arg(&program).arg(&source).status();
    assert!(status.expect("a C compiler is needed").success(), "{flags:?}");
    program
}

/// Steps the program built with `flags`, from its first instruction or from main.
fn check(flags: &[&str], from_start: bool) -> Tally {
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), flags);
    let segment = SegmentMemory::new(16 << 20);
    let mut oracle = Oracle::new(&program, &segment);
    let mut registers;
    if from_start {
        registers = oracle.child.registers();
        assert!(oracle.step_to_mark(&mut registers));
    } else {
        assert_eq!(oracle.child.run(), Some(Signal::SIGTRAP));
        oracle.child.publish(&mut oracle.writer);
        registers = oracle.child.registers();
        oracle.seed(&registers);
    }
    assert!(oracle.step_to_mark(&mut registers), "stepped to the pause");
    registers = oracle.recurse();
    assert!(!oracle.step_to_mark(&mut registers), "stepped to the end");
    let tally = oracle.tally;
    eprintln!("{flags:?}: {tally:#?}");
    assert!(tally.wrong.is_empty(), "{} of {} wrong", tally.wrong.len(), tally.steps);
    // What stays short: inside longjmp, whose information is about the saved registers, and in the
    // start-up code of the linker and the compiler, which has none.
    assert!(
        tally.steps - tally.exact <= 40 + tally.steps / 1000,
        "{} of {} exact",
        tally.exact,
        tally.steps
    );
    assert!(tally.signal_frames > 100);
    tally
}

#[test]
fn lazily_bound_program_is_exact_from_its_first_instruction() {
    let tally = check(&["-O2", "-fomit-frame-pointer", "-Wl,-z,lazy"], true);
    assert!(tally.steps > 50_000);
}

#[test]
fn programs_are_exact_however_they_are_compiled() {
    for flags in [
        &["-O0"][..],
        &["-Os", "-fomit-frame-pointer", "-Wl,-z,now"],
        &["-O3", "-fno-omit-frame-pointer"],
        &["-O1", "-fcf-protection=full", "-mno-red-zone", "-Wl,-z,lazy,-z,ibtplt"],
        &["-O2", "-static"],
    ] {
        let tally = check(flags, false);
        assert!(tally.steps > 5_000);
    }
}
