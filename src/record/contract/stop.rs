//! When to stop: a signal, the duration.
//!
//! # Invariants
//! - What a signal asks for is asked of the process, not of one recording: between two of them, as
//!   `top` makes them, none is lost.
//!
//! # Safety
//! What runs in signal handlers reads a clock, uses atomics and may end the process at once.
#![allow(unsafe_code, reason = "a signal handler that looks at the time")]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libc::SIGXFSZ;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::{flag, low_level};

/// Exit code after a second Ctrl-C, as shells have it for SIGINT; `cli::exit` documents it.
const INTERRUPTED: i32 = 130;
/// A signal so soon after the first one is the same request: `timeout` sends its signal to the
/// command and then to the process group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// What signals ask for, once they are taken over.
static SIGNALS: Mutex<Option<Signals>> = Mutex::new(None);
/// What is to be put right before a signal ends this process at once.
static LAST_ACT: OnceLock<fn()> = OnceLock::new();

/// What signals ask for, of all recordings of this process.
#[derive(Debug, Clone)]
struct Signals {
    requested: Arc<Requested>,
    /// A signal asked for what there is to be saved.
    save: Arc<AtomicBool>,
}

impl Signals {
    /// Takes the signals over, unless that is done.
    fn taken() -> io::Result<Self> {
        let mut taken = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(signals) = &*taken {
            return Ok(signals.clone());
        }
        let signals = Self { requested: Arc::new(Requested::new()), save: Arc::default() };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let requested = Arc::clone(&signals.requested);
            let handler = move || {
                if requested.is_repeated() {
                    if let Some(act) = LAST_ACT.get() {
                        act();
                    }
                    low_level::exit(INTERRUPTED);
                }
            };
            // SAFETY: the handler reads a clock, exchanges an atomic, does what `before_exit` asks
            // to be fit for a handler, and exits without running anything; none of it takes a lock
            // or memory.
            unsafe { low_level::register(signal, handler) }?;
        }
        // A trace that reaches the limit for files' sizes is an error like any other. A handler
        // that does nothing, since ignoring the signal would be inherited by a started program.
        flag::register(SIGXFSZ, Arc::default())?;
        flag::register(SIGUSR2, Arc::clone(&signals.save))?;
        Ok(taken.insert(signals).clone())
    }
}

/// Takes over the signals that ask for the end, as [`record`](crate::record::run::record()) does
/// otherwise: the first one asks all recordings of this process to end, those too that begin later;
/// a later one ends the process at once, and the guardian cures the target.
///
/// # Errors
/// If handlers cannot be installed.
pub fn take_signals() -> io::Result<()> {
    Signals::taken().map(drop)
}

/// Whether a signal has asked for the end of all recordings.
pub fn is_end_requested() -> bool {
    let taken = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    taken.as_ref().is_some_and(|signals| signals.requested.is_made())
}

/// Has this done before a signal ends the process at once; the first caller's act counts. It runs
/// in a signal handler: it must take no lock that it would wait for, and no memory.
pub fn before_exit(act: fn()) {
    LAST_ACT.get_or_init(|| act);
}

/// Asked once a loop.
#[derive(Debug)]
pub(crate) struct Stop {
    signals: Signals,
    deadline: OnceLock<Instant>,
    /// The recorder itself found that it is over.
    over: AtomicBool,
}

impl Stop {
    /// Takes over the signals: the first one asks for a clean end, a later one ends the recorder
    /// at once (the guardian then cures the target).
    pub(crate) fn install() -> io::Result<Self> {
        let signals = Signals::taken()?;
        Ok(Self { signals, deadline: OnceLock::new(), over: AtomicBool::new(false) })
    }

    /// Starts the clock of a limited recording, unless it is running.
    pub(crate) fn start(&self, duration: Option<Duration>) {
        let end = |duration| Instant::now().checked_add(duration);
        if let Some(deadline) = duration.and_then(end) {
            self.deadline.get_or_init(|| deadline);
        }
    }

    /// A signal asked for what there is to be saved, since this was asked last.
    pub(crate) fn takes_save(&self) -> bool {
        // Relaxed: the request carries nothing with it.
        self.signals.save.swap(false, Ordering::Relaxed)
    }

    /// A signal asked for the end.
    pub(crate) fn is_requested(&self) -> bool {
        self.signals.requested.is_made()
    }

    /// Nothing more can be recorded: of no process.
    pub(crate) fn end(&self) {
        // Relaxed: it carries nothing with it.
        self.over.store(true, Ordering::Relaxed);
    }

    /// The recording is over, by signal, by time, or because there is no use in going on.
    pub(crate) fn is_due(&self) -> bool {
        self.is_requested()
            // Relaxed: see `end`.
            || self.over.load(Ordering::Relaxed)
            || self.deadline.get().is_some_and(|deadline| Instant::now() >= *deadline)
    }
}

/// When a signal first asked for the end.
#[derive(Debug)]
struct Requested {
    base: Instant,
    /// Nanoseconds since the base, and one more; 0 if none did.
    at: AtomicU64,
}

impl Requested {
    fn new() -> Self {
        Self { base: Instant::now(), at: AtomicU64::new(0) }
    }

    fn is_made(&self) -> bool {
        // Relaxed: the time carries nothing with it.
        self.at.load(Ordering::Relaxed) != 0
    }

    /// Takes down a request. True if it is not the first one and comes long after that.
    fn is_repeated(&self) -> bool {
        self.is_repeated_at(self.base.elapsed())
    }

    fn is_repeated_at(&self, since: Duration) -> bool {
        let now = (since.as_nanos() as u64).saturating_add(1);
        match self.at.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => false,
            Err(first) => now.saturating_sub(first) >= SAME_REQUEST.as_nanos() as u64,
        }
    }
}

/// Sets a flag by a signal, instead of what it does by default.
#[cfg(test)]
pub(crate) fn notice(signal: i32, flag: Arc<std::sync::atomic::AtomicBool>) {
    flag::register(signal, flag).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_twice_at_once_is_one() {
        let requested = Requested::new();
        assert!(!requested.is_made());
        assert!(!requested.is_repeated_at(Duration::from_millis(1000)));
        assert!(requested.is_made());
        assert!(!requested.is_repeated_at(Duration::from_millis(1001)));
        assert!(!requested.is_repeated_at(Duration::from_millis(1499)));
        assert!(requested.is_repeated_at(Duration::from_millis(1500)));
    }
}
