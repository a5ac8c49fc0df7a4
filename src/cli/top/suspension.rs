//! Ctrl-Z: the process stops until somebody continues it.
//!
//! # Invariants
//! - SIGTSTP is blocked in all threads, but where [`Suspension::take`] lets it through: it neither stops
//!   the process while the terminal or the target is not as it was, nor is it lost. What it does then is
//!   the kernel's affair, which stops nobody whom nobody could continue.

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

/// What asks the process to stop, and tells it that it goes on.
#[derive(Debug)]
pub(super) struct Suspension {
    signal: SigSet,
    /// Readable while the signal waits. It is never read: the signal would be gone.
    waiting: SignalFd,
    has_continued: Arc<AtomicBool>,
}

impl Suspension {
    /// To be made while the process has one thread, whose mask the others inherit. A byte is written to
    /// the pipe when the process is continued.
    pub(super) fn new(wake: UnixStream) -> io::Result<Self> {
        let mut signal = SigSet::empty();
        signal.add(Signal::SIGTSTP);
        signal.thread_block()?;
        let waiting = SignalFd::with_flags(&signal, SfdFlags::SFD_CLOEXEC)?;
        let has_continued = Arc::default();
        wake_when_continued(Arc::clone(&has_continued), wake)?;
        Ok(Self { signal, waiting, has_continued })
    }

    /// Asks for it as Ctrl-Z does where it is no key: all processes of this one's group, such as the
    /// shell of a script, or whoever lends it its rights.
    pub(super) fn ask() {
        // One that may not be asked goes on.
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
    }

    /// Readable while it is asked for.
    pub(super) fn source(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }

    /// Whether it is asked for now. Who continues a process takes that back.
    pub(super) fn is_asked(&self) -> bool {
        let mut source = [PollFd::new(self.source(), PollFlags::POLLIN)];
        poll(&mut source, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Stops here, if that is asked for still, until the process is continued.
    pub(super) fn take(&self) -> io::Result<()> {
        self.signal.thread_unblock()?;
        Ok(self.signal.thread_block()?)
    }

    /// Whether the process was continued since this was asked last.
    pub(super) fn has_continued(&self) -> bool {
        // Relaxed: what a shell has done to the terminal meanwhile is not in this process's memory.
        self.has_continued.swap(false, Ordering::Relaxed)
    }
}
