//! Rows for a Go program, from Go's own table of frame sizes.
//!
//! The table gives the bytes of stack in use at each instruction. It does not say where the
//! caller's frame pointer is saved. That is always directly below the return address, from the
//! prologue's store on. The store is recognised by its bytes.
//!
//! # Invariants
//! - A function that moves the stack pointer to another stack is unwound through what it has kept
//!   of it, or through the frame pointer, or ends the walk. Frame sizes say nothing there.

use std::cell::Cell;
use std::ops::Range;

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{fp_op, op};

use super::kept_sp::{self, KeptSp};
use traceprof_elf::{Elf, GoFunction, Pclntab};

/// Names of the outermost functions: Go 1.16 has no flag for them.
const OUTERMOST: [&str; 3] = ["runtime.goexit", "runtime.mstart", "runtime.rt0_go"];
/// The function that runs on the signal stack. Its caller is the trampoline that returns to the
/// interrupted code.
const SIGNAL_ENTRY: &str = "runtime.sigtramp";
/// Functions that switch to the system stack and never return. Code there does not do the
/// goroutine's work, and Go itself treats these functions as outermost.
const LEAVERS: [&str; 2] = ["runtime.mcall", "runtime.morestack"];

/// Functions whose calls signal handlers inject between any two instructions of the interrupted
/// function.
const INJECTED: [&str; 3] = ["runtime.asyncPreempt", "runtime.sigpanic", "runtime.debugCallV2"];

/// `mov %rbp,disp(%rsp)`, with 8 and with 32 bits of displacement, and without.
const SAVES: [&[u8]; 3] =
    [&[0x48, 0x89, 0x6C, 0x24], &[0x48, 0x89, 0xAC, 0x24], &[0x48, 0x89, 0x2C, 0x24]];
/// `mov disp(%rsp),%rbp`.
const RESTORES: [&[u8]; 3] =
    [&[0x48, 0x8B, 0x6C, 0x24], &[0x48, 0x8B, 0xAC, 0x24], &[0x48, 0x8B, 0x2C, 0x24]];
/// `push %rbp`.
const PUSH: u8 = 0x55;
/// Lengths of these instructions in bytes.
const LENGTHS: [usize; 3] = [5, 8, 4];
/// Length of `mov %rsp,%rbp`. `lea disp(%rsp),%rbp` is as long as the store before it.
const MOVE_LEN: u64 = 3;

/// Prefix of the names of the runtime's functions.
const RUNTIME: &str = "runtime.";
/// Maximum frame size in bytes of a caller that is searched for a return address.
const CALLERS_FRAME_MAX: i32 = 4096;

/// Maximum number of functions of a program whose callers are searched for. A real program has
/// three.
const SEARCHES_MAX: usize = 16;

/// Maximum number of frame sizes of one plausible function.
const SIZES_MAX: usize = 1 << 16;

/// An address (SVMA), and the rule that applies from it on.
pub(super) type GoRow = (u64, Rule);

/// Returns whether the function has at most [`SIZES_MAX`] frame sizes.
pub(super) fn is_plausible(function: &GoFunction<'_, '_>) -> bool {
    function.frame_sizes().nth(SIZES_MAX).is_none()
}

/// Returns the rows of a function, ascending.
pub(super) fn rows(
    elf: &Elf<'_>,
    callers: &Callers<'_, '_>,
    function: &GoFunction<'_, '_>,
) -> Vec<GoRow> {
    let start = function.range.start;
    let name = function.name().unwrap_or_default();
    let is_outermost = function.is_outermost() || OUTERMOST.contains(&name);
    if is_outermost && name != SIGNAL_ENTRY {
        return vec![(start, Rule::STOP)];
    }
    let code = elf.data(start).unwrap_or_default();
    let len = usize::try_from(function.range.end - start).unwrap_or(usize::MAX);
    let code = &code[..code.len().min(len)];
    let first = function.frame_sizes().find(|(_, size)| *size > 0);
    let frame =
        first.map_or(SavedFramePointer::NONE, |first| SavedFramePointer::find(start, first, code));
    let mut rows = Vec::new();
    for (range, size) in function.frame_sizes() {
        frame.add_rows(range, size, &mut rows);
    }
    if INJECTED.contains(&name) {
        let by_sp = rows.iter_mut().filter(|(_, rule)| rule.op == op::SP);
        by_sp.for_each(|(_, rule)| rule.op = op::SP_INJECTED);
    }
    if function.writes_sp() {
        let frame_max = || callers.frame_max(elf, start);
        let own = rows.clone();
        frame.keep_across_stacks(function, code, frame_max, &mut rows);
        use_kept(start, code, &own, &mut rows);
    }
    rows
}

