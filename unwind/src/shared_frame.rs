//! Tables of generated code that shares the frame of a function in a file.

use std::ops::Range;

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::tables::BLOCK;

use super::compile::{ModuleTable, Statistics};

impl ModuleTable {
    /// Returns the rule that most of the code in a range (SVMA) has.
    pub fn usual_rule(&self, range: &Range<u64>) -> Option<Rule> {
        const PLACES: u64 = 64;
        let step = (range.end.saturating_sub(range.start) / PLACES).max(1);
        let mut counts: Vec<(Rule, usize)> = Vec::new();
        for svma in (range.start..range.end).step_by(usize::try_from(step).ok()?) {
            let rule = self.rule_at(svma)?;
            match counts.iter_mut().find(|(known, _)| *known == rule) {
                Some((_, count)) => *count += 1,
                None => counts.push((rule, 1)),
            }
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(rule, _)| rule)
    }

    fn rule_at(&self, svma: u64) -> Option<Rule> {
        let distance = svma.checked_sub(self.base)?;
        let block = usize::try_from(distance / BLOCK).ok()?;
        let (first, next) = (*self.blocks.get(block)?, *self.blocks.get(block + 1)?);
        let rows = self.lows.get(first as usize..next as usize)?;
        let up_to = rows.iter().take_while(|low| u64::from(**low) <= distance % BLOCK).count();
        let row = (first as usize + up_to).checked_sub(1);
        let id = row.and_then(|row| self.ids.get(row)).map_or(self.default_rule, |id| (*id).into());
        self.rules.get(id as usize).copied()
    }

    /// Returns the table of memory that has one rule everywhere.
    pub fn uniform(rule: Rule) -> Self {
        Self {
            base: 0,
            blocks: vec![0],
            lows: Vec::new(),
            ids: Vec::new(),
            rules: vec![rule],
            default_rule: 0,
            rbx_slots: Vec::new(),
            statistics: Statistics::default(),
        }
    }
}
