//! What passes between who asks a machine for its map, who reads the map, and who wants names of it.
//!
//! # Invariants
//! - A map is not read while it is being written.
//! - A question is answered when a map has been written that was asked for after it, when there is none
//!   to be had, or when nobody asks any more. Who asks may be away without end, where a file system of
//!   the target's does not answer: who wants to know waits for so long only.

use std::fmt;
use std::mem;
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
    /// Who has maps written, by its number.
    server: Option<u64>,
    /// How many there were.
    servers: u64,
    /// Not looked at yet.
    questions: Vec<u64>,
    /// What the map answers that is being asked for.
    taken: Vec<u64>,
    /// How often the map that was read last had been written.
    read: u64,
    answer: Option<Answer>,
}

impl fmt::Debug for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} + {} questions", self.questions.len(), self.taken.len())
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
        self.demand().server.is_some()
    }

    /// Asks for a map that is written from now on. False if nobody has any written: no answer comes.
    pub(in crate::record) fn want(&self, question: u64) -> bool {
        let mut demand = self.demand();
        let is_taken = demand.server.is_some() && demand.answer.is_some();
        if is_taken {
            demand.questions.push(question);
        }
        is_taken
    }

    /// The map has been read that was written so often.
    pub(in crate::record) fn note_read(&self, count: u64) {
        self.demand().read = count;
    }

    /// The map that was written last has been read; `None` while it is being written.
    pub(super) fn is_read(&self) -> Option<bool> {
        let count = *self.hold()?;
        Some(self.demand().read >= count)
    }

    /// Maps are written as long as this is kept.
    pub(in crate::record) fn serve(&self) -> Serving<'_> {
        let mut demand = self.demand();
        demand.servers += 1;
        demand.server = Some(demand.servers);
        Serving { writings: self, number: demand.servers }
    }
}

/// Somebody has maps written; who waits for one after that is answered, whatever ended it.
pub(in crate::record) struct Serving<'a> {
    writings: &'a Writings,
    number: u64,
}

impl Serving<'_> {
    /// A map is wanted, or was when the last one was asked for that did not come.
    pub(super) fn is_wanted(&self) -> bool {
        let demand = self.writings.demand();
        !demand.questions.is_empty() || !demand.taken.is_empty()
    }

    /// What was asked up to now is answered by the map that is asked for now.
    pub(in crate::record) fn take(&self) {
        let mut demand = self.writings.demand();
        if demand.server == Some(self.number) {
            let questions = mem::take(&mut demand.questions);
            demand.taken.extend(questions);
        }
    }

    /// Answers what was taken: the map is there, or will not be.
    pub(in crate::record) fn answer(&self) {
        self.answer_with(|demand| mem::take(&mut demand.taken));
    }

    fn answer_with(&self, questions: impl FnOnce(&mut Demand) -> Vec<u64>) {
        let (questions, answer) = {
            let mut demand = self.writings.demand();
            if demand.server != Some(self.number) {
                // Another one serves: what is open is asked of that.
                return;
            }
            (questions(&mut demand), demand.answer.clone())
        };
        // Not under the lock: who is answered may have the next question before it listens.
        questions.iter().for_each(|question| answer.iter().for_each(|answer| answer(*question)));
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.answer_with(|demand| {
            demand.server = None;
            let mut open = mem::take(&mut demand.taken);
            open.append(&mut demand.questions);
            open
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn with_answers() -> (Writings, Receiver<u64>) {
        let writings = Writings::default();
        let (sender, answers) = channel();
        let sender = Mutex::new(sender);
        writings.answer_by(move |question| sender.lock().unwrap().send(question).unwrap());
        (writings, answers)
    }

    #[test]
    fn what_is_taken_is_answered_by_the_next_map_or_the_end() {
        let (writings, answers) = with_answers();
        let answers = || answers.try_iter().collect::<Vec<_>>();
        assert!(!writings.want(1), "nobody writes");
        let serving = writings.serve();
        assert!(writings.is_served() && !serving.is_wanted());
        assert!(writings.want(2) && writings.want(3) && serving.is_wanted());
        serving.take();
        assert!(serving.is_wanted(), "it has not come yet");
        assert!(writings.want(4), "it may not be in the map that is being written");
        serving.answer();
        assert_eq!(answers(), [2, 3]);
        assert!(serving.is_wanted());
        serving.take();
        assert!(writings.want(5));
        drop(serving);
        assert_eq!(answers(), [4, 5]);
        assert!(!writings.want(6));
    }

    #[test]
    fn one_that_comes_back_late_says_nothing_for_the_next() {
        let (writings, answers) = with_answers();
        let late = writings.serve();
        let next = writings.serve();
        assert!(writings.want(1));
        late.take();
        late.answer();
        drop(late);
        assert!(writings.is_served() && answers.try_iter().next().is_none());
        next.take();
        next.answer();
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn who_has_no_way_for_answers_does_not_wait() {
        let writings = Writings::default();
        let _serving = writings.serve();
        assert!(!writings.want(1));
    }

    #[test]
    fn a_map_is_read_when_the_last_writing_was() {
        let writings = Writings::default();
        assert_eq!(writings.is_read(), Some(true), "there is none");
        writings.write(&|| false, || assert_eq!(writings.is_read(), None));
        assert_eq!(writings.is_read(), Some(false));
        writings.note_read(1);
        assert_eq!(writings.is_read(), Some(true));
    }
}
