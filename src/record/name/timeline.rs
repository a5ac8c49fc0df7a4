//! What is at an address of a runtime over time.

use std::ops::Range;
use std::sync::Arc;

/// What may be at an address.
pub(crate) trait Presence {
    /// Whether it is only known that something else has ended.
    fn is_unproven(&self) -> bool;
}

impl<T> Presence for Option<Arc<T>> {
    fn is_unproven(&self) -> bool {
        self.is_none()
    }
}

/// What is at an address over time, each with its start, in the order of the starts.
#[derive(Debug)]
pub(crate) struct Timeline<T>(Vec<(u64, T)>);

impl<T> Default for Timeline<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Presence> Timeline<T> {
    /// Adds what is there from a time on, instead of what was thought to be there then. That
    /// something has ended stays true: nothing that began before holds after that.
    pub(crate) fn push(&mut self, since_ns: u64, value: T) {
        let at = self.0.partition_point(|(before_ns, _)| *before_ns < since_ns);
        let mut later = self.0.split_off(at);
        later.retain(|(_, known)| known.is_unproven());
        if later.first().is_none_or(|(known_ns, _)| *known_ns != since_ns) {
            self.0.push((since_ns, value));
        }
        self.0.append(&mut later);
    }

    /// Returns what is there at a time, and the times at which it is. `None` before all.
    pub(crate) fn at(&self, time_ns: u64) -> (Option<&T>, Range<u64>) {
        let after = self.0.partition_point(|(since_ns, _)| *since_ns <= time_ns);
        let end_ns = self.0.get(after).map_or(u64::MAX, |(next_ns, _)| *next_ns);
        match after.checked_sub(1).and_then(|at| self.0.get(at)) {
            Some((since_ns, value)) => (Some(value), *since_ns..end_ns),
            None => (None, 0..end_ns),
        }
    }

    /// Returns all that was there, each with its start, in the order of the starts.
    pub(crate) fn all(&self) -> &[(u64, T)] {
        &self.0
    }
}
