//! Assigns context tables to the eight slots from which handlers read.
//!
//! # Invariants
//! - A handler may still read a withdrawn table, and its samples name the slot. A slot is reused
//!   only after all handlers that may have seen the earlier table have returned.
//! - The sources never contain the address of a table that no longer exists.

use traceprof_abi::context::{ContextSources, SOURCES_TABLES, origin};
use traceprof_abi::sync::Ordering;

/// The largest number of distinct tables of a program.
pub(super) const TABLES_MAX: usize = (origin::RECORD - origin::TABLE) as usize;

/// The state of a slot, with the number of its table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum TableSlot {
    #[default]
    Free,
    Used(u32),
    /// The table no longer exists, but handlers may still read its slot.
    Withdrawn(u32),
    /// No handler reads the slot any more, but samples that name it belong to this table.
    Left(u32),
}

/// The slots of a program's tables.
#[derive(Debug, Default)]
pub(super) struct TableSlots {
    slots: [TableSlot; SOURCES_TABLES],
    most_left_out: usize,
    has_reported_names: bool,
    notices: Vec<String>,
}

impl TableSlots {
    /// Publishes a table with this number to the handlers; returns false if no slot is free.
    pub(super) fn give(&mut self, number: u32, avma: u64, sources: &ContextSources) -> bool {
        let is_free = |slot: &TableSlot| matches!(slot, TableSlot::Free | TableSlot::Left(_));
        let Some(at) = self.slots.iter().position(is_free) else { return false };
        self.slots[at] = TableSlot::Used(number);
        // Relaxed: the store of the count below publishes it. In a reused slot, which the count
        // includes already, this one word is all that changes.
        sources.tables[at].store(avma, Ordering::Relaxed);
        let used = self.slots.iter().rposition(|slot| *slot != TableSlot::Free);
        // Release: pairs with the Acquire in the handler.
        sources.tables_used.store(used.map_or(0, |last| last as u32 + 1), Ordering::Release);
        true
    }

    /// Removes a table that no longer exists from the sources of the handlers.
    pub(super) fn withdraw(&mut self, number: u32, sources: &ContextSources) {
        for (slot, word) in self.slots.iter_mut().zip(&sources.tables) {
            if *slot == TableSlot::Used(number) {
                *slot = TableSlot::Withdrawn(number);
                // Relaxed: the rotation that `recycle` waits for orders it before later handlers.
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Makes slots free that were withdrawn before the last rotation: the old storage is drained,
    /// so no handler is left in it.
    pub(super) fn recycle(&mut self) {
        for slot in &mut self.slots {
            if let TableSlot::Withdrawn(number) = *slot {
                *slot = TableSlot::Left(number);
            }
        }
    }

    /// Returns a sample's source with the slot replaced by the number of its table.
    pub(super) fn numbered(&self, source: u32) -> u32 {
        let at = source.checked_sub(origin::TABLE).map(|at| at as usize);
        match at.and_then(|at| self.slots.get(at)) {
            Some(
                TableSlot::Used(number) | TableSlot::Withdrawn(number) | TableSlot::Left(number),
            ) => number + origin::TABLE,
            Some(TableSlot::Free) => origin::NONE,
            None => source,
        }
    }

    /// Notes the number of tables that have no slot now.
    pub(super) fn leave_out(&mut self, tables: usize) {
        if tables > self.most_left_out {
            if self.most_left_out == 0 {
                self.notices.push(format!(
                    "contexts: {tables} more tables are not read: the limit is \
                     {SOURCES_TABLES}"
                ));
            }
            self.most_left_out = tables;
        }
    }

    /// Notes the number of candidate mappings that were not checked.
    pub(super) fn skip(&mut self, mappings: usize) {
        if mappings > 0 && !std::mem::replace(&mut self.has_reported_names, true) {
            let text =
                format!("contexts: {mappings} more mappings with a table's name are not read");
            self.notices.push(text);
        }
    }

    /// Returns the largest number of tables without a slot.
    pub(super) fn most_left_out(&self) -> u64 {
        self.most_left_out as u64
    }

    /// Returns new messages for the user.
    pub(super) fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::target::shm::own_data;

    #[test]
    fn a_slot_is_reused_only_after_a_rotation() {
        let data = own_data();
        let sources = data.context_sources();
        let mut slots = TableSlots::default();
        for number in 0..8 {
            assert!(slots.give(number, 0x1000, sources));
        }
        assert!(!slots.give(8, 0x9000, sources));
        slots.withdraw(3, sources);
        assert_eq!(sources.tables[3].load(Ordering::Relaxed), 0);
        assert!(!slots.give(8, 0x9000, sources), "handlers may still read it");
        assert_eq!(slots.numbered(4), 4, "its samples still belong to it");
        slots.recycle();
        assert_eq!(slots.numbered(4), 4);
        assert!(slots.give(8, 0x9000, sources));
        assert_eq!(sources.tables[3].load(Ordering::Relaxed), 0x9000);
        assert_eq!([1, 4, 9, origin::NONE].map(|it| slots.numbered(it)), [1, 9, 9, 0]);
        assert_eq!(slots.numbered(origin::RECORD), origin::RECORD);
        assert_eq!(sources.tables_used.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn tables_left_out_are_reported_once() {
        let mut slots = TableSlots::default();
        slots.leave_out(0);
        slots.skip(0);
        assert_eq!(slots.notices(), Vec::<String>::new());
        slots.leave_out(2);
        slots.leave_out(5);
        slots.skip(100);
        slots.skip(100);
        assert_eq!((slots.notices().len(), slots.most_left_out()), (2, 5));
    }
}
