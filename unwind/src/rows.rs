//! Collects rows of rules in the order of their addresses.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::tables::RBX_LOST;

/// The index of a rule in a module's list of rules.
pub(super) type RuleId = u16;

/// The rule that applies from `offset` on, in bytes from the module's base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) offset: u32,
    pub(super) rule: RuleId,
}

/// A range of code, relative to a start that the context defines, and the rule that applies there.
pub(super) type RuleRange = (Range<u32>, Rule);

/// The distinct rules of a module.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) list: Vec<Rule>,
    /// For each rule, the slot of the caller's rbx.
    pub(super) rbx_slots: Vec<i16>,
    numbers: HashMap<(u64, i16), RuleId, BuildHasherDefault<RuleHasher>>,
    /// Recently seen rules, by their hash: most rows have one of a few dozen rules.
    recent: [Option<(Rule, i16, RuleId)>; RECENT],
}

/// Number of recently seen rules that are remembered. A power of two.
const RECENT: usize = 256;

impl Default for Rules {
    fn default() -> Self {
        let numbers = HashMap::default();
        Self { list: Vec::new(), rbx_slots: Vec::new(), numbers, recent: [None; RECENT] }
    }
}

impl Rules {
    /// Returns the number of a rule. When a module has more rules than numbers, the remaining ones
    /// become [`Rule::BAD`]. Only a hostile file has that many.
    pub(super) fn number(&mut self, rule: Rule) -> RuleId {
        self.number_with(rule, RBX_LOST)
    }

    /// Returns the number of a rule whose frame keeps the caller's rbx in this slot.
    pub(super) fn number_with(&mut self, rule: Rule, rbx: i16) -> RuleId {
        let slot = (mix(rule.to_bits() ^ rbx as u64) >> 32) as usize % RECENT;
        if let Some((seen, seen_rbx, id)) = self.recent[slot]
            && (seen, seen_rbx) == (rule, rbx)
        {
            return id;
        }
        let id = match self.numbers.get(&(rule.to_bits(), rbx)) {
            Some(&id) => id,
            None => self.add(rule, rbx),
        };
        self.recent[slot] = Some((rule, rbx, id));
        id
    }

    fn add(&mut self, rule: Rule, rbx: i16) -> RuleId {
        let room = self.list.len() < usize::from(RuleId::MAX);
        if !room && (rule, rbx) != (Rule::BAD, RBX_LOST) {
            return self.number(Rule::BAD);
        }
        let id = self.list.len() as RuleId;
        self.list.push(rule);
        self.rbx_slots.push(rbx);
        self.numbers.insert((rule.to_bits(), rbx), id);
        id
    }
}

/// Hashes a word. One multiplication is enough: there are few keys, and a bad distribution costs
/// only time.
fn mix(word: u64) -> u64 {
    let mixed = word.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 29
}

#[derive(Debug, Default)]
struct RuleHasher(u64);

impl Hasher for RuleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_i16(&mut self, word: i16) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word);
    }
}

/// Builds a list of rows with ascending addresses.
#[derive(Debug, Default)]
pub(super) struct RowBuilder(pub(super) Vec<Row>);

impl RowBuilder {
    /// Adds a row. Of rows at one address the last applies, and equal adjacent rows are merged.
    pub(super) fn push(&mut self, offset: u32, rule: RuleId) {
        if self.0.last().is_some_and(|last| last.offset == offset) {
            self.0.pop();
        }
        if self.0.last().is_none_or(|last| last.rule != rule) {
            self.0.push(Row { offset, rule });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_neighbours_are_one_row_and_the_last_at_an_address_holds() {
        let mut rows = RowBuilder::default();
        for (offset, rule) in [(0, 1), (4, 1), (8, 2), (8, 1), (12, 3), (12, 4)] {
            rows.push(offset, rule);
        }
        assert_eq!(rows.0, [Row { offset: 0, rule: 1 }, Row { offset: 12, rule: 4 }]);
    }

    #[test]
    fn rules_beyond_the_numbers_are_bad() {
        let mut rules = Rules::default();
        for cfa_off in 0..70_000 {
            let rule = Rule { cfa_off, ..Rule::plain(1) };
            let id = rules.number(rule);
            let expected = if cfa_off < 65_535 { rule } else { Rule::BAD };
            assert_eq!(rules.list[usize::from(id)], expected);
        }
    }
}
