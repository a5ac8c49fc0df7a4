//! Compiles a module's call frame information into a position-independent table.
//!
//! # Invariants
//! - Rows ascend strictly, so no block of 256 bytes has more than 256 rows.
//! - Where entries overlap, the entry that starts first applies. Of entries with the same start,
//!   those of `.debug_frame` come last. A debug file adds only code that the module does not
//!   describe.
//! - Memory use is bounded: a few bytes of input can describe the same code many times.

use std::ops::Range;

use gimli::{BaseAddresses, UnwindOffset, UnwindSection};
use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::op;
use traceprof_abi::unwind::tables::{BLOCK, RBX_LOST};

use super::architecture::Architecture;
use super::code::{Code, DisjointRanges};
use super::debug_file::CallFrames;
use super::dwarf::{Bytes, Fde, RowContext, Slice};
use super::error::CompileError;
use super::fde::for_each_fde;
use super::gap::{self, Gaps};
use super::rows::{Row, RowBuilder, RuleId, Rules};
use super::sections::{self, Sections};
use super::{cfi, corrections, go};
use traceprof_elf::{Elf, GoFunction, Pclntab};

/// Maximum number of rows of one module, not counting those of the last entry. The largest modules
/// have millions.
const ROWS_MAX: usize = 1 << 25;
/// DWARF number of rbx.
const RBX: u8 = 3;

/// Statistics of one compilation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The number of frame description entries compiled.
    pub fdes: usize,
    /// The number of entries skipped: unparsable, empty, outside the code, covered, or too many.
    pub skipped_fdes: usize,
    /// The number of rows in the table.
    pub rows: usize,
    /// The number of distinct rules.
    pub rules: usize,
    /// Bytes of code whose rule cannot be expressed.
    pub bad_bytes: u64,
    /// Bytes of code without call frame information.
    pub gap_bytes: u64,
    /// Bytes of code with a standard frame pointer frame.
    pub frame_pointer_bytes: u64,
    /// Bytes from the first to the last executable byte.
    pub span_bytes: u64,
    /// Length of `.eh_frame` in bytes.
    pub eh_frame_bytes: usize,
}

/// A module's unwind table, independent of where the module is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleTable {
    pub(super) base: u64,
    pub(super) blocks: Vec<u32>,
    pub(super) lows: Vec<u8>,
    pub(super) ids: Vec<u16>,
    pub(super) rules: Vec<Rule>,
    pub(super) default_rule: u32,
    /// For each rule, the slot of the caller's rbx. Empty if no frame of the module is found
    /// through rbx.
    pub(super) rbx_slots: Vec<i16>,
    pub(super) statistics: Statistics,
}

impl ModuleTable {
    /// Returns the statistics of the compilation.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Returns whether most of the module's code keeps frame pointers.
    pub fn keeps_frame_pointers(&self) -> bool {
        let Statistics { span_bytes, gap_bytes, frame_pointer_bytes, .. } = self.statistics;
        keeps_frame_pointers(frame_pointer_bytes, span_bytes.saturating_sub(gap_bytes))
    }
}

fn keeps_frame_pointers(standard: u64, covered: u64) -> bool {
    standard * 2 > covered
}

/// Compiles a module from its file.
pub fn compile(elf: &[u8]) -> Result<ModuleTable, CompileError> {
    compile_elf(&Elf::parse(elf)?, Architecture::HOST, None)
}

/// Compiles a module from its file, and uses its debug file for code that the module does not
/// describe.
pub fn compile_with(elf: &[u8], debug: &CallFrames<'_>) -> Result<ModuleTable, CompileError> {
    compile_elf(&Elf::parse(elf)?, Architecture::HOST, Some(debug))
}

/// Compiles a module from its memory image: the vDSO, or a module whose file no longer exists.
pub fn compile_image(image: &[u8]) -> Result<ModuleTable, CompileError> {
    compile_elf(&Elf::parse_image(image)?, Architecture::HOST, None)
}

