//! Code without call frame information.
//!
//! # Invariants
//! - Padding between functions is not a gap: it never runs, so it needs no row of its own.

use std::cell::OnceCell;
use std::ops::Range;

use memchr::memmem;
use traceprof_abi::unwind::Rule;

use super::architecture::Architecture;
use super::code::PADDING;
use super::followed;
use super::linkage;
use super::rows::{RowBuilder, RuleId, RuleRange, Rules};
use super::v8_builtins;
use traceprof_elf::{Definitions, Elf};

/// Minimum length in bytes of a gap. Fewer bytes can be padding: functions are aligned to 16.
const GAP_MIN: u32 = 16;
/// A gap of at least this many bytes is generated code, not a hand-written routine.
const GENERATED_MIN: u32 = 64 << 10;

/// Code keeps frame pointers if it has, on average, a prologue that sets up a frame pointer at
/// least once in this many bytes.
const FUNCTION_LENGTH: usize = 1024;
/// Minimum number of such prologues. The compiler's start-up code has one, among functions that
/// keep no frame pointer.
const PROLOGUES_MIN: usize = 4;

/// Length in bytes of the program's entry code: the dynamic linker's has 61 bytes.
const ENTRY_LEN: u32 = 64;

/// `mov $15,%rax; syscall`, in the encodings of C libraries and of Go, and on aarch64 `mov x8,#139;
/// svc #0`: the kernel's only way back from a signal handler.
const SIGRETURNS: [&[u8]; 3] = [
    &[0x48, 0xC7, 0xC0, 0x0F, 0, 0, 0, 0x0F, 0x05],
    &[0xB8, 0x0F, 0, 0, 0, 0x0F, 0x05],
    &[0x68, 0x11, 0x80, 0xD2, 0x01, 0, 0, 0xD4],
];

/// `xor %ebp,%ebp`: the first instruction of a new thread.
const NEW_THREAD: [u8; 2] = [0x31, 0xED];
/// `mov %eax,%edi; call`.
const EXIT_OF_MAIN: [u8; 3] = [0x89, 0xC7, 0xE8];

/// `mov %rax,%rdi; call` and `movslq %eax,%rdi; call`.
const EXITS_OF_THREAD: [[u8; 4]; 2] = [[0x48, 0x89, 0xC7, 0xE8], [0x48, 0x63, 0xF8, 0xE8]];
/// The function that ends a thread, in the C library that contains it.
const THREAD_EXIT: &str = "pthread_exit";

/// Returns the length of the `rt_sigreturn` call that the code starts with, if it does.
///
/// A thread in this call is at the byte behind it, which belongs to the call unless code may begin
/// there.
pub(super) fn sigreturn_len(code: &[u8]) -> Option<usize> {
    let len = SIGRETURNS.iter().find(|pattern| code.starts_with(pattern))?.len();
    Some(len + usize::from(is_padding(&code[len..])))
}

/// Whether code begins with an instruction between functions: `nop` of any length, or `int3`.
fn is_padding(code: &[u8]) -> bool {
    let prefixes = code.iter().take_while(|byte| [0x66, 0x2E].contains(*byte)).count();
    matches!(&code[prefixes..], [0x90 | 0xCC, ..] | [0x0F, 0x1F, ..])
}

/// Fills gaps with rules.
#[derive(Debug)]
pub(super) struct Gaps<'e, 'a> {
    elf: &'e Elf<'a>,
    base: u64,
    frame_pointers: bool,
    /// Start addresses of functions, read when they are first needed.
    symbols: OnceCell<Vec<u64>>,
    /// Start addresses of the builtins of V8, read when they are first needed.
    builtins: OnceCell<Vec<u64>>,
    /// Start address of the function that ends a thread, if other modules can call it here.
    thread_exit: OnceCell<Option<u64>>,
}

impl<'e, 'a> Gaps<'e, 'a> {
    /// Creates a filler. `frame_pointers` says that most of the module's code keeps them.
    pub(super) fn new(elf: &'e Elf<'a>, base: u64, frame_pointers: bool) -> Self {
        let go = elf.section(".gopclntab").or_else(|| elf.section(".data.rel.ro.gopclntab"));
        let frame_pointers = frame_pointers || go.is_some();
        let (symbols, builtins, thread_exit) = Default::default();
        Self { elf, base, frame_pointers, symbols, builtins, thread_exit }
    }

    /// Adds the rows for the gap from `start` to `end`. Returns whether it is a gap.
    pub(super) fn fill(
        &self,
        start: u32,
        end: u32,
        rules: &mut Rules,
        rows: &mut RowBuilder,
    ) -> bool {
        let length = end.saturating_sub(start);
        if length == 0 {
            return false;
        }
        let code = self.code(start, end);
        // `.fini` is shorter than 16 bytes, but it does run.
        if length < GAP_MIN && code.iter().all(|byte| PADDING.contains(byte)) {
            return false;
        }
        let generated = length > GENERATED_MIN && self.frame_pointers;
        if generated || keeps_frame_pointers(code) {
            self.fill_parts((start, end), &[rules.number(Rule::GAP_FP)], rules, rows);
        } else {
            let guesses = Rule::GUESSES.map(|rule| rules.number(rule));
            self.fill_parts((start, end), &guesses, rules, rows);
        }
        true
    }

