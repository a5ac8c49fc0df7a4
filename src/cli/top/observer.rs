//! Observes the recording, and runs the table in a second thread.
//!
//! # Invariants
//! - The recorder forks while this process has a single thread; for several processes, the server
//!   of their guardians. So the table's thread starts after the recording has started, and ends
//!   before the next recording.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use super::display::Display;
use super::table_control::{TableControl, TableState};
use crate::cli::notes::note;
use crate::record::{Event, Observer, Priority, Progress};

/// Notices that are kept until the end.
const NOTICES_MAX: usize = 50;

/// Observes the recordings, one after the other.
pub(super) struct TableObserver {
    control: Arc<TableControl>,
    usual: Priority,
    /// The table, while no thread has it.
    display: Option<Display>,
    thread: Option<JoinHandle<Display>>,
    /// The size at which a new trace starts.
    limit: Option<u64>,
    /// Print no notices.
    quiet: bool,
    is_on_terminal: bool,
    notices: Vec<String>,
}

impl TableObserver {
    /// Call this in the thread that records.
    pub(super) fn new(display: Display, limit: Option<u64>, quiet: bool) -> io::Result<Self> {
        let control = Arc::new(TableControl::new(limit.is_some())?);
        let (usual, is_on_terminal) = (Priority::of_this_thread(), display.is_on_terminal());
        let (display, thread, notices) = (Some(display), None, Vec::new());
        Ok(Self { control, usual, display, thread, limit, quiet, is_on_terminal, notices })
    }

    /// Prepares the table for the next recording.
    pub(super) fn begin(&mut self, prepare: impl FnOnce(&mut Display)) {
        *self.control.state() = TableState::default();
        if let Some(display) = &mut self.display {
            prepare(display);
        }
    }

    /// Whether another recording follows.
    pub(super) fn is_renewed(&self) -> bool {
        self.control.state().is_renewed
    }

    /// Stops between two recordings until the process is continued, if Ctrl-Z asked for it.
    pub(super) fn make_way(&self) -> io::Result<()> {
        let suspension = &self.control.suspension;
        if suspension.is_asked() { suspension.take() } else { Ok(()) }
    }

    /// The notices that came while the table was on the terminal.
    pub(super) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Ends the table's thread after a recording. `None` if it has panicked.
    pub(super) fn finish(&mut self) -> Option<&mut Display> {
        self.control.end();
        if let Some(thread) = self.thread.take() {
            self.display = thread.join().ok();
        }
        self.display.as_mut()
    }

    fn notice(&mut self, text: String) {
        match (self.quiet, self.is_on_terminal) {
            (true, _) => return,
            (false, false) => note(&text),
            // The table shows it now, and it is printed again at the end.
            (false, true) if self.notices.len() < NOTICES_MAX && !self.notices.contains(&text) => {
                self.notices.push(text.clone());
            }
            (false, true) => {}
        }
        self.control.state().notice = Some((text, Instant::now()));
    }

    /// Starts the table when the first process is sampled.
    fn start(&mut self, engine: &str) {
        let Some(mut display) = self.display.take() else { return };
        display.name_engine(engine);
        let (control, usual) = (Arc::clone(&self.control), self.usual);
        let work = move || {
            usual.assume();
            display.run(&control);
            display
        };
        match std::thread::Builder::new().name("table".to_owned()).spawn(work) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                note(&format!("the table cannot be shown, its thread does not start: {error}"));
                self.control.state().is_over = true;
            }
        }
    }
}

impl Observer for TableObserver {
    fn event(&mut self, event: Event) {
        match event {
            Event::Attached { engine, .. } => self.start(&engine),
            Event::Notice(text) => self.notice(text),
            Event::Detaching => self.control.end(),
            Event::Of { process, event, .. } => match *event {
                Event::Attached { engine, .. } => self.start(&engine),
                Event::Notice(text) => self.notice(format!("{process}: {text}")),
                // The others go on.
                Event::Detaching | Event::Of { .. } => {}
            },
        }
    }

    fn tick(&mut self, progress: &Progress) {
        self.control.state().progress = Some(*progress);
    }

    fn wants_end(&mut self) -> bool {
        let has_panicked = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        let mut state = self.control.state();
        let bytes = state.progress.map_or(0, |progress| progress.bytes);
        if state.is_over || has_panicked {
            return true;
        }
        // The table may have asked for a new recording, too.
        state.is_renewed |= self.limit.is_some_and(|limit| bytes >= limit);
        state.is_renewed
    }
}
