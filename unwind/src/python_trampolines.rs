//! A table without an ELF file, for memory that Python has filled with copies of one routine.
//!
//! Python 3.12 and later can name its functions for profilers. Each function then has its own copy
//! of a trampoline that keeps no frame pointer. Copies follow each other from the first byte of
//! each 64 KiB on, packed or aligned, depending on the version.

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::op;

use super::compile::{ModuleTable, Statistics, block_index};
use super::rows::{RowBuilder, Rules};

/// Number of bytes that show what a mapping contains: two copies.
pub const TRAMPOLINE_PROBE: usize = 64;
/// `sub $8,%rsp; call *%rcx; add $8,%rsp; ret`.
const CODE: [u8; 11] = [0x48, 0x83, 0xEC, 0x08, 0xFF, 0xD1, 0x48, 0x83, 0xC4, 0x08, 0xC3];
/// Length in bytes of its first instruction, which extends the stack.
const MAKES_ROOM: usize = 4;
/// Offset in bytes of its last instruction, after the stack is released.
const GIVES_BACK: usize = 10;
const ENDBR64: [u8; 4] = [0xF3, 0x0F, 0x1E, 0xFA];
/// Maximum distance in bytes between the starts of two copies.
const STEP_MAX: usize = 32;
/// Number of bytes that Python fills at a time. Adjacent arenas form one mapping.
const ARENA: usize = 64 << 10;
/// Maximum length in bytes of a mapping: more trampolines than a program has functions.
const LEN_MAX: u64 = 64 << 20;

/// Returns the table of a mapping of this length that begins with these bytes, if it contains
/// trampolines. Addresses count from the start of the mapping.
pub fn python_trampolines(first: &[u8], len: u64) -> Option<ModuleTable> {
    let entry = if first.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let is_copy = |at: usize| first.get(at + entry..).is_some_and(|rest| rest.starts_with(&CODE));
    let step = (entry + CODE.len()..=STEP_MAX).find(|&step| is_copy(step))?;
    if !is_copy(0) || len > LEN_MAX {
        return None;
    }
    let (mut rules, mut rows) = (Rules::default(), RowBuilder::default());
    let outside = rules.number(Rule { cfa_off: 8, ..Rule::plain(op::SP) });
    let inside = rules.number(Rule { cfa_off: 16, ..Rule::plain(op::SP) });
    let default_rule = u32::from(rules.number(Rule::GAP_FP));
    for arena in (0..len as usize).step_by(ARENA) {
        let copies = (0..=ARENA - step).step_by(step).map(|start| arena + start);
        for start in copies.take_while(|start| start + step <= len as usize) {
            rows.push(start as u32, outside);
            rows.push((start + entry + MAKES_ROOM) as u32, inside);
            rows.push((start + entry + GIVES_BACK) as u32, outside);
        }
    }
    let rows = rows.0;
    let statistics = Statistics {
        rows: rows.len(),
        rules: rules.list.len(),
        span_bytes: len,
        ..Statistics::default()
    };
    Some(ModuleTable {
        base: 0,
        blocks: block_index(&rows, len as u32),
        lows: rows.iter().map(|row| row.offset as u8).collect(),
        ids: rows.iter().map(|row| row.rule).collect(),
        rules: rules.list,
        default_rule,
        rbx_slots: Vec::new(),
        statistics,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rule that applies at this offset.
    fn rule_at(table: &ModuleTable, offset: u32) -> Rule {
        let block = (offset / 256) as usize;
        let (from, to) = (table.blocks[block] as usize, table.blocks[block + 1] as usize);
        let within = table.lows[from..to].iter().take_while(|&&low| u32::from(low) <= offset % 256);
        let row = from + within.count() - 1;
        table.rules[usize::from(table.ids[row])]
    }

    #[test]
    fn every_copy_has_its_rows() {
        for (entry, step) in [(&[][..], 11), (&[], 16), (&ENDBR64, 16)] {
            let mut copy = [entry, &CODE].concat();
            copy.resize(step, 0);
            let table =
                python_trampolines(&copy.repeat(5)[..TRAMPOLINE_PROBE.min(step * 5)], 2 << 16)
                    .unwrap();
            let last = ARENA / step - 1;
            for start in [0, step, 17 * step, last * step, ARENA, ARENA + 3 * step] {
                let offset = |at: usize| rule_at(&table, (start + entry.len() + at) as u32).cfa_off;
                let offsets: Vec<i32> = (0..11).map(offset).collect();
                assert_eq!(offsets, [8, 8, 8, 8, 16, 16, 16, 16, 16, 16, 8], "{step}: {start}");
            }
        }
    }

    #[test]
    fn rows_end_with_the_mapping() {
        for (len, copies) in [(1000, 1000 / 11), (ARENA + 100, ARENA / 11 + 100 / 11)] {
            let table =
                python_trampolines(&CODE.repeat(6)[..TRAMPOLINE_PROBE], len as u64).unwrap();
            // The row that ends one copy begins the next.
            assert_eq!(table.statistics.rows, 2 * copies + 1, "{len}");
            assert!(rule_at(&table, len as u32 - 1).cfa_off > 0);
        }
    }

    #[test]
    fn other_code_is_left_alone() {
        assert!(python_trampolines(&[0x55; TRAMPOLINE_PROBE], 4096).is_none());
        assert!(python_trampolines(&CODE, 4096).is_none(), "one copy is none");
        assert!(python_trampolines(&[], 4096).is_none());
    }
}