/// Compiles a module for this architecture.
pub(super) fn compile_elf(
    elf: &Elf<'_>,
    machine: Architecture,
    debug: Option<&CallFrames<'_>>,
) -> Result<ModuleTable, CompileError> {
    compile_bounded(elf, machine, debug, ROWS_MAX)
}

/// Like [`compile_elf`], with a maximum number of rows. The last entry may exceed it.
pub(super) fn compile_bounded(
    elf: &Elf<'_>,
    machine: Architecture,
    debug: Option<&CallFrames<'_>>,
    rows_max: usize,
) -> Result<ModuleTable, CompileError> {
    if Architecture::of(elf.machine()) != Some(machine) {
        return Err(CompileError::Machine(elf.machine()));
    }
    let debug_frame = sections::debug_frame(elf);
    let sections = Sections::find(elf, debug_frame.as_deref());
    let debug = debug.map(|debug| debug.sections(machine));
    let fresh = |follow_rbx| {
        let code = Code::of(elf)?;
        Ok::<_, CompileError>(Collected { rows_max, ..Collected::new(elf, code, follow_rbx) })
    };
    let mut collected = collect(fresh(false)?, &sections, debug.as_ref());
    let is_by_rbx = |rule: &Rule| rule.op == op::REG_LEAF + RBX;
    if machine == Architecture::X86_64 && collected.rules.list.iter().any(is_by_rbx) {
        // Few modules have such frames, so only they pay for the rbx slots.
        collected = collect(fresh(true)?, &sections, debug.as_ref());
    }
    let mut table = collected.finish(elf);
    table.statistics.eh_frame_bytes = sections.eh_frame_len;
    Ok(table)
}

/// Collects the rows of the module, then the rows that its debug file adds.
fn collect<'e, 'a>(
    mut collected: Collected<'e, 'a>,
    sections: &Sections<'_>,
    debug: Option<&Sections<'_>>,
) -> Collected<'e, 'a> {
    if let Some(table) = Pclntab::find(collected.elf) {
        let callers = go::Callers::new(&table);
        table.functions().for_each(|function| collected.go_function(&callers, &function));
    }
    collected.sections(sections);
    if let Some(debug) = debug {
        collected.covered = DisjointRanges::of(collected.fdes.iter().map(|fde| fde.start..fde.end));
        collected.sections(debug);
    }
    collected
}

/// The rows of one frame description entry.
#[derive(Debug)]
struct FdeRows {
    start: u32,
    end: u32,
    first_row: usize,
    end_row: usize,
    secondary: bool,
    /// Whether functions return to its first instruction, although no call precedes it.
    returned_to: bool,
}

/// Rows in the order in which the entries are read.
#[derive(Debug)]
struct Collected<'e, 'a> {
    elf: &'e Elf<'a>,
    machine: Architecture,
    code: Code,
    fdes: Vec<FdeRows>,
    rows: Vec<Row>,
    rules: Rules,
    skipped: usize,
    follow_rbx: bool,
    /// Code that the module describes itself. Its debug file is ignored there.
    covered: DisjointRanges,
    /// Bytes of code that the corrections may still scan. Starts as the size of the code.
    unread: u64,
    rows_max: usize,
}

impl<'e, 'a> Collected<'e, 'a> {
    fn new(elf: &'e Elf<'a>, code: Code, follow_rbx: bool) -> Self {
        let (fdes, rows, rules) = (Vec::new(), Vec::new(), Rules::default());
        let machine = Architecture::of(elf.machine()).unwrap_or(Architecture::HOST);
        let covered = DisjointRanges::default();
        let unread = code.parts.iter().map(|(start, end)| end - start).sum();
        Self {
            elf,
            machine,
            code,
            fdes,
            rows,
            rules,
            skipped: 0,
            follow_rbx,
            covered,
            unread,
            rows_max: ROWS_MAX,
        }
    }

