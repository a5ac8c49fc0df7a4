//! The state that the recorder's thread and the table's thread of `top` share.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::suspend::Suspension;
use super::terminal::wake_by_size;
use crate::record::Progress;

/// The state that both threads share.
#[derive(Debug, Default)]
pub(super) struct TableState {
    /// The progress of the recording.
    pub(super) progress: Option<Progress>,
    /// Its last notice, and when it came.
    pub(super) notice: Option<(String, Instant)>,
    /// The recording has ended or is ending.
    pub(super) is_ending: bool,
    /// Another recording follows.
    pub(super) is_renewed: bool,
    /// The table is over.
    pub(super) is_over: bool,
}

/// The state, and a way to wake the thread that waits for keys.
#[derive(Debug)]
pub(super) struct TableControl {
    state: Mutex<TableState>,
    ours: UnixStream,
    theirs: UnixStream,
    /// Handles Ctrl-Z.
    pub(super) suspension: Suspension,
    /// Another recording may follow.
    pub(super) is_renewable: bool,
}

impl TableControl {
    pub(super) fn new(is_renewable: bool) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        for end in [&ours, &theirs] {
            end.set_nonblocking(true)?;
        }
        // A change of the terminal's size redraws the table.
        wake_by_size(ours.try_clone()?)?;
        let suspension = Suspension::new(ours.try_clone()?)?;
        Ok(Self { state: Mutex::default(), ours, theirs, suspension, is_renewable })
    }

    /// The state, which is consistent even after a panic.
    pub(super) fn state(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable after a wake-up.
    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.theirs.as_fd()
    }

    /// Clears the wake-ups.
    pub(super) fn awake(&self) {
        let mut bytes = [0; 64];
        while (&self.theirs).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
    }

    pub(super) fn end(&self) {
        self.state().is_ending = true;
        // A full pipe has woken it already.
        let _ = (&self.ours).write(&[0]);
    }
}