/// Sets the rules of calls on another stack after which the function takes its stack pointer back
/// from there. `own` are the rules on its own stack.
fn use_kept(start: u64, code: &[u8], own: &[GoRow], rows: &mut Vec<GoRow>) {
    for call in kept_sp::calls(code) {
        let [away, back, end] = [call.away.start, call.away.end, call.end].map(|at| start + at);
        let on_own = own.iter().rev().find(|row| row.0 <= back);
        let Some(rule) = on_own.and_then(|(_, on_own)| kept_rule(call.kept, *on_own)) else {
            continue;
        };
        replace(rows, away..back, rule);
        for (at, rule) in rows_in(own, back..end) {
            replace(rows, at.start..at.end, rule);
        }
    }
}

/// Returns the rule of code that has kept its stack pointer. `on_own` is its rule with that.
fn kept_rule(kept: KeptSp, on_own: Rule) -> Option<Rule> {
    let above = u8::try_from(on_own.cfa_off / 8).ok().filter(|_| on_own.cfa_off % 8 == 0)?;
    let rule = match kept {
        _ if on_own.op != op::SP => return None,
        KeptSp::Depth { owner, end, depth } => Rule::depth([owner, end, depth, above]),
        KeptSp::Address(at) => {
            let [low, high] = (u16::from(at) * 8).to_le_bytes();
            let cfa_off = i32::from_le_bytes([low, high, 0, above]);
            Rule { cfa_off, ..Rule::plain(op::DEREF_SP_ADD) }
        }
    };
    Some(Rule { fp_op: on_own.fp_op, fp_off: on_own.fp_off, ..rule })
}

/// Returns the parts of a range with their rules.
fn rows_in(rows: &[GoRow], range: Range<u64>) -> Vec<(Range<u64>, Rule)> {
    let ends = rows.iter().skip(1).map(|row| row.0).chain([u64::MAX]);
    let parts = rows
        .iter()
        .zip(ends)
        .map(|((start, rule), end)| ((*start).max(range.start)..end.min(range.end), *rule));
    parts.filter(|(part, _)| !part.is_empty()).collect()
}

/// The location of a function's saved frame pointer: that of its caller.
struct SavedFramePointer {
    /// Address from which on the caller's frame pointer is in the frame.
    saved: Option<u64>,
    /// Address from which on %rbp holds the frame's address.
    set: Option<u64>,
}

impl SavedFramePointer {
    const NONE: Self = Self { saved: None, set: None };

    /// Finds the save from the first range in which the function uses the stack, and the bytes in
    /// use there.
    fn find(start: u64, (range, size): (Range<u64>, i32), code: &[u8]) -> Self {
        let at = (range.start - start) as usize;
        // Go 1.21 and later push the frame pointer. The row begins after the push.
        if size == 8 && at > 0 && code.get(at - 1) == Some(&PUSH) {
            return Self { saved: Some(range.start), set: Some(range.start + MOVE_LEN) };
        }
        let here = code.get(at..).unwrap_or_default();
        match access(&SAVES, here) {
            Some((len, displacement)) if displacement == size - 8 => {
                let saved = range.start + len as u64;
                Self { saved: Some(saved), set: Some(saved + len as u64) }
            }
            _ => Self::NONE,
        }
    }

    fn add_rows(&self, range: Range<u64>, size: i32, rows: &mut Vec<GoRow>) {
        let own = match size.checked_add(8) {
            Some(cfa_off) if size >= 0 => Rule { cfa_off, ..Rule::plain(op::SP) },
            _ => Rule::BAD,
        };
        let with_saved = Rule { fp_op: fp_op::AT_CFA, fp_off: -2, ..own };
        match self.saved.filter(|_| size > 0 && own != Rule::BAD) {
            Some(saved) if saved <= range.start => rows.push((range.start, with_saved)),
            Some(saved) if saved < range.end => {
                rows.extend([(range.start, own), (saved, with_saved)]);
            }
            _ => rows.push((range.start, own)),
        }
    }

