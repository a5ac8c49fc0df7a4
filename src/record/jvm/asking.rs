//! When a machine is asked for its names.
//!
//! # Invariants
//! - A machine gives no more than a small part of its time to answers, whatever is wanted of it.
//! - A map that it wrote is there until the end is told: somebody may be about to read it.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use super::machine::{AskError, Machine};
use super::writings::{Serving, Writings};

/// Between two questions, if no sample wants one before: code may have taken the place of other code.
const PERIOD: Duration = Duration::from_secs(1);
/// Between two questions at least.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// So long the machine may take for its first answers: methods are compiled early.
const GRACE: Duration = Duration::from_secs(1);
/// After that, answers take no more than this part of its time.
const SHARE: u32 = 20;
/// A machine that is starting does not handle SIGQUIT yet.
const STARTING: Duration = Duration::from_secs(10);
/// Between two looks at it, and at what is wanted of it.
const LOOK: Duration = Duration::from_millis(50);
/// As long as this the last map is left as it is for its reader, who comes with each batch of samples.
const READING: Duration = Duration::from_secs(1);
/// So many questions without an answer, one after the other, and no more is asked.
const SILENT_MAX: u32 = 3;

/// What is told to the thread that asks.
pub(super) struct Ends<'a> {
    /// It shall end.
    pub(super) is_ending: &'a dyn Fn() -> bool,
    /// The last samples are there: what they want is asked for at once, and nothing else.
    pub(super) is_hurried: &'a dyn Fn() -> bool,
    /// Closed at the end.
    pub(super) stopped: Receiver<()>,
}

/// What the thread does.
pub(super) struct Asking<'a> {
    machine: Machine,
    writings: &'a Writings,
    ends: Ends<'a>,
    /// When the last question was over.
    asked: Cell<SystemTime>,
}

/// How long until the next question: so long at least if one is wanted, and so long at most.
struct Pause {
    least: Duration,
    most: Duration,
}

impl Pause {
    fn of(time: Duration) -> Self {
        Self { least: time, most: time }
    }
}

impl<'a> Asking<'a> {
    pub(super) fn new(machine: Machine, writings: &'a Writings, ends: Ends<'a>) -> Self {
        Self { machine, writings, ends, asked: Cell::new(SystemTime::UNIX_EPOCH) }
    }

    /// Asks until the end; what was not there before is gone then.
    pub(super) fn run(self, has_word: impl Fn(), tell: impl Fn(String)) {
        let served = self.writings.serve();
        let kept = self.machine.map();
        let error = match &kept {
            Ok(_) => self.ask_on(&served, &has_word).map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        error.map(tell);
        has_word();
        drop(served);
        if let Ok(None) = kept {
            // Nothing is ever sent: it returns when the other end is closed.
            let _ = self.ends.stopped.recv();
            if let Ok(Some(map)) = self.machine.map() {
                self.machine.remove_map(map, self.asked.get());
            }
        }
    }

    /// Asks until the end; why there is no map then, or why there will be no more.
    fn ask_on(&self, served: &Serving<'_>, has_word: &dyn Fn()) -> Option<AskError> {
        let (mut has_map, mut silent, mut spent) = (false, 0, Duration::ZERO);
        let begun = Instant::now();
        loop {
            served.take();
            let (pause, error) = match self.ask() {
                Ok(took) => {
                    (has_map, silent) = (true, 0);
                    has_word();
                    spent += took;
                    let share = spent.saturating_sub(GRACE) * SHARE;
                    let least = PAUSE_MIN.max(share.saturating_sub(begun.elapsed()));
                    (Some(Pause { least, most: PERIOD.max(least) }), None)
                }
                Err(AskError::NotYet) if !has_map && begun.elapsed() < STARTING => {
                    (Some(Pause::of(LOOK)), Some(AskError::NotYet))
                }
                Err(AskError::Failed(error)) if has_map && silent < SILENT_MAX => {
                    silent += 1;
                    (Some(Pause::of(PERIOD)), Some(AskError::Failed(error)))
                }
                Err(error) => (None, Some(error)),
            };
            // One that is starting has its names soon.
            if pause.is_none() || !matches!(error, Some(AskError::NotYet)) {
                served.answer();
            }
            if !pause.is_some_and(|pause| self.wait(served, &pause)) {
                // What went wrong at the end of one that has told its names is the end.
                let is_over = has_map && (self.machine.is_gone() || (self.ends.is_ending)());
                return error.filter(|_| !is_over);
            }
        }
    }

    fn ask(&self) -> Result<Duration, AskError> {
        let is_ending = self.ends.is_ending;
        let ask = || {
            let outcome = self.machine.ask(is_ending);
            self.asked.set(SystemTime::now());
            outcome
        };
        self.writings.write(is_ending, ask).unwrap_or(Err(AskError::Over))
    }

    /// Waits for the next question; false if none comes.
    fn wait(&self, served: &Serving<'_>, pause: &Pause) -> bool {
        let begun = Instant::now();
        loop {
            let is_hurried = (self.ends.is_hurried)();
            let left = pause.most.saturating_sub(begun.elapsed());
            let step = if is_hurried || left.is_zero() { LOOK } else { LOOK.min(left) };
            let is_over = self.ends.stopped.recv_timeout(step) != Err(RecvTimeoutError::Timeout);
            if is_over || (self.ends.is_ending)() || self.machine.is_gone() {
                return false;
            }
            let waited = begun.elapsed();
            let is_wanted = served.is_wanted() && (is_hurried || waited >= pause.least);
            let is_due = is_wanted || !is_hurried && waited >= pause.most;
            if is_due && (waited >= READING || self.writings.is_read() == Some(true)) {
                return true;
            }
        }
    }
}
