//! When to stop: a signal, the duration. The only user of signal-hook.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libc::SIGXFSZ;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit code after a second Ctrl-C, as shells have it for SIGINT.
const INTERRUPTED: i32 = 130;

/// Asked once a loop.
#[derive(Debug)]
pub(super) struct Stop {
    requested: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Stop {
    /// Takes over the signals: the first one asks for a clean end, the second one ends the
    /// recorder at once (the guardian then cures the target).
    pub(super) fn install() -> io::Result<Self> {
        let requested = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The order matters: the shutdown looks at the flag before this signal sets it.
            flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&requested))?;
            flag::register(signal, Arc::clone(&requested))?;
        }
        // A trace that reaches the limit for files' sizes is an error like any other. A handler
        // that does nothing, since ignoring the signal would be inherited by a started program.
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(Self { requested, deadline: None })
    }

    /// Starts the clock of a limited recording.
    pub(super) fn start(&mut self, duration: Option<Duration>) {
        self.deadline = duration.and_then(|duration| Instant::now().checked_add(duration));
    }

    /// A signal asked for the end.
    pub(super) fn is_requested(&self) -> bool {
        // Relaxed: the flag carries nothing with it.
        self.requested.load(Ordering::Relaxed)
    }

    /// The recording is over, by signal or by time.
    pub(super) fn is_due(&self) -> bool {
        self.is_requested() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}