    /// Sets the rules of a function that switches stacks. From where the function sets the frame
    /// pointer to where it restores it, the pointer leads to the frame on any stack. A function
    /// that sets none leaves its caller's frame pointer in place, and unwinding from its callees
    /// goes through that. `frame_max` returns the maximum size of the caller's frame.
    fn keep_across_stacks(
        &self,
        function: &GoFunction<'_, '_>,
        code: &[u8],
        frame_max: impl Fn() -> Option<i32>,
        rows: &mut Vec<GoRow>,
    ) {
        let start = function.range.start;
        let name = function.name().unwrap_or_default();
        let own = rows.clone();
        let end = |from: u64| {
            let rest = code.get((from - start) as usize..).unwrap_or_default();
            let mut starts = (0..rest.len()).filter(|&at| access(&RESTORES, &rest[at..]).is_some());
            starts.next().map_or(function.range.end, |at| from + at as u64)
        };
        if let Some(set) = self.set.filter(|&set| set < function.range.end) {
            replace(rows, set..end(set), Rule::FP_SWITCH);
            // From the pop on the register has the caller's frame pointer.
            let popped = rows_in(&own, set..function.range.end).into_iter();
            popped
                .filter(|(_, rule)| *rule == Rule { cfa_off: 8, ..Rule::plain(op::SP) })
                .for_each(|(part, rule)| replace(rows, part, rule));
        }
        let is_leaver = LEAVERS.contains(&name);
        if (is_leaver || self.set.is_none())
            && let Some(part) = switched(code)
        {
            let rule = match (is_leaver, i16::try_from(part.end)) {
                (true, _) => Rule::STOP,
                (_, Ok(len)) => frame_max().map_or(Rule::FP_SWITCH, |size| by_caller(size, len)),
                _ => Rule::FP_SWITCH,
            };
            replace(rows, start + part.start..start + part.end, rule);
        }
    }
}

/// Returns the rule of a function with this length whose callers have frames of at most this size.
fn by_caller(frame_max: i32, len: i16) -> Rule {
    Rule { fp_off: len, cfa_off: frame_max, ..Rule::plain(op::FP_CALLER) }
}

/// Finds the callers of functions. The number of searches is limited: each scans the complete
/// runtime.
pub(super) struct Callers<'t, 'a> {
    table: &'t Pclntab<'a>,
    searches: Cell<usize>,
}

impl<'t, 'a> Callers<'t, 'a> {
    pub(super) fn new(table: &'t Pclntab<'a>) -> Self {
        Self { table, searches: Cell::new(0) }
    }

    /// Returns the largest frame, in bytes, of a runtime function where it calls the function at
    /// `entry`. Only the runtime calls functions that switch stacks.
    fn frame_max(&self, elf: &Elf<'_>, entry: u64) -> Option<i32> {
        self.searches.set(self.searches.get() + 1);
        if self.searches.get() > SEARCHES_MAX {
            return None;
        }
        let functions = self.table.functions();
        let of_runtime = functions.filter(|it| it.name().is_some_and(|it| it.starts_with(RUNTIME)));
        let sizes = of_runtime.flat_map(|function| frames_at_calls(elf, &function, entry));
        sizes.max().filter(|size| (1..=CALLERS_FRAME_MAX).contains(size))
    }
}

/// Returns the frame sizes of a function at its calls of the function at `entry`.
fn frames_at_calls(elf: &Elf<'_>, function: &GoFunction<'_, '_>, entry: u64) -> Vec<i32> {
    let Range { start, end } = function.range;
    let code = elf.data(start).unwrap_or_default();
    let code = &code[..code.len().min(usize::try_from(end - start).unwrap_or(usize::MAX))];
    let is_call = |at: &usize| call_target(code, *at) == Some(entry.wrapping_sub(start) as i64);
    let calls = (0..code.len()).filter(is_call).map(|at| start + at as u64);
    let size = |call| function.frame_sizes().find(|(range, _)| range.contains(&call));
    // A call whose frame is not known counts as too large.
    calls.map(|call| size(call).map_or(i32::MAX, |(_, size)| size)).collect()
}