    fn sections(&mut self, sections: &Sections<'_>) {
        if let Some(frames) = &sections.eh_frame {
            self.section(frames, frames.bytes(), &sections.bases);
        }
        let primary_fdes = self.fdes.len();
        if let Some(frames) = &sections.debug_frame {
            self.section(frames, frames.bytes(), &sections.bases);
        }
        for fde in &mut self.fdes[primary_fdes..] {
            fde.secondary = true;
        }
    }

    fn section<'s, S>(&mut self, section: &S, data: &'s [u8], bases: &BaseAddresses)
    where
        S: UnwindSection<Slice<'s>>,
        S::Offset: UnwindOffset<usize>,
    {
        let mut context = RowContext::new_in();
        let unparsable = for_each_fde(section, data, bases, |fde| {
            if self.entry(section, fde, bases, &mut context).is_none() {
                self.skipped += 1;
            }
        });
        self.skipped += unparsable;
    }

    fn entry<'s>(
        &mut self,
        section: &impl UnwindSection<Slice<'s>>,
        fde: &Fde<'s>,
        bases: &BaseAddresses,
        context: &mut RowContext,
    ) -> Option<()> {
        if self.rows.len() >= self.rows_max {
            return None;
        }
        // The linker leaves entries of discarded functions at address 0 or outside the code.
        let start_svma = fde.initial_address();
        let (start, end) = self.code.range(start_svma, start_svma.checked_add(fde.len())?)?;
        if self.covered.touch(start..end) {
            return Some(());
        }
        let first_row = self.rows.len();
        let is_marked = fde.is_signal_trampoline() && self.sigreturn(start_svma, 1).is_some();
        if let Some(rule) = self.returned_to(start_svma, is_marked) {
            // C libraries start the entry of a trampoline one byte early, for unwinders that look
            // up pc - 1. Go's trampoline is not even marked.
            let first = if is_marked { start } else { start.saturating_sub(1) };
            // A thread in the call may be at the byte behind the entry.
            let call = self.sigreturn(start_svma, usize::from(is_marked));
            let end = call.map_or(end, |call| end.max(start + call.end as u32));
            self.single_rule_entry(first..end, rule);
            return Some(());
        }
        let returns_elsewhere = self.collect_rows(section, fde, bases, context)?;
        self.correct(first_row, (start, end), returns_elsewhere);
        self.entry_of_rows(start..end, first_row, false);
        Some(())
    }

    /// Adds an entry with one rule for code that is returned to and never called.
    fn single_rule_entry(&mut self, range: Range<u32>, rule: Rule) {
        let first_row = self.rows.len();
        let rule = self.rules.number(rule);
        self.rows.push(Row { offset: range.start, rule });
        self.entry_of_rows(range, first_row, true);
    }

    fn entry_of_rows(&mut self, range: Range<u32>, first_row: usize, returned_to: bool) {
        let Range { start, end } = range;
        let end_row = self.rows.len();
        self.fdes.push(FdeRows { start, end, first_row, end_row, secondary: false, returned_to });
    }

    fn go_function(&mut self, callers: &go::Callers<'_, '_>, function: &GoFunction<'_, '_>) {
        let code = self.code.range(function.range.start, function.range.end);
        let code = code.filter(|_| self.rows.len() < self.rows_max && go::is_plausible(function));
        let Some((start, end)) = code else {
            self.skipped += 1;
            return;
        };
        if self.sigreturn(function.range.start, 0).is_some() {
            return self.single_rule_entry(start.saturating_sub(1)..end, Rule::SIGNAL);
        }
        let first_row = self.rows.len();
        for (svma, rule) in go::rows(self.elf, callers, function) {
            let rule = self.rules.number(rule);
            self.rows.push(Row { offset: (svma - self.code.base) as u32, rule });
        }
        if self.rows.len() > first_row {
            self.entry_of_rows(start..end, first_row, false);
        }
    }

    /// Collects the rows of an entry. Returns whether they say that the function saves rax, as
    /// functions do that return to an exception's landing pad. Code from an instruction that cannot
    /// be followed on gets no information: hand-written code has such instructions behind its last
    /// relevant row.
    fn collect_rows<'s>(
        &mut self,
        section: &impl UnwindSection<Slice<'s>>,
        fde: &Fde<'s>,
        bases: &BaseAddresses,
        context: &mut RowContext,
    ) -> Option<bool> {
        let mut returns_elsewhere = false;
        let is_x86_64 = self.machine == Architecture::X86_64;
        let mut rows = fde.rows(section, bases, context).ok()?;
        let last = fde.end_address();
        let mut known_to = None;
        loop {
            let row = match (rows.next_row(), known_to) {
                (Ok(Some(row)), _) => row,
                (Ok(None), _) => break,
                (Err(_), None) => return None,
                (Err(_), Some(end)) => {
                    if end < last {
                        let rule = self.rules.number(Rule::BAD);
                        self.rows.push(Row { offset: (end - self.code.base) as u32, rule });
                    }
                    break;
                }
            };
            // The entry is inside the code. A row outside the entry is invalid, and ends it.
            let start = row.start_address();
            if start >= last {
                break;
            }
            if start >= row.end_address() {
                continue;
            }
            known_to = Some(row.end_address());
            returns_elsewhere |= is_x86_64 && cfi::x86_64::keeps_rax(row);
            let rbx = if self.follow_rbx { cfi::x86_64::rbx_slot(row) } else { RBX_LOST };
            let rule = self.rules.number_with(self.machine.rule(row, fde, section), rbx);
            self.rows.push(Row { offset: (start - self.code.base) as u32, rule });
        }
        Some(returns_elsewhere)
    }

    /// Corrects rows of an entry that are known to be wrong.
    fn correct(&mut self, first_row: usize, (start, end): (u32, u32), returns_elsewhere: bool) {
        let svma = self.code.base + u64::from(start);
        let code = self.elf.data(svma).unwrap_or_default();
        let code = code.get(..(end - start) as usize).unwrap_or_default();
        // Entries of a corrupt file may overlap each other any number of times.
        let Some(left) = self.unread.checked_sub(code.len() as u64) else { return };
        self.unread = left;
        if self.machine != Architecture::X86_64 {
            return;
        }
        let rule = |row: &Row| (row.offset - start, self.rules.list[usize::from(row.rule)]);
        let rows = self.rows[first_row..].iter().map(rule);
        let corrected = corrections::parts(code, rows, returns_elsewhere, |offset| {
            let target = svma.wrapping_add_signed(offset);
            self.code.range(target, target.saturating_add(1)).is_some()
        });
        for (bytes, rule) in corrected {
            let rule = self.rules.number(rule);
            self.overlay(first_row, start + bytes.start..start + bytes.end, rule);
        }
    }

    /// Makes a rule apply to a part of an entry.
    fn overlay(&mut self, first_row: usize, bytes: Range<u32>, rule: RuleId) {
        let mut own = self.rows[first_row..].iter().rev();
        let Some(last) = own.find(|row| row.offset <= bytes.end).copied() else { return };
        let own = self.rows.split_off(first_row);
        let (before, after) = (bytes.start, bytes.end);
        let around = [Row { offset: before, rule }, Row { offset: after, rule: last.rule }];
        self.rows.extend(own.iter().filter(|row| row.offset < before));
        self.rows.extend(around);
        self.rows.extend(own.iter().filter(|row| row.offset > after));
    }

    /// Returns the rule of an entry whose first instruction is returned to, although no call
    /// precedes it.
    fn returned_to(&self, start_svma: u64, is_marked: bool) -> Option<Rule> {
        if is_marked || self.sigreturn(start_svma, 0).is_some() {
            return Some(Rule::SIGNAL);
        }
        let code = self.elf.data(start_svma).unwrap_or_default();
        corrections::is_fiber_root(code).then_some(Rule::STOP)
    }

    /// Returns the offsets from this address of a signal trampoline that starts `offset` bytes
    /// after it.
    fn sigreturn(&self, svma: u64, offset: usize) -> Option<Range<usize>> {
        let code = self.elf.data(svma).unwrap_or_default();
        Some(offset..offset + gap::sigreturn_len(code.get(offset..)?)?)
    }

    fn finish(mut self, elf: &Elf<'_>) -> ModuleTable {
        self.fdes.sort_by_key(|fde| (fde.start, fde.secondary, fde.end));
        let mut statistics = self.measure();
        let covered = statistics.frame_pointer_bytes;
        let total: u64 = self.fdes.iter().map(|fde| u64::from(fde.end - fde.start)).sum();
        let gaps = Gaps::new(elf, self.code.base, keeps_frame_pointers(covered, total));
        let default_rule = u32::from(self.rules.number(Rule::GAP_GUESS));
        let mut rows = RowBuilder::default();
        let first = self.code.parts.first().map_or(self.code.base, |part| part.0);
        let mut up_to = (first - self.code.base) as u32;
        for fde in &self.fdes {
            if fde.end <= up_to {
                self.skipped += 1;
                continue;
            }
            if gaps.fill(up_to, fde.start, &mut self.rules, &mut rows) {
                statistics.gap_bytes += u64::from(fde.start - up_to);
            }
            // The entry takes the last byte of the code before it: nothing returns there.
            up_to -= u32::from(fde.returned_to && up_to == fde.start + 1);
            let own = &self.rows[fde.first_row..fde.end_row];
            let ends = own.iter().skip(1).map(|row| row.offset).chain([fde.end]);
            for (row, end) in own.iter().zip(ends) {
                if end > up_to {
                    rows.push(row.offset.max(up_to), row.rule);
                }
            }
            up_to = fde.end;
            statistics.fdes += 1;
        }
        if gaps.fill(up_to, self.code.end, &mut self.rules, &mut rows) {
            statistics.gap_bytes += u64::from(self.code.end - up_to);
        }
        statistics.skipped_fdes = self.skipped;
        statistics.rows = rows.0.len();
        statistics.rules = self.rules.list.len();
        self.lay_out(&rows.0, default_rule, statistics)
    }

    /// Counts the bytes of each kind of rule in the entries before they are merged.
    fn measure(&self) -> Statistics {
        let mut statistics =
            Statistics { span_bytes: u64::from(self.code.end), ..Statistics::default() };
        for fde in &self.fdes {
            let own = &self.rows[fde.first_row..fde.end_row];
            let ends = own.iter().skip(1).map(|row| row.offset).chain([fde.end]);
            for (row, end) in own.iter().zip(ends) {
                let bytes = u64::from(end.saturating_sub(row.offset));
                match self.rules.list.get(usize::from(row.rule)).map_or(op::BAD, |rule| rule.op) {
                    op::BAD => statistics.bad_bytes += bytes,
                    op::FP_STD => statistics.frame_pointer_bytes += bytes,
                    _ => {}
                }
            }
        }
        statistics
    }

    fn lay_out(self, rows: &[Row], default_rule: u32, statistics: Statistics) -> ModuleTable {
        ModuleTable {
            base: self.code.base,
            blocks: block_index(rows, self.code.end),
            lows: rows.iter().map(|row| row.offset as u8).collect(),
            ids: rows.iter().map(|row: &Row| -> RuleId { row.rule }).collect(),
            rules: self.rules.list,
            rbx_slots: if self.follow_rbx { self.rules.rbx_slots } else { Vec::new() },
            default_rule,
            statistics,
        }
    }
}

/// Returns for each block up to `end`, and for the block after it, the number of rows before it.
pub(super) fn block_index(rows: &[Row], end: u32) -> Vec<u32> {
    let block_count = end.div_ceil(BLOCK as u32);
    let mut blocks = Vec::with_capacity(block_count as usize + 1);
    let mut below = 0;
    for block in 0..=block_count {
        let start = u64::from(block) * BLOCK;
        while rows.get(below).is_some_and(|row| u64::from(row.offset) < start) {
            below += 1;
        }
        blocks.push(below as u32);
    }
    blocks
}
