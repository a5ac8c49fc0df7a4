//! `record --ready-fd`: writes a line to a descriptor when sampling has started.
//!
//! # Safety
//! The descriptor is taken over before this process opens anything, so nothing else owns it.
#![allow(unsafe_code, reason = "takes over a descriptor by its number")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use anyhow::anyhow;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::cli::exit::{CommandFailure, ExitCode};
use crate::record::{Event, Observer, Progress};

/// The line, as in sd_notify(3).
const READY: &[u8] = b"READY=1\n";

/// A descriptor that is written to when sampling has started.
#[derive(Debug)]
pub(super) struct Ready(File);

impl Ready {
    /// Takes over an open descriptor. A standard descriptor is copied and stays open. This process
    /// must have opened nothing yet.
    pub(super) fn take(number: RawFd) -> Result<Self, CommandFailure> {
        let usage = |text: String| CommandFailure::new(ExitCode::Usage, anyhow!(text));
        let writable = is_writable(number).map_err(|_| {
            usage(format!(
                "--ready-fd {number}: the descriptor is not open: open it, as in {number}>FILE"
            ))
        })?;
        if !writable {
            let text = format!(
                "--ready-fd {number}: the descriptor is not open for writing: open it, as in \
                 {number}>FILE"
            );
            return Err(usage(text));
        }
        // SAFETY: the descriptor is open, as the check above showed, and nothing else in this
        // process owns it. The standard library owns only the first three, which stay its own
        // below.
        let owned = unsafe { OwnedFd::from_raw_fd(number) };
        let mut file = File::from(owned);
        if number <= libc::STDERR_FILENO {
            let copy = file.try_clone();
            let standard = std::mem::replace(&mut file, copy.map_err(|error| other(error.into()))?);
            // Stays open: the rest of the command writes there, too.
            std::mem::forget(standard);
        }
        // A program that is started must not inherit it.
        let set = fcntl(&file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        set.map_err(|error| other(anyhow::Error::new(error)))?;
        Ok(Self(file))
    }

    fn write(mut self) {
        // The reader may be gone; the recording goes on.
        let _ = self.0.write_all(READY);
    }
}

fn other(error: anyhow::Error) -> CommandFailure {
    CommandFailure::new(ExitCode::Failure, error.context("--ready-fd"))
}

/// Whether a descriptor is open for writing, as /proc reports it.
fn is_writable(number: RawFd) -> io::Result<bool> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    Ok(flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY))
}

/// Passes events on to an observer, and reports the start of sampling once.
pub(super) struct ReadyObserver {
    /// Receives every event.
    pub(super) inner: Box<dyn Observer>,
    /// Reports the start.
    pub(super) ready: Option<Ready>,
}

impl Observer for ReadyObserver {
    fn event(&mut self, event: Event) {
        // With several processes, the first Attached comes when the outcome of all is known.
        let of_one = if let Event::Of { event, .. } = &event { event } else { &event };
        if matches!(of_one, Event::Attached { .. })
            && let Some(ready) = self.ready.take()
        {
            ready.write();
        }
        self.inner.event(event);
    }

    fn tick(&mut self, progress: &Progress) {
        self.inner.tick(progress);
    }

    fn wants_end(&mut self) -> bool {
        self.inner.wants_end()
    }
}