/// Returns the target of the call at `at`, relative to the start of the code, or `None` if there is
/// no call.
fn call_target(code: &[u8], at: usize) -> Option<i64> {
    let [0xE8, operand @ ..] = *code.get(at..)?.first_chunk::<5>()? else { return None };
    Some(at as i64 + 5 + i64::from(i32::from_le_bytes(operand)))
}

/// Replaces the rules of a range of rows with one rule.
fn replace(rows: &mut Vec<GoRow>, range: Range<u64>, rule: Rule) {
    let last = rows.iter().rev().find(|row| row.0 <= range.end).copied();
    rows.retain(|row| !range.contains(&row.0) && row.0 != range.end);
    rows.push((range.start, rule));
    rows.extend(last.map(|(_, rule)| (range.end, rule)));
    rows.sort_by_key(|row| row.0);
}

/// Returns the length and displacement of a stack access that has one of three encodings.
fn access(encodings: &[&[u8]; 3], code: &[u8]) -> Option<(usize, i32)> {
    let which = encodings.iter().position(|start| code.starts_with(start))?;
    let displacement = match which {
        0 => i32::from(*code.get(4)? as i8),
        2 => 0,
        _ => i32::from_le_bytes(*code.get(4..)?.first_chunk()?),
    };
    Some((LENGTHS[which], displacement))
}

/// Returns the part of frameless code that runs on another stack: from the first change of the
/// stack pointer to the second, or to the end.
fn switched(code: &[u8]) -> Option<Range<u64>> {
    let mut changes = (0..code.len()).filter_map(|at| Some((at, sp_change_len(&code[at..])?)));
    let (first, len) = changes.next()?;
    let last = changes.next_back().filter(|(at, _)| *at >= first + len);
    let end = last.map_or(code.len(), |(at, len)| at + len);
    Some((first + len) as u64..end as u64)
}

