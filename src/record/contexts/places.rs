//! Which tables the handlers look at: eight places among the sources, and what has been in them.
//!
//! # Invariants
//! - A handler may still read a table that was withdrawn, and its samples name the place. A place is
//!   given to another table only after all handlers that may have seen the first have left.
//! - The address of a table that is gone is not among the sources.

use traceprof_abi::context::{ContextSources, SOURCES_TABLES, origin};
use traceprof_abi::sync::Ordering;

/// Tables of a program that are told apart at most.
pub(super) const TABLES_MAX: usize = (origin::RECORD - origin::TABLE) as usize;

/// What is in a place: the number of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Free,
    Used(u32),
    /// It is gone, and handlers may still be in it.
    Withdrawn(u32),
    /// No handler is; samples that name the place are of that table.
    Left(u32),
}

/// The places of a program's tables.
#[derive(Debug, Default)]
pub(super) struct Places {
    places: [Place; SOURCES_TABLES],
    most_left_out: usize,
    has_told_of_names: bool,
    notices: Vec<String>,
}

impl Places {
    /// Tells the handlers of a table with this number. False if there is no place for it.
    pub(super) fn give(&mut self, number: u32, avma: u64, sources: &ContextSources) -> bool {
        let is_free = |place: &Place| matches!(place, Place::Free | Place::Left(_));
        let Some(at) = self.places.iter().position(is_free) else { return false };
        self.places[at] = Place::Used(number);
        // Relaxed: published by the number below; of a place that is used again it is the one word.
        sources.tables[at].store(avma, Ordering::Relaxed);
        let used = self.places.iter().rposition(|place| *place != Place::Free);
        // Release: pairs with the Acquire in the handler.
        sources.tables_used.store(used.map_or(0, |last| last as u32 + 1), Ordering::Release);
        true
    }

    /// Tells the handlers that a table is gone.
    pub(super) fn withdraw(&mut self, number: u32, sources: &ContextSources) {
        for (place, word) in self.places.iter_mut().zip(&sources.tables) {
            if *place == Place::Used(number) {
                *place = Place::Withdrawn(number);
                // Relaxed: the rotation that `recycle` waits for orders it before later handlers.
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// No handler has a table any more that was withdrawn before: the storage has been rotated since, and
    /// what they were in is drained.
    pub(super) fn recycle(&mut self) {
        for place in &mut self.places {
            if let Place::Withdrawn(number) = *place {
                *place = Place::Left(number);
            }
        }
    }

    /// The source of a sample with the table's number for its place.
    pub(super) fn numbered(&self, source: u32) -> u32 {
        let at = source.checked_sub(origin::TABLE).map(|at| at as usize);
        match at.and_then(|at| self.places.get(at)) {
            Some(Place::Used(number) | Place::Withdrawn(number) | Place::Left(number)) => {
                number + origin::TABLE
            }
            Some(Place::Free) => origin::NONE,
            None => source,
        }
    }

    /// So many tables have no place now.
    pub(super) fn leave_out(&mut self, tables: usize) {
        if tables > self.most_left_out {
            if self.most_left_out == 0 {
                self.notices.push(format!(
                    "contexts: {tables} more tables are not read: there are places for {SOURCES_TABLES}"
                ));
            }
            self.most_left_out = tables;
        }
    }

    /// So many mappings that may be tables were not looked at.
    pub(super) fn skip(&mut self, mappings: usize) {
        if mappings > 0 && !std::mem::replace(&mut self.has_told_of_names, true) {
            let text =
                format!("contexts: {mappings} more mappings with a table's name are not read");
            self.notices.push(text);
        }
    }

    /// Tables without a place, at most.
    pub(super) fn most_left_out(&self) -> u64 {
        self.most_left_out as u64
    }

    /// What is to be said.
    pub(super) fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::shm::own_data;

    #[test]
    fn a_place_is_given_again_only_after_a_rotation() {
        let data = own_data();
        let sources = data.context_sources();
        let mut places = Places::default();
        for number in 0..8 {
            assert!(places.give(number, 0x1000, sources));
        }
        assert!(!places.give(8, 0x9000, sources));
        places.withdraw(3, sources);
        assert_eq!(sources.tables[3].load(Ordering::Relaxed), 0);
        assert!(!places.give(8, 0x9000, sources), "handlers may be in it");
        assert_eq!(places.numbered(4), 4, "its samples are still its own");
        places.recycle();
        assert_eq!(places.numbered(4), 4);
        assert!(places.give(8, 0x9000, sources));
        assert_eq!(sources.tables[3].load(Ordering::Relaxed), 0x9000);
        assert_eq!([1, 4, 9, origin::NONE].map(|it| places.numbered(it)), [1, 9, 9, 0]);
        assert_eq!(places.numbered(origin::RECORD), origin::RECORD);
        assert_eq!(sources.tables_used.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn what_is_left_out_is_said_once() {
        let mut places = Places::default();
        places.leave_out(0);
        places.skip(0);
        assert_eq!(places.notices(), Vec::<String>::new());
        places.leave_out(2);
        places.leave_out(5);
        places.skip(100);
        places.skip(100);
        assert_eq!((places.notices().len(), places.most_left_out()), (2, 5));
    }
}
