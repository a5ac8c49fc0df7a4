//! The requests for a JVM's perf map, shared by the writer of the map, its reader, and the samples
//! that want names.
//!
//! # Invariants
//! - A map is not read while it is being written.
//! - A request is answered once a map that was requested after it has been written, once no map can
//!   be written, or once the poller ends. The poller may hang forever in a file system of the
//!   target, so every wait for an answer must be bounded.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// The interval at which a writer checks whether a reader still holds the map.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Receives the number of an answered request.
type OnAnswer = Arc<dyn Fn(u64) + Send + Sync>;

/// The requests for the maps of one process.
#[derive(Debug, Default)]
pub(crate) struct MapRequests {
    /// The number of maps that were written on request.
    ///
    /// The lock is held during a write, while the file is neither the old nor the new map.
    count: Mutex<u64>,
    demand: Mutex<PendingRequests>,
}

/// The requests for the next map.
#[derive(Default)]
struct PendingRequests {
    /// The number of the current server, which requests the maps.
    server: Option<u64>,
    /// The number of servers so far.
    servers: u64,
    /// The requests that no server has taken yet.
    questions: Vec<u64>,
    /// The requests that the next map answers.
    taken: Vec<u64>,
    /// The count of maps up to the map that was read last.
    read: u64,
    answer: Option<OnAnswer>,
}

impl fmt::Debug for PendingRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} + {} questions", self.questions.len(), self.taken.len())
    }
}

impl MapRequests {
    /// Keeps the map unchanged while the guard is held; `None` if the map is being written.
    pub(crate) fn hold(&self) -> Option<MutexGuard<'_, u64>> {
        match self.count.try_lock() {
            Ok(count) => Some(count),
            // A number is always consistent.
            Err(TryLockError::Poisoned(count)) => Some(count.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the readers of the map, and then writes it; `None` if `is_over` returns true
    /// first.
    pub(crate) fn write<T>(
        &self,
        is_over: &dyn Fn() -> bool,
        write: impl FnOnce() -> T,
    ) -> Option<T> {
        loop {
            if let Some(mut count) = self.hold() {
                // Even a failed write may have changed the file.
                *count += 1;
                return Some(write());
            }
            if is_over() {
                return None;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    fn demand(&self) -> MutexGuard<'_, PendingRequests> {
        // No code under the lock can panic halfway through a change.
        self.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the receiver of answers.
    pub(crate) fn answer_by(&self, answer: impl Fn(u64) + Send + Sync + 'static) {
        self.demand().answer = Some(Arc::new(answer));
    }

    /// Returns whether there is a server.
    pub(crate) fn is_served(&self) -> bool {
        self.demand().server.is_some()
    }

    /// Requests a map that is written from now on; returns false if no answer will come, since
    /// there is no server.
    pub(crate) fn want(&self, question: u64) -> bool {
        let mut demand = self.demand();
        let is_taken = demand.server.is_some() && demand.answer.is_some();
        if is_taken {
            demand.questions.push(question);
        }
        is_taken
    }

    /// Notes that the map with this count has been read.
    pub(crate) fn note_read(&self, count: u64) {
        self.demand().read = count;
    }

    /// Returns whether the last map has been read; `None` while a map is being written.
    pub(super) fn is_read(&self) -> Option<bool> {
        let count = *self.hold()?;
        Some(self.demand().read >= count)
    }

    /// Starts a server, which serves requests until it is dropped.
    pub(crate) fn serve(&self) -> MapServer<'_> {
        let mut demand = self.demand();
        demand.servers += 1;
        demand.server = Some(demand.servers);
        MapServer { map_requests: self, number: demand.servers }
    }
}

/// A server of map requests, which answers all open requests when it is dropped.
pub(crate) struct MapServer<'a> {
    map_requests: &'a MapRequests,
    number: u64,
}

impl MapServer<'_> {
    /// Returns whether a map is wanted, or the last requested map has not come.
    pub(super) fn is_wanted(&self) -> bool {
        let demand = self.map_requests.demand();
        !demand.questions.is_empty() || !demand.taken.is_empty()
    }

    /// Takes all requests so far: the next map answers them.
    pub(crate) fn take(&self) {
        let mut demand = self.map_requests.demand();
        if demand.server == Some(self.number) {
            let questions = mem::take(&mut demand.questions);
            demand.taken.extend(questions);
        }
    }

    /// Answers the taken requests: the map has been written, or will not come.
    pub(crate) fn answer(&self) {
        self.answer_with(|demand| mem::take(&mut demand.taken));
    }

    fn answer_with(&self, questions: impl FnOnce(&mut PendingRequests) -> Vec<u64>) {
        let (questions, answer) = {
            let mut demand = self.map_requests.demand();
            if demand.server != Some(self.number) {
                // Another server replaced this one and handles the open requests.
                return;
            }
            (questions(&mut demand), demand.answer.clone())
        };
        // Without the lock: the receiver may send the next request at once.
        questions.iter().for_each(|question| answer.iter().for_each(|answer| answer(*question)));
    }
}

impl Drop for MapServer<'_> {
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

    fn with_answers() -> (MapRequests, Receiver<u64>) {
        let map_requests = MapRequests::default();
        let (sender, answers) = channel();
        let sender = Mutex::new(sender);
        map_requests.answer_by(move |question| sender.lock().unwrap().send(question).unwrap());
        (map_requests, answers)
    }

    #[test]
    fn taken_requests_are_answered_by_the_next_map_or_the_end() {
        let (map_requests, answers) = with_answers();
        let answers = || answers.try_iter().collect::<Vec<_>>();
        assert!(!map_requests.want(1), "without a server");
        let serving = map_requests.serve();
        assert!(map_requests.is_served() && !serving.is_wanted());
        assert!(map_requests.want(2) && map_requests.want(3) && serving.is_wanted());
        serving.take();
        assert!(serving.is_wanted(), "the map has not come yet");
        assert!(map_requests.want(4), "the map that is being written may not contain it");
        serving.answer();
        assert_eq!(answers(), [2, 3]);
        assert!(serving.is_wanted());
        serving.take();
        assert!(map_requests.want(5));
        drop(serving);
        assert_eq!(answers(), [4, 5]);
        assert!(!map_requests.want(6));
    }

    #[test]
    fn a_late_server_answers_nothing_for_its_successor() {
        let (map_requests, answers) = with_answers();
        let late = map_requests.serve();
        let next = map_requests.serve();
        assert!(map_requests.want(1));
        late.take();
        late.answer();
        drop(late);
        assert!(map_requests.is_served() && answers.try_iter().next().is_none());
        next.take();
        next.answer();
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn without_a_receiver_of_answers_no_request_is_taken() {
        let map_requests = MapRequests::default();
        let _serving = map_requests.serve();
        assert!(!map_requests.want(1));
    }

    #[test]
    fn a_map_counts_as_read_when_the_last_write_was_read() {
        let map_requests = MapRequests::default();
        assert_eq!(map_requests.is_read(), Some(true), "no map was written");
        map_requests.write(&|| false, || assert_eq!(map_requests.is_read(), None));
        assert_eq!(map_requests.is_read(), Some(false));
        map_requests.note_read(1);
        assert_eq!(map_requests.is_read(), Some(true));
    }
}