/// Returns the length of the move to the stack pointer, from a register or memory, that the code
/// starts with.
fn sp_change_len(code: &[u8]) -> Option<usize> {
    let [rex, opcode, modrm, ..] = *code.first_chunk::<3>()?;
    let (mode, register, base) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
    match (rex, opcode) {
        (0x48 | 0x4C, 0x89) if mode == 3 && base == 4 => Some(3),
        (0x48 | 0x49, 0x8B) if register == 4 && base != 4 && mode == 1 => Some(4),
        (0x48 | 0x49, 0x8B) if register == 4 && base != 4 && mode == 2 => Some(7),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x1000;

    /// Returns the rows of a function with this prologue, whose frame sizes apply from these
    /// offsets on.
    fn rows_of(code: &[u8], sizes: &[(u64, i32)]) -> Vec<GoRow> {
        let end = |at: usize| sizes.get(at + 1).map_or(0x100, |(from, _)| *from);
        let sizes = sizes.iter().enumerate();
        let parts: Vec<_> =
            sizes.map(|(at, (from, size))| (START + from..START + end(at), *size)).collect();
        let first = parts.iter().find(|(_, size)| *size > 0).cloned();
        let frame = first
            .map_or(SavedFramePointer::NONE, |first| SavedFramePointer::find(START, first, code));
        let mut rows = Vec::new();
        parts.into_iter().for_each(|(range, size)| frame.add_rows(range, size, &mut rows));
        rows
    }

    fn row(offset: u64, cfa_off: i32, has_saved: bool) -> GoRow {
        let rule = Rule { cfa_off, ..Rule::plain(op::SP) };
        let with_saved = Rule { fp_op: fp_op::AT_CFA, fp_off: -2, ..rule };
        (START + offset, if has_saved { with_saved } else { rule })
    }

    #[test]
    fn a_frame_pointer_is_stored_up_to_go_1_20() {
        // cmp 16(%r14),%rsp; jbe; sub $24,%rsp; mov %rbp,16(%rsp); lea 16(%rsp),%rbp
        let check = [0x49, 0x3B, 0x66, 0x10, 0x76, 0x40];
        let near = [0x48, 0x83, 0xEC, 24, 0x48, 0x89, 0x6C, 0x24, 16, 0x48, 0x8D, 0x6C, 0x24, 16];
        let sizes = [(0, 0), (10, 24), (0x50, 0)];
        let expected =
            [row(0, 8, false), row(10, 32, false), row(15, 32, true), row(0x50, 8, false)];
        assert_eq!(rows_of(&[&check[..], &near].concat(), &sizes), expected);
        // sub $512,%rsp; mov %rbp,504(%rsp)
        let far = [0x48, 0x81, 0xEC, 0, 2, 0, 0, 0x48, 0x89, 0xAC, 0x24, 0xF8, 1, 0, 0];
        let expected = [row(0, 8, false), row(13, 520, false), row(21, 520, true)];
        assert_eq!(rows_of(&[&check[..], &far].concat(), &[(0, 0), (13, 512)]), expected);
        // sub $8,%rsp; mov %rbp,(%rsp); lea (%rsp),%rbp: the frame holds nothing else.
        let alone = [0x48, 0x83, 0xEC, 8, 0x48, 0x89, 0x2C, 0x24, 0x48, 0x8D, 0x2C, 0x24];
        let expected = [row(0, 8, false), row(10, 16, false), row(14, 16, true)];
        assert_eq!(rows_of(&[&check[..], &alone].concat(), &[(0, 0), (10, 8)]), expected);
        // A store to another slot does not save the frame pointer.
        let other = [0x48, 0x83, 0xEC, 24, 0x48, 0x89, 0x6C, 0x24, 8];
        let expected = [row(0, 8, false), row(10, 32, false)];
        assert_eq!(rows_of(&[&check[..], &other].concat(), &sizes[..2]), expected);
    }

    #[test]
    fn a_frame_pointer_is_pushed_from_go_1_21_on() {
        // cmp 16(%r14),%rsp; jbe; push %rbp; mov %rsp,%rbp; sub $16,%rsp
        let code = [
            0x49, 0x3B, 0x66, 0x10, 0x76, 0x40, 0x55, 0x48, 0x89, 0xE5, 0x48, 0x83, 0xEC, 16, 0x90,
        ];
        let expected = [row(0, 8, false), row(7, 16, true), row(14, 32, true)];
        assert_eq!(rows_of(&code, &[(0, 0), (7, 8), (14, 24)]), expected);
        let frame = SavedFramePointer::find(START, (START + 7..START + 14, 8), &code);
        assert_eq!((frame.saved, frame.set), (Some(START + 7), Some(START + 10)));
        // Corrupt frame sizes.
        assert_eq!(rows_of(&code, &[(0, -8)]), [(START, Rule::BAD)]);
        assert_eq!(rows_of(&[], &[(0, 0), (7, 8)]), [row(0, 8, false), row(7, 16, false)]);
    }

    #[test]
    fn call_targets_are_computed_from_operands() {
        // call +16; call -7
        let code = [0xE8, 16, 0, 0, 0, 0x90, 0xE8, 0xF9, 0xFF, 0xFF, 0xFF];
        assert_eq!((call_target(&code, 0), call_target(&code, 6)), (Some(21), Some(4)));
        assert_eq!((call_target(&code, 1), call_target(&code[..10], 6)), (None, None));
    }

    #[test]
    fn code_without_a_frame_is_on_another_stack_between_two_changes() {
        // mov %rsp,%r12; mov 56(%rsi),%rsp; and $-16,%rsp; call *%rax; mov %r12,%rsp; ret
        let code = [
            0x49, 0x89, 0xE4, 0x48, 0x8B, 0x66, 0x38, 0x48, 0x83, 0xE4, 0xF0, 0xFF, 0xD0, 0x4C,
            0x89, 0xE4, 0xC3,
        ];
        assert_eq!(switched(&code), Some(7..16));
        assert_eq!(switched(&code[..13]), Some(7..13), "it does not come back");
        assert_eq!(switched(&code[7..13]), None);
        // Code with a frame, as in `mcall` since Go 1.21: push %rbp; mov %rsp,%rbp; mov %rsp,%rbx;
        // mov 56(%r14),%rsp; mov $0,%ebp; push %rax; call *%r12; pop %rbp; ret
        let code = [
            0x55, 0x48, 0x89, 0xE5, 0x48, 0x89, 0xE3, 0x49, 0x8B, 0x66, 0x38, 0xBD, 0, 0, 0, 0,
            0x50, 0x41, 0xFF, 0xD4, 0x5D, 0xC3,
        ];
        assert_eq!(switched(&code), Some(11..22));
    }
}
