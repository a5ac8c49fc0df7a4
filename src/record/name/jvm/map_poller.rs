//! The schedule of requests to a Java virtual machine for its perf map.
//!
//! # Invariants
//! - A machine spends only a small part of its time on answers, however many are wanted.
//! - A map that it wrote stays until the end: a reader may be about to open it.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use crate::record::name::jvm::attach_protocol::{AskError, JavaVm};
use crate::record::name::jvm::map_requests::{MapRequests, MapServer};

/// The pause between two requests if no sample wants one earlier; code may have replaced other
/// code.
const PERIOD: Duration = Duration::from_secs(1);
/// The shortest pause between two requests.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// How long the machine may take for its first answers: methods are compiled early.
const GRACE: Duration = Duration::from_secs(1);
/// After that, answers take at most one part in this many of its time.
const SHARE: u32 = 20;
/// How long a machine may be starting without a SIGQUIT handler.
const STARTING: Duration = Duration::from_secs(10);
/// The interval at which the machine and the requests are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the last map is left alone for its reader, who comes with each batch of samples.
const READING_TIME: Duration = Duration::from_secs(1);
/// Consecutive requests without an answer after which requests end.
const SILENT_MAX: u32 = 3;

/// The signals that end the poller.
pub(super) struct PollerEnd<'a> {
    /// Returns true when it must end.
    pub(super) is_ending: &'a dyn Fn() -> bool,
    /// Returns true once the last samples have arrived: only their requests are then served, at
    /// once.
    pub(super) is_hurried: &'a dyn Fn() -> bool,
    /// The receiver of a channel that closes at the end.
    pub(super) stopped: Receiver<()>,
}

/// The poller of one machine's map.
pub(super) struct MapPoller<'a> {
    machine: JavaVm,
    map_requests: &'a MapRequests,
    end: PollerEnd<'a>,
    /// The time at which the last request ended.
    asked: Cell<SystemTime>,
}

/// The shortest pause until the next request if one is wanted, and the longest.
struct Pause {
    least: Duration,
    most: Duration,
}

impl Pause {
    fn of(time: Duration) -> Self {
        Self { least: time, most: time }
    }
}

impl<'a> MapPoller<'a> {
    pub(super) fn new(machine: JavaVm, map_requests: &'a MapRequests, end: PollerEnd<'a>) -> Self {
        Self { machine, map_requests, end, asked: Cell::new(SystemTime::UNIX_EPOCH) }
    }

    /// Requests maps until the end, and then removes a map that was not there before.
    pub(super) fn run(self, has_first_answer: impl Fn(), tell: impl Fn(String)) {
        let served = self.map_requests.serve();
        let kept = self.machine.map();
        let error = match &kept {
            Ok(_) => self.ask_on(&served, &has_first_answer).map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        error.map(tell);
        has_first_answer();
        drop(served);
        if let Ok(None) = kept {
            // Nothing is ever sent: it returns when the other end is closed.
            let _ = self.end.stopped.recv();
            if let Ok(Some(map)) = self.machine.map() {
                self.machine.remove_map(map, self.asked.get());
            }
        }
    }

    /// Requests maps until the end; returns why there is none, or why there will be no more.
    fn ask_on(&self, served: &MapServer<'_>, has_first_answer: &dyn Fn()) -> Option<AskError> {
        let (mut has_map, mut silent, mut spent) = (false, 0, Duration::ZERO);
        let started = Instant::now();
        loop {
            served.take();
            let (pause, error) = match self.ask() {
                Ok(took) => {
                    (has_map, silent) = (true, 0);
                    has_first_answer();
                    spent += took;
                    let share = spent.saturating_sub(GRACE) * SHARE;
                    let least = PAUSE_MIN.max(share.saturating_sub(started.elapsed()));
                    (Some(Pause { least, most: PERIOD.max(least) }), None)
                }
                Err(AskError::NotYet) if !has_map && started.elapsed() < STARTING => {
                    (Some(Pause::of(CHECK_INTERVAL)), Some(AskError::NotYet))
                }
                Err(AskError::Failed(error)) if has_map && silent < SILENT_MAX => {
                    silent += 1;
                    (Some(Pause::of(PERIOD)), Some(AskError::Failed(error)))
                }
                Err(error) => (None, Some(error)),
            };
            // A machine that is starting has its names soon.
            if pause.is_none() || !matches!(error, Some(AskError::NotYet)) {
                served.answer();
            }
            if !pause.is_some_and(|pause| self.wait(served, &pause)) {
                // A failure at the end of a machine that has delivered names is just its end.
                let is_over = has_map && (self.machine.is_gone() || (self.end.is_ending)());
                return error.filter(|_| !is_over);
            }
        }
    }

    fn ask(&self) -> Result<Duration, AskError> {
        let is_ending = self.end.is_ending;
        let ask = || {
            let outcome = self.machine.ask(is_ending);
            self.asked.set(SystemTime::now());
            outcome
        };
        self.map_requests.write(is_ending, ask).unwrap_or(Err(AskError::Over))
    }

    /// Waits for the next request; returns false if none comes.
    fn wait(&self, served: &MapServer<'_>, pause: &Pause) -> bool {
        let started = Instant::now();
        loop {
            let is_hurried = (self.end.is_hurried)();
            let left = pause.most.saturating_sub(started.elapsed());
            let step = if is_hurried || left.is_zero() {
                CHECK_INTERVAL
            } else {
                CHECK_INTERVAL.min(left)
            };
            let is_over = self.end.stopped.recv_timeout(step) != Err(RecvTimeoutError::Timeout);
            if is_over || (self.end.is_ending)() || self.machine.is_gone() {
                return false;
            }
            let waited = started.elapsed();
            let is_wanted = served.is_wanted() && (is_hurried || waited >= pause.least);
            let is_due = is_wanted || !is_hurried && waited >= pause.most;
            if is_due && (waited >= READING_TIME || self.map_requests.is_read() == Some(true)) {
                return true;
            }
        }
    }
}
