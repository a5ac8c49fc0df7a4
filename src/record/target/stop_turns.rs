//! How many processes of a recording are stopped at the same time.
//!
//! An attach stops a thread until a guardian has done its work, which takes some ten microseconds
//! of a processor. Of a hundred attaches at the same time, each waits for a processor among all
//! others, and its thread stands still: for half a second (measured, two processors). So attaches
//! take turns. The slow work before the stop is done for all processes first, so that they are
//! sampled from nearly the same time on.
//!
//! # Invariants
//! - No process waits long for another one. A turn that takes longer than [`TURN_MAX`] does not
//!   count any more, and no process waits longer than [`PREPARED_MAX`] for the work before.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest turn for which others wait. A process that is stopped by a signal, or waits for a
/// disk, takes seconds.
const TURN_MAX: Duration = Duration::from_millis(50);
/// How long a process waits until the others are prepared.
const PREPARED_MAX: Duration = Duration::from_secs(2);

/// The turns of all processes of a recording.
#[derive(Debug)]
pub(crate) struct StopTurns {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TurnState {
    /// The number of processes that may be stopped now.
    free: usize,
    /// The turns that count: their numbers, and when they began.
    taken: Vec<(u64, Instant)>,
    next: u64,
    /// The number of processes that are still to be prepared.
    unprepared: usize,
}

impl Default for StopTurns {
    fn default() -> Self {
        // The stopped thread needs a processor as well.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_room((cores / 2).max(1))
    }
}

impl StopTurns {
    fn with_room(free: usize) -> Self {
        let state = Mutex::new(TurnState { free, ..TurnState::default() });
        Self { state, changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, TurnState> {
        // The numbers are valid at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces a process that is to be prepared.
    pub(crate) fn announce(self: &Arc<Self>) -> Preparation {
        self.state().unprepared += 1;
        Preparation { turns: Arc::clone(self) }
    }

    /// Waits for a turn, which ends when the value is dropped.
    pub(crate) fn take(&self) -> StopTurn<'_> {
        let mut state = self.state();
        while state.free == 0 {
            let now = Instant::now();
            let is_overdue = |(_, began): &(u64, Instant)| now - *began >= TURN_MAX;
            if let Some(index) = state.taken.iter().position(is_overdue) {
                state.taken.remove(index);
                state.free += 1;
                break;
            }
            let first = state.taken.iter().map(|(_, began)| *began + TURN_MAX).min();
            let wait = first.map_or(TURN_MAX, |due| due - now);
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.free -= 1;
        let number = state.next;
        state.next += 1;
        state.taken.push((number, Instant::now()));
        StopTurn { turns: self, number }
    }
}

/// The work on a process before its first stop. It is over when the value is dropped.
#[derive(Debug)]
pub(crate) struct Preparation {
    turns: Arc<StopTurns>,
}

impl Preparation {
    /// Ends the work, and waits until that of all other processes is over.
    pub(crate) fn end(self) {
        let (turns, deadline) = (Arc::clone(&self.turns), Instant::now() + PREPARED_MAX);
        drop(self);
        let mut state = turns.state();
        while state.unprepared > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = turns.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        self.turns.state().unprepared -= 1;
        self.turns.changed.notify_all();
    }
}

/// A turn.
#[derive(Debug)]
pub(crate) struct StopTurn<'a> {
    turns: &'a StopTurns,
    number: u64,
}

impl Drop for StopTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        let before = state.taken.len();
        state.taken.retain(|(number, _)| *number != self.number);
        // A turn that took too long does not count any more.
        state.free += before - state.taken.len();
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn as_many_turns_are_taken_at_once_as_there_is_room_for() {
        let turns = StopTurns::with_room(2);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _turn = turns.take();
                    let count = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(count, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(2));
                    now.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert!((1..=2).contains(&most.into_inner()));
        let state = turns.state();
        assert_eq!((state.free, state.taken.len()), (2, 0));
    }

    #[test]
    fn nobody_waits_long_for_a_turn_that_takes_too_long() {
        let turns = StopTurns::with_room(1);
        let long = turns.take();
        let began = Instant::now();
        drop(turns.take());
        assert!(began.elapsed() >= TURN_MAX / 2);
        let began = Instant::now();
        for _ in 0..10 {
            drop(turns.take());
        }
        assert!(began.elapsed() < TURN_MAX * 5, "only the first one waits");
        drop(long);
        assert_eq!(turns.state().free, 1, "a turn that does not count adds no room");
    }

    #[test]
    fn all_are_prepared_before_the_first_one_goes_on() {
        let turns = Arc::new(StopTurns::with_room(1));
        let preparations = [(); 3].map(|()| turns.announce());
        let prepared = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for (number, preparation) in preparations.into_iter().enumerate() {
                let prepared = &prepared;
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(5 * number as u64));
                    prepared.fetch_add(1, Ordering::SeqCst);
                    // One of them fails.
                    if number != 1 {
                        preparation.end();
                        assert_eq!(prepared.load(Ordering::SeqCst), 3);
                    }
                });
            }
        });
        turns.announce().end();
    }
}
