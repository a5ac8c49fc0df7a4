//! The condition that ends a recording: a signal, or the end of its duration.
//!
//! # Invariants
//! - A signal's request applies to the process, not to one recording. None is lost between two
//!   consecutive recordings, as `top` makes them.
//!
//! # Safety
//! The signal handlers only read a clock, use atomics and may exit the process at once.
#![allow(unsafe_code, reason = "a signal handler that reads the clock")]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libc::SIGXFSZ;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::{flag, low_level};

/// The exit code after a second Ctrl-C, as shells report it for SIGINT; see `cli::exit`.
const INTERRUPTED: i32 = 130;
/// A signal within this time of the first one counts as the same request: `timeout` sends its
/// signal to the command and then to the process group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// The requests from signals, once the handlers are installed.
static SIGNALS: Mutex<Option<Signals>> = Mutex::new(None);
/// The action to run before a signal exits this process at once.
static LAST_ACT: OnceLock<fn()> = OnceLock::new();

/// The requests from signals, which apply to all recordings of this process.
#[derive(Debug, Clone)]
struct Signals {
    requested: Arc<Requested>,
    /// Whether a signal requested a save of the ring.
    save: Arc<AtomicBool>,
}

impl Signals {
    /// Returns the requests, and installs the handlers on the first call.
    fn taken() -> io::Result<Self> {
        let mut taken = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(signals) = &*taken {
            return Ok(signals.clone());
        }
        let signals = Self { requested: Arc::new(Requested::new()), save: Arc::default() };
        // A handler ignores a signal that comes before its installation is complete.
        let mut held_back = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR2] {
            held_back.add(signal);
        }
        let mask = held_back.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let installed = signals.install();
        mask.thread_set_mask()?;
        installed?;
        Ok(taken.insert(signals).clone())
    }

    fn install(&self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let requested = Arc::clone(&self.requested);
            let handler = move || {
                if requested.note() == Answer::Exit {
                    if let Some(act) = LAST_ACT.get() {
                        act();
                    }
                    low_level::exit(INTERRUPTED);
                }
            };
            // SAFETY: the handler reads a clock, exchanges an atomic, runs the action of
            // `before_exit`, which must be fit for a handler, and exits without running destructors
            // or exit handlers. It takes no lock and allocates nothing.
            unsafe { low_level::register(signal, handler) }?;
        }
        // Without SIGXFSZ, a write beyond the file size limit returns an ordinary error. The signal
        // gets an empty handler, because a started program would inherit an ignored signal.
        flag::register(SIGXFSZ, Arc::default())?;
        flag::register(SIGUSR2, Arc::clone(&self.save)).map(drop)
    }
}

/// Installs the handlers of the signals that request the end of a recording.
///
/// [`record`](crate::record::run::record()) installs them otherwise. The first signal ends all
/// recordings of this process, including later ones. A later signal exits the process at once, and
/// the guardian restores the target.
///
/// # Errors
/// Returns an error if the handlers cannot be installed.
pub fn take_signals() -> io::Result<()> {
    Signals::taken().map(drop)
}

/// Returns whether a signal requested the end of all recordings.
pub fn is_end_requested() -> bool {
    let taken = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    taken.as_ref().is_some_and(|signals| signals.requested.is_made())
}

/// A wait after the last recording, which a signal ends instead of this process.
#[derive(Debug)]
pub(crate) struct InterruptibleWait(Arc<Requested>);

impl InterruptibleWait {
    /// Begins the wait.
    pub(crate) fn begin() -> io::Result<Self> {
        let requested = Signals::taken()?.requested;
        // Relaxed: neither flag publishes other data.
        requested.is_waiting.store(true, Ordering::Relaxed);
        Ok(Self(requested))
    }

    /// Returns whether a signal ended the wait.
    pub(crate) fn is_over(&self) -> bool {
        // Relaxed: see `begin`.
        self.0.has_ended_wait.load(Ordering::Relaxed)
    }
}

impl Drop for InterruptibleWait {
    fn drop(&mut self) {
        // Relaxed: see `begin`.
        self.0.is_waiting.store(false, Ordering::Relaxed);
    }
}

/// Sets the action that runs before a signal exits the process at once.
///
/// Only the first call has an effect. The action runs in a signal handler, so it must not wait for
/// a lock or allocate memory.
pub fn before_exit(act: fn()) {
    LAST_ACT.get_or_init(|| act);
}

/// The condition that ends a recording; the recorder's loop polls it.
#[derive(Debug)]
pub(crate) struct StopCondition {
    signals: Signals,
    deadline: OnceLock<Instant>,
    /// Whether the recorder itself ended the recording.
    over: AtomicBool,
}

