//! What passes between who asks a machine for its map, who reads the map, and who wants names of it.
//!
//! # Invariants
//! - A map is not read while it is being written.
//! - Every question that is taken is answered: when a map has been written that was asked for after
//!   it, when there is none to be had, or when nobody asks any more.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Between two looks at a map that somebody reads.
const LOOK: Duration = Duration::from_millis(10);

/// Takes the number of a question that is answered.
type Answer = Arc<dyn Fn(u64) + Send + Sync>;

/// The writings of the maps of one process.
#[derive(Debug, Default)]
pub(in crate::record) struct Writings {
    /// How often a map was written by one who was asked to. Locked while it is being written: what is
    /// there then is neither the old nor the new map.
    count: Mutex<u64>,
    demand: Mutex<Demand>,
}

/// What is wanted of the next map.
#[derive(Default)]
struct Demand {
    /// Somebody has maps written.
    is_served: bool,
    questions: Vec<u64>,
    answer: Option<Answer>,
}

impl fmt::Debug for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} questions", self.questions.len())
    }
}

impl Writings {
    /// The map stays as it is as long as this is held; `None` if it is being written.
    pub(in crate::record) fn hold(&self) -> Option<MutexGuard<'_, u64>> {
        match self.count.try_lock() {
            Ok(count) => Some(count),
            // A number is never half changed.
            Err(TryLockError::Poisoned(count)) => Some(count.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Has it written. Whoever reads it meanwhile is waited for, unless it is over before.
    pub(in crate::record) fn write<T>(
        &self,
        is_over: &dyn Fn() -> bool,
        write: impl FnOnce() -> T,
    ) -> Option<T> {
        loop {
            if let Some(mut count) = self.hold() {
                // Something may have been written in any case.
                *count += 1;
                return Some(write());
            }
            if is_over() {
                return None;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn demand(&self) -> MutexGuard<'_, Demand> {
        // Nothing is done under the lock that could leave it half changed.
        self.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Questions are answered this way.
    pub(in crate::record) fn answer_by(&self, answer: impl Fn(u64) + Send + Sync + 'static) {
        self.demand().answer = Some(Arc::new(answer));
    }

    /// Somebody has maps written.
    pub(in crate::record) fn is_served(&self) -> bool {
        self.demand().is_served
    }

    /// Asks for a map that is written from now on. False if nobody has any written: no answer comes.
    pub(in crate::record) fn want(&self, question: u64) -> bool {
        let mut demand = self.demand();
        let is_taken = demand.is_served && demand.answer.is_some();
        if is_taken {
            demand.questions.push(question);
        }
        is_taken
    }

    /// Maps are written as long as this is kept.
    pub(in crate::record) fn serve(&self) -> Serving<'_> {
        self.demand().is_served = true;
        Serving(self)
    }

    /// A map is wanted.
    pub(in crate::record) fn is_wanted(&self) -> bool {
        !self.demand().questions.is_empty()
    }

    /// The questions that a map answers which is asked for now.
    pub(in crate::record) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.demand().questions)
    }

    /// Answers these: the map is there, or will not be.
    pub(in crate::record) fn answer(&self, questions: &[u64]) {
        // Not under the lock: who is answered may have the next question before it listens.
        let answer = self.demand().answer.clone();
        questions.iter().for_each(|question| answer.iter().for_each(|answer| answer(*question)));
    }
}

/// Somebody has maps written; who waits for one after that is answered, whatever ended it.
pub(in crate::record) struct Serving<'a>(&'a Writings);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let questions = {
            let mut demand = self.0.demand();
            demand.is_served = false;
            std::mem::take(&mut demand.questions)
        };
        self.0.answer(&questions);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_is_taken_is_answered_by_the_next_map_or_the_end() {
        let writings = Writings::default();
        let (sender, answers) = channel();
        let sender = Mutex::new(sender);
        writings.answer_by(move |question| sender.lock().unwrap().send(question).unwrap());
        assert!(!writings.want(1), "nobody writes");
        let serving = writings.serve();
        assert!(writings.is_served() && !writings.is_wanted());
        assert!(writings.want(2) && writings.want(3) && writings.is_wanted());
        let taken = writings.take();
        assert!(writings.want(4), "it may not be in the map that is being written");
        writings.answer(&taken);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [2, 3]);
        assert!(writings.is_wanted());
        drop(serving);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [4]);
        assert!(!writings.want(5) && !writings.is_wanted());
    }

    #[test]
    fn who_has_no_way_for_answers_does_not_wait() {
        let writings = Writings::default();
        let _serving = writings.serve();
        assert!(!writings.want(1));
    }
}
