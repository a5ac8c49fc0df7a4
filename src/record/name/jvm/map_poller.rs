//! Schedules the requests to a JVM for its perf map.
//!
//! # Invariants
//! - A JVM spends only a small part of its time on answers, however many are wanted.
//! - A map that a JVM wrote stays until the end: a reader may be about to open it.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use crate::record::name::jvm::attach_protocol::{AskError, JavaVm};
use crate::record::name::jvm::map_requests::{MapRequests, MapServer};

/// The pause between two requests if no sample wants an earlier one; code may have replaced other
/// code meanwhile.
const PERIOD: Duration = Duration::from_secs(1);
/// The shortest pause between two requests.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The total time that a JVM may spend on answers without a limit on their share: most methods are
/// compiled early.
const GRACE: Duration = Duration::from_secs(1);
/// Beyond that time, answers take at most one part in this many of the JVM's time.
const SHARE: u32 = 20;
/// How long a JVM may have no SIGQUIT handler while it starts.
const STARTING: Duration = Duration::from_secs(10);
/// The interval at which the JVM and the requests are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the last map stays unchanged for its reader, which reads with each batch of samples.
const READING_TIME: Duration = Duration::from_secs(1);
/// The number of consecutive requests without an answer after which requests end.
const SILENT_MAX: u32 = 3;

/// The signals that end the poller.
pub(super) struct PollerEnd<'a> {
    /// Returns whether the poller must end.
    pub(super) is_ending: &'a dyn Fn() -> bool,
    /// Returns whether the last samples have arrived. From then on only their requests are served,
    /// at once.
    pub(super) is_hurried: &'a dyn Fn() -> bool,
    /// The receiver of a channel that closes at the end.
    pub(super) stopped: Receiver<()>,
}

/// Requests the maps of one JVM.
pub(super) struct MapPoller<'a> {
    jvm: JavaVm,
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
    pub(super) fn new(jvm: JavaVm, map_requests: &'a MapRequests, end: PollerEnd<'a>) -> Self {
        Self { jvm, map_requests, end, asked: Cell::new(SystemTime::UNIX_EPOCH) }
    }

    /// Requests maps until the end, and then removes the map unless it existed before.
    pub(super) fn run(self, has_first_answer: impl Fn(), tell: impl Fn(String)) {
        let served = self.map_requests.serve();
        let kept = self.jvm.map();
        let error = match &kept {
            Ok(_) => self.ask_on(&served, &has_first_answer).map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        error.map(tell);
        has_first_answer();
        drop(served);
        if let Ok(None) = kept {
            // No message is ever sent: this returns when the other end is closed.
            let _ = self.end.stopped.recv();
            if let Ok(Some(map)) = self.jvm.map() {
                self.jvm.remove_map(map, self.asked.get());
            }
        }
    }

    /// Requests maps until the end, and returns why there is no map, or why no more will come.
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
            // A JVM that is starting will have names soon, so its requests stay open.
            if pause.is_none() || !matches!(error, Some(AskError::NotYet)) {
                served.answer();
            }
            if !pause.is_some_and(|pause| self.wait(served, &pause)) {
                // If a JVM that has delivered names exits, a failure of a request means only that.
                let is_over = has_map && (self.jvm.is_gone() || (self.end.is_ending)());
                return error.filter(|_| !is_over);
            }
        }
    }

    fn ask(&self) -> Result<Duration, AskError> {
        let is_ending = self.end.is_ending;
        let ask = || {
            let outcome = self.jvm.ask(is_ending);
            self.asked.set(SystemTime::now());
            outcome
        };
        self.map_requests.write(is_ending, ask).unwrap_or(Err(AskError::Over))
    }

    /// Waits until the next request is due, and returns false if there will be none.
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
            if is_over || (self.end.is_ending)() || self.jvm.is_gone() {
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