impl StopCondition {
    /// Installs the signal handlers.
    ///
    /// The first signal requests an orderly end. A later one exits the recorder at once, and the
    /// guardian restores the target.
    pub(crate) fn install() -> io::Result<Self> {
        let signals = Signals::taken()?;
        Ok(Self { signals, deadline: OnceLock::new(), over: AtomicBool::new(false) })
    }

    /// Sets the deadline of a recording with a duration, unless it is already set.
    pub(crate) fn start(&self, duration: Option<Duration>) {
        let end = |duration| Instant::now().checked_add(duration);
        if let Some(deadline) = duration.and_then(end) {
            self.deadline.get_or_init(|| deadline);
        }
    }

    /// Returns when the recording ends at the latest, if it has a duration.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.get().copied()
    }

    /// Returns whether a signal requested a save since the last call.
    pub(crate) fn takes_save(&self) -> bool {
        // Relaxed: the flag publishes no other data.
        self.signals.save.swap(false, Ordering::Relaxed)
    }

    /// Returns whether a signal requested the end.
    pub(crate) fn is_requested(&self) -> bool {
        self.signals.requested.is_made()
    }

    /// Ends the recording of all processes, since nothing more can be recorded.
    pub(crate) fn end(&self) {
        // Relaxed: the flag publishes no other data.
        self.over.store(true, Ordering::Relaxed);
    }

    /// Returns whether the recording should end: by a signal, by its deadline, or by [`Self::end`].
    pub(crate) fn is_due(&self) -> bool {
        self.is_requested()
            // Relaxed: see `end`.
            || self.over.load(Ordering::Relaxed)
            || self.deadline.get().is_some_and(|deadline| Instant::now() >= *deadline)
    }
}

/// The time at which a signal first requested the end.
#[derive(Debug)]
struct Requested {
    base: Instant,
    /// Nanoseconds since `base` plus 1, or 0 without a request.
    at: AtomicU64,
    /// Whether the recordings are over, and a signal ends a wait.
    is_waiting: AtomicBool,
    /// Whether a signal has ended the wait.
    has_ended_wait: AtomicBool,
}

/// What the handler does after it has noted a signal.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// Returns: this process notices the request by itself.
    Return,
    /// Exits the process.
    Exit,
}

impl Requested {
    fn new() -> Self {
        let (at, is_waiting, has_ended_wait) = Default::default();
        Self { base: Instant::now(), at, is_waiting, has_ended_wait }
    }

    fn is_made(&self) -> bool {
        // Relaxed: the time publishes no other data.
        self.at.load(Ordering::Relaxed) != 0
    }

    /// Notes a request.
    fn note(&self) -> Answer {
        self.note_at(self.base.elapsed())
    }

    fn note_at(&self, since: Duration) -> Answer {
        let now = (since.as_nanos() as u64).saturating_add(1);
        // Relaxed: the time publishes no other data.
        let first = self.at.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).err();
        let is_same = |first: u64| now.saturating_sub(first) < SAME_REQUEST.as_nanos() as u64;
        if first.is_some_and(is_same) {
            return Answer::Return;
        }
        // Relaxed: see `InterruptibleWait::begin`.
        if self.is_waiting.load(Ordering::Relaxed) {
            self.has_ended_wait.store(true, Ordering::Relaxed);
            return Answer::Return;
        }
        if first.is_some() { Answer::Exit } else { Answer::Return }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn two_signals_in_quick_succession_are_one_request() {
        let requested = Requested::new();
        assert!(!requested.is_made());
        assert_eq!(requested.note_at(at(1000)), Answer::Return);
        assert!(requested.is_made());
        assert_eq!(requested.note_at(at(1001)), Answer::Return);
        assert_eq!(requested.note_at(at(1499)), Answer::Return);
        assert_eq!(requested.note_at(at(1500)), Answer::Exit);
    }

    #[test]
    fn a_signal_ends_a_wait_and_not_the_process() {
        let ended = |requested: &Requested| requested.has_ended_wait.load(Ordering::Relaxed);
        // The recording ended by itself.
        let requested = Requested::new();
        requested.is_waiting.store(true, Ordering::Relaxed);
        assert_eq!(requested.note_at(at(1000)), Answer::Return);
        assert!(ended(&requested));
        // A signal ended the recording. Its repetition arrives during the wait.
        let requested = Requested::new();
        assert_eq!(requested.note_at(at(1000)), Answer::Return);
        requested.is_waiting.store(true, Ordering::Relaxed);
        assert_eq!(requested.note_at(at(1200)), Answer::Return);
        assert!(!ended(&requested));
        assert_eq!(requested.note_at(at(1700)), Answer::Return);
        assert!(ended(&requested));
        requested.is_waiting.store(false, Ordering::Relaxed);
        assert_eq!(requested.note_at(at(1800)), Answer::Exit);
    }
}