    /// Fills a gap with one rule for each function that has a symbol. Code that is recognised gets
    /// its own rule.
    fn fill_parts(
        &self,
        (start, end): (u32, u32),
        in_turn: &[RuleId],
        rules: &mut Rules,
        rows: &mut RowBuilder,
    ) {
        let functions = self.functions(start, end);
        let before = |offset: u32| functions.partition_point(|function| *function <= offset);
        let rule = |offset: u32| in_turn[before(offset) % in_turn.len()];
        rows.push(start, rule(start));
        let mut filled = start;
        let code = self.code(start, end);
        let mut parts = known(code);
        let mut followed = Vec::new();
        if Architecture::of(self.elf.machine()) == Some(Architecture::X86_64) {
            let svma = self.base + u64::from(start);
            parts.extend(linkage::stubs(self.elf, code, svma));
            let find_exit = || Definitions::of(self.elf).exported(THREAD_EXIT).map(|it| it.svma);
            if let Some(exit) = *self.thread_exit.get_or_init(find_exit) {
                parts.extend(exits_of_threads(code, exit.wrapping_sub(svma)));
            }
            if in_turn.len() > 1 {
                parts.extend(v8_builtins::collector_parts(code));
                followed = followed::parts(code, svma, &self.starts(start, &functions));
            }
            // Of what keeps frame pointers.
            if in_turn.len() == 1 && end - start > GENERATED_MIN {
                let builtins = self.builtins.get_or_init(|| v8_builtins::starts(self.elf));
                parts.extend(v8_builtins::all_parts(code, svma, builtins));
            }
        }
        parts.extend(self.entry(start, end, &functions));
        parts.sort_by_key(|(bytes, _)| bytes.start);
        parts.extend(without(followed, &parts));
        parts.sort_by_key(|(bytes, _)| bytes.start);
        for (bytes, known) in parts {
            let from = (start + bytes.start).max(filled);
            let up_to = start + bytes.end;
            if up_to < filled {
                continue;
            }
            for function in &functions[before(filled)..before(from)] {
                rows.push(*function, rule(*function));
            }
            rows.push(from, rules.number(known));
            rows.push(up_to, rule(up_to));
            filled = up_to;
        }
        for function in &functions[before(filled)..] {
            rows.push(*function, rule(*function));
        }
    }

    /// Returns the part of a gap where the program starts: it has no caller.
    fn entry(&self, start: u32, end: u32, functions: &[u32]) -> Option<(Range<u32>, Rule)> {
        let entry = self.elf.entry().checked_sub(self.base)?;
        let entry = u32::try_from(entry).ok().filter(|entry| (start..end).contains(entry))?;
        let next = functions.iter().find(|function| **function > entry);
        let up_to = next.map_or(end, |next| *next).min(entry.saturating_add(ENTRY_LEN));
        Some((early(entry - start)..up_to - start, Rule::STOP))
    }

    fn code(&self, start: u32, end: u32) -> &'a [u8] {
        let code = self.elf.data(self.base + u64::from(start)).unwrap_or_default();
        &code[..code.len().min((end - start) as usize)]
    }

    /// Returns the offsets of the functions that start in a gap, given those after its first byte.
    fn starts(&self, start: u32, functions: &[u32]) -> Vec<u32> {
        let symbols = self.symbols.get_or_init(|| self.elf.function_symbols());
        let is_first = symbols.binary_search(&(self.base + u64::from(start))).is_ok();
        let first = is_first.then_some(start);
        first.into_iter().chain(functions.iter().copied()).map(|at| at - start).collect()
    }

    /// Returns the functions that start in a gap, after its first byte.
    fn functions(&self, start: u32, end: u32) -> Vec<u32> {
        let symbols = self.symbols.get_or_init(|| self.elf.function_symbols());
        let (first, last) = (self.base + u64::from(start), self.base + u64::from(end));
        let from = symbols.partition_point(|svma| *svma <= first);
        let inside = symbols[from..].iter().take_while(|svma| **svma < last);
        // A gap ends inside the code, which `Code` keeps shorter than 4 GiB.
        inside.map(|svma| (svma - self.base) as u32).collect()
    }
}

/// Returns what is left of ranges without others. Both are ascending.
fn without(ranges: Vec<RuleRange>, others: &[RuleRange]) -> Vec<RuleRange> {
    let mut left = Vec::new();
    for (mut range, rule) in ranges {
        let first = others.partition_point(|(other, _)| other.end <= range.start);
        for (other, _) in &others[first..] {
            if other.start >= range.end {
                break;
            }
            if range.start < other.start {
                left.push((range.start..other.start, rule));
            }
            range.start = range.start.max(other.end);
        }
        if range.start < range.end {
            left.push((range, rule));
        }
    }
    left
}

