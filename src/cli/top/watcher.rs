//! Watches the recording, and has the table made beside it.
//!
//! # Invariants
//! - The recorder starts a process while this one has a single thread. So the table's thread begins
//!   when the recording is on, and has ended before the next one begins.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::display::Display;
use super::suspension::Suspension;
use super::terminal::wake_by_size;
use crate::cli::source::note;
use crate::record::{Event, Observer, Priority, Progress};

/// Notices that are kept until the end.
const NOTICES_MAX: usize = 50;

/// What the two threads tell each other.
#[derive(Debug, Default)]
pub(super) struct State {
    /// How far the recording is.
    pub(super) progress: Option<Progress>,
    /// The last thing that it had to tell, and when.
    pub(super) notice: Option<(String, Instant)>,
    /// It has ended, or does so now.
    pub(super) is_ending: bool,
    /// Another one follows.
    pub(super) is_renewed: bool,
    /// The table wants no more.
    pub(super) is_over: bool,
}

/// The state, and a way to wake the thread that waits for keys.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    ours: UnixStream,
    theirs: UnixStream,
    /// What asks the process to stop for a while.
    pub(super) suspension: Suspension,
    /// Another recording may follow.
    pub(super) is_renewable: bool,
}

impl Shared {
    fn new(is_renewable: bool) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        for end in [&ours, &theirs] {
            end.set_nonblocking(true)?;
        }
        // What a change of the terminal's size has to do is to be drawn.
        wake_by_size(ours.try_clone()?)?;
        let suspension = Suspension::new(ours.try_clone()?)?;
        Ok(Self { state: Mutex::default(), ours, theirs, suspension, is_renewable })
    }

    /// The state. It is whole after every step, whatever panicked meanwhile.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable when there is something to look at.
    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.theirs.as_fd()
    }

    /// Forgets that there was.
    pub(super) fn awake(&self) {
        let mut bytes = [0; 64];
        while (&self.theirs).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
    }

    fn end(&self) {
        self.state().is_ending = true;
        // Full: it is awake.
        let _ = (&self.ours).write(&[0]);
    }
}

/// Observes one recording after the other.
pub(super) struct Watcher {
    shared: Arc<Shared>,
    usual: Priority,
    /// While no thread has it.
    display: Option<Display>,
    thread: Option<JoinHandle<Display>>,
    /// Bytes with which a trace is large enough.
    limit: Option<u64>,
    /// Whether to tell of notices, and those that wait for the table to leave the terminal.
    quiet: bool,
    is_on_terminal: bool,
    notices: Vec<String>,
}

impl Watcher {
    /// To be made in the thread that records.
    pub(super) fn new(display: Display, limit: Option<u64>, quiet: bool) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(limit.is_some())?);
        let (usual, is_on_terminal) = (Priority::of_this_thread(), display.is_on_terminal());
        let (display, thread, notices) = (Some(display), None, Vec::new());
        Ok(Self { shared, usual, display, thread, limit, quiet, is_on_terminal, notices })
    }

    /// Before a recording: what the table reads.
    pub(super) fn begin(&mut self, prepare: impl FnOnce(&mut Display)) {
        *self.shared.state() = State::default();
        if let Some(display) = &mut self.display {
            prepare(display);
        }
    }

    /// Another recording is wanted: the trace was large enough.
    pub(super) fn is_renewed(&self) -> bool {
        self.shared.state().is_renewed
    }

    /// Between two recordings: stops, if that is asked for, until the process is continued.
    pub(super) fn make_way(&self) -> io::Result<()> {
        let suspension = &self.shared.suspension;
        if suspension.is_asked() { suspension.take() } else { Ok(()) }
    }

    /// What was not told while the table was on the terminal.
    pub(super) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// After a recording, whatever it came to. `None` if the table's thread has panicked.
    pub(super) fn finish(&mut self) -> Option<&mut Display> {
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            self.display = thread.join().ok();
        }
        self.display.as_mut()
    }

    fn start(&mut self, engine: &str) {
        let Some(mut display) = self.display.take() else { return };
        display.name_engine(engine);
        let (shared, usual) = (Arc::clone(&self.shared), self.usual);
        let work = move || {
            usual.assume();
            display.run(&shared);
            display
        };
        match std::thread::Builder::new().name("table".to_owned()).spawn(work) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                note(&format!("the table cannot be shown: {error}"));
                self.shared.state().is_over = true;
            }
        }
    }
}

impl Observer for Watcher {
    fn event(&mut self, event: Event) {
        match event {
            Event::Attached { engine, .. } => self.start(&engine),
            Event::Notice(text) => {
                match (self.quiet, self.is_on_terminal) {
                    (true, _) => return,
                    (false, false) => note(&text),
                    // The table has a line for it; when it is gone they are told once more.
                    (false, true)
                        if self.notices.len() < NOTICES_MAX && !self.notices.contains(&text) =>
                    {
                        self.notices.push(text.clone());
                    }
                    (false, true) => {}
                }
                self.shared.state().notice = Some((text, Instant::now()));
            }
            Event::Detaching => self.shared.end(),
            // Of several processes, and it watches one.
            Event::Of { .. } => {}
        }
    }

    fn tick(&mut self, progress: &Progress) {
        self.shared.state().progress = Some(*progress);
    }

    fn wants_end(&mut self) -> bool {
        let has_panicked = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        let mut state = self.shared.state();
        let bytes = state.progress.map_or(0, |progress| progress.bytes);
        if state.is_over || has_panicked {
            return true;
        }
        // The table may have asked for it, too.
        state.is_renewed |= self.limit.is_some_and(|limit| bytes >= limit);
        state.is_renewed
    }
}
