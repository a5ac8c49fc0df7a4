//! Telling others that a recording has begun: a line to a descriptor.
//!
//! # Safety
//! A descriptor that the user names is taken over before anything else of this process is open, so
//! nobody else in it owns the number.
#![allow(unsafe_code, reason = "takes over a descriptor by its number")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use anyhow::anyhow;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::exit::{ExitCode, Failure};
use crate::record::{Event, Observer, Progress};

/// What is written when sampling is on; as in sd_notify(3).
const READY: &[u8] = b"READY=1\n";

/// A descriptor that waits for the begin of sampling.
#[derive(Debug)]
pub(super) struct Ready(File);

impl Ready {
    /// Takes over an open descriptor; one of the three standard ones stays open besides. Nothing of
    /// this process may be open yet.
    pub(super) fn take(number: RawFd) -> Result<Self, Failure> {
        let usage = |text: String| Failure::new(ExitCode::Usage, anyhow!(text));
        let writable = is_writable(number).map_err(|_| {
            usage(format!("--ready-fd {number}: no such descriptor; open it, as in {number}>FILE"))
        })?;
        if !writable {
            let text =
                format!("--ready-fd {number}: not open for writing; open it as in {number}>FILE");
            return Err(usage(text));
        }
        // SAFETY: the number is that of an open descriptor, as was just seen, and nothing else in this
        // process owns it: the standard library has none but the first three, which are left to it.
        let owned = unsafe { OwnedFd::from_raw_fd(number) };
        let mut file = File::from(owned);
        if number <= libc::STDERR_FILENO {
            let copy = file.try_clone();
            let standard = std::mem::replace(&mut file, copy.map_err(|error| other(error.into()))?);
            // Stays open: the rest of the command writes there as well.
            std::mem::forget(standard);
        }
        // A program that is started has no business with it.
        let set = fcntl(&file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        set.map_err(|error| other(anyhow::Error::new(error)))?;
        Ok(Self(file))
    }

    fn tell(mut self) {
        // Who waited may be gone; the recording goes on.
        let _ = self.0.write_all(READY);
    }
}

fn other(error: anyhow::Error) -> Failure {
    Failure::new(ExitCode::Failure, error.context("--ready-fd"))
}

/// By what the kernel says of it, which needs no access to it.
fn is_writable(number: RawFd) -> io::Result<bool> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    Ok(flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY))
}

/// Passes on what an observer hears, and tells of the begin of sampling once.
pub(super) struct Telling {
    /// Who hears of everything.
    pub(super) inner: Box<dyn Observer>,
    /// Who hears of the begin.
    pub(super) ready: Option<Ready>,
}

impl Observer for Telling {
    fn event(&mut self, event: Event) {
        // Of several processes the first is told of when it is known of all whether they are recorded.
        let of_one = if let Event::Of { event, .. } = &event { event } else { &event };
        if matches!(of_one, Event::Attached { .. })
            && let Some(ready) = self.ready.take()
        {
            ready.tell();
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