/// Returns whether the functions in this code begin with `push %rbp; mov %rsp,%rbp`.
fn keeps_frame_pointers(code: &[u8]) -> bool {
    let encodings: [&[u8]; 2] = [&[0x55, 0x48, 0x89, 0xE5], &[0x55, 0x48, 0x8B, 0xEC]];
    let prologues: usize = encodings.map(|it| memmem::find_iter(code, it).count()).iter().sum();
    prologues >= PROLOGUES_MIN && prologues * FUNCTION_LENGTH >= code.len()
}

/// Returns the offset one byte earlier: code that is returned to is looked up by return address
/// minus one.
fn early(at: u32) -> u32 {
    at.saturating_sub(1)
}

/// Returns the parts of code that are recognised.
fn known(code: &[u8]) -> Vec<RuleRange> {
    let part = |at: usize, len: usize, rule| (early(at as u32)..(at + len) as u32, rule);
    let mut parts = Vec::new();
    for trampoline in SIGRETURNS {
        let found = memmem::find_iter(code, trampoline);
        let found = found.filter_map(|at| Some((at, sigreturn_len(&code[at..])?)));
        parts.extend(found.map(|(at, len)| part(at, len, Rule::SIGNAL)));
    }
    let threads = memmem::find_iter(code, &NEW_THREAD);
    parts.extend(threads.filter_map(|at| Some(part(at, new_thread_len(code, at)?, Rule::STOP))));
    let exits = memmem::find_iter(code, &EXIT_OF_MAIN).filter(|at| is_exit_of_main(code, *at));
    // Nothing runs where main returns to; the address is only looked up.
    parts.extend(exits.map(|at| part(at, 0, Rule::STOP)));
    parts
}

/// Returns where the function of a thread returns to in code that ends the thread with its result.
/// `exit` is the offset of the function that ends a thread.
fn exits_of_threads(code: &[u8], exit: u64) -> Vec<RuleRange> {
    let found = EXITS_OF_THREAD.iter().flat_map(|exits| memmem::find_iter(code, exits));
    let is_exit = |at: &usize| {
        // call *register; call *(register)
        let is_call =
            |before: &[u8]| matches!(before, [.., 0xFF, 0xD0..=0xD7 | 0x10..=0x13 | 0x16 | 0x17]);
        let operand = code.get(at + 4..).and_then(<[u8]>::first_chunk);
        let target = operand.map(|operand| {
            (*at as u64 + 8).wrapping_add_signed(i64::from(i32::from_le_bytes(*operand)))
        });
        is_call(&code[..*at]) && target == Some(exit)
    };
    // As for main, the address is only looked up.
    found.filter(is_exit).map(|at| (early(at as u32)..at as u32, Rule::STOP)).collect()
}

/// Returns the length of the code that a new thread runs first, if it is at `at`: [`NEW_THREAD`]
/// and a call, in musl's `__clone` behind `syscall; test %eax,%eax; jne` past it.
fn new_thread_len(code: &[u8], at: usize) -> Option<usize> {
    const LEN_MAX: u8 = 32;
    let [.., 0x0F, 0x05, 0x85, 0xC0, 0x75, len @ ..LEN_MAX] = code[..at] else { return None };
    Some(usize::from(len))
}

/// Returns whether [`EXIT_OF_MAIN`] at `at` is the end of exactly `call *register; mov %eax,%edi;
/// call exit`: `exit(main())` in the start-up code of a C library.
fn is_exit_of_main(code: &[u8], at: usize) -> bool {
    let (before, code) = code.split_at(at);
    // hlt, int3, nop in its lengths, or the end of the code
    let is_end =
        |next: Option<&u8>| next.is_none_or(|byte| [0xF4, 0xCC, 0x90, 0x0F, 0x66].contains(byte));
    matches!(before, [.., 0xFF, 0xD0..=0xD7]) && is_end(code.get(7))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// musl's `start`: call *(%rbx); mov %rax,%rdi; call to 0x40.
    const START: [u8; 10] = [0xFF, 0x13, 0x48, 0x89, 0xC7, 0xE8, 0x36, 0, 0, 0];

    #[test]
    fn a_function_whose_result_ends_the_thread_is_outermost() {
        let check = |at: usize, byte: u8, exit: u64, expected: &[RuleRange]| {
            let mut code = START;
            code[at] = byte;
            assert_eq!(exits_of_threads(&code, exit), expected, "{code:x?}");
        };
        let outermost = [(1..2, Rule::STOP)];
        check(0, 0xFF, 0x40, &outermost);
        // call *%rax; movslq %eax,%rdi
        check(1, 0xD0, 0x40, &outermost);
        let mut sign_extended = START;
        sign_extended[3..5].copy_from_slice(&[0x63, 0xF8]);
        assert_eq!(exits_of_threads(&sign_extended, 0x40), outermost);
        // Another function; inc %ebx; call *operand(%rip); mov %rax,%rsi.
        check(0, 0xFF, 0x41, &[]);
        check(1, 0xC3, 0x40, &[]);
        check(1, 0x15, 0x40, &[]);
        check(4, 0xC6, 0x40, &[]);
        for len in 0..START.len() {
            assert_eq!(exits_of_threads(&START[..len], 0x40), []);
        }
    }
}
