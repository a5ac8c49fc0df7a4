//! Ctrl-Z: the process stops until somebody continues it.
//!
//! # Invariants
//! - SIGTSTP is blocked in all threads except inside [`Suspension::take`]. It stops the process
//!   only when terminal and target are restored, and it is not lost. The kernel does not stop a
//!   process that nobody could continue.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::terminal::wake_when_continued;

/// The request to stop, and the notice that the process was continued.
#[derive(Debug)]
pub(super) struct Suspension {
    signal: SigSet,
    /// Readable while the signal is pending. Reading would consume the signal.
    waiting: SignalFd,
    has_continued: Arc<AtomicBool>,
}

impl Suspension {
    /// Call this while the process has one thread, whose mask the others inherit. A byte is written
    /// to the pipe when the process is continued.
    pub(super) fn new(wake: UnixStream) -> io::Result<Self> {
        let mut signal = SigSet::empty();
        signal.add(Signal::SIGTSTP);
        signal.thread_block()?;
        let waiting = SignalFd::with_flags(&signal, SfdFlags::SFD_CLOEXEC)?;
        let has_continued = Arc::default();
        wake_when_continued(Arc::clone(&has_continued), wake)?;
        Ok(Self { signal, waiting, has_continued })
    }

    /// Asks the whole process group to stop, as Ctrl-Z does in the usual terminal mode.
    pub(super) fn ask() {
        // A process that may not be signalled runs on.
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
    }

    /// Readable while a request is pending.
    pub(super) fn source(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }

    /// Whether a request is pending. SIGCONT takes it back.
    pub(super) fn is_asked(&self) -> bool {
        let mut source = [PollFd::new(self.source(), PollFlags::POLLIN)];
        poll(&mut source, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Stops here until the process is continued, if a request is still pending.
    pub(super) fn take(&self) -> io::Result<()> {
        self.signal.thread_unblock()?;
        Ok(self.signal.thread_block()?)
    }

    /// Whether the process was continued since the last call.
    pub(super) fn has_continued(&self) -> bool {
        // Relaxed: the flag guards no memory of this process.
        self.has_continued.swap(false, Ordering::Relaxed)
    }
}
