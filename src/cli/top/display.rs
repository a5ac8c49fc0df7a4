//! The thread that makes the table: every interval, and on a terminal with every key.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;

use super::pulse::Pulse;
use super::reader::{Reader, now_ns};
use super::suspension::Suspension;
use super::terminal::Terminal;
use super::watcher::Shared;
use crate::cli::exit::Failure;
use crate::cli::output::unwritable;
use crate::view::Mode;
use crate::view::live::{Board, Head, Key, Look, keys, plain, screen};

/// A sample is there to be read after this, but for those that wait for names.
const LAG: Duration = Duration::from_millis(1200);

/// A notice has the place of the keys for so long; at the end all are told once more.
const NOTICED: Duration = Duration::from_secs(10);

/// Between what samples and how often.
const RATE: &str = " at ";

/// Where the table goes.
#[derive(Debug)]
pub(super) enum Place {
    /// A terminal, taken over when there is something to show.
    Terminal {
        /// While it is taken over.
        taken: Option<Terminal>,
        /// It may have colours.
        has_colors: bool,
    },
    /// A pipe or a file.
    Plain {
        /// Tables that are still to come, if that is limited.
        left: Option<u32>,
    },
}

/// The table, over one recording or several.
#[derive(Debug)]
pub(super) struct Display {
    board: Board,
    head: Head,
    look: Look,
    place: Place,
    /// Rows of a table that is printed.
    top: usize,
    interval: Duration,
    /// What is read of the recording that goes on.
    reader: Option<Reader>,
    /// When the interval began,
    pulse: Pulse,
    /// and when it ended, if it has.
    mark: Option<Pulse>,
    started: Option<Instant>,
    /// Samples up to this time are in the table.
    cut_ns: u64,
    /// Lost in recordings before.
    lost: u64,
    /// When the last of the tables that were asked for ended, which is printed after the recording.
    last_ns: Option<u64>,
    printed: bool,
    failure: Option<Failure>,
}

impl Display {
    /// Of a process, with nothing to read yet.
    pub(super) fn new(look: Look, head: Head, place: Place, every: (Duration, usize)) -> Self {
        let modes = match look.has_both_modes {
            true => &Mode::ALL[..],
            false => std::slice::from_ref(&look.mode),
        };
        let (board, pulse, (interval, top)) = (Board::new(modes), Pulse::new(head.pid), every);
        let (reader, started, failure) = (None, None, None);
        let (mark, cut_ns, lost, last_ns, printed) = (None, 0, 0, None, false);
        Self {
            board,
            head,
            look,
            place,
            top,
            interval,
            reader,
            pulse,
            mark,
            started,
            cut_ns,
            lost,
            last_ns,
            printed,
            failure,
        }
    }

    /// The table is drawn, not printed.
    pub(super) fn is_on_terminal(&self) -> bool {
        matches!(self.place, Place::Terminal { .. })
    }

    /// What counts as seen of the next recording.
    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    /// Reads this from now on.
    pub(super) fn follow(&mut self, reader: Reader) {
        self.reader = Some(reader);
    }

    /// What samples, for the head.
    pub(super) fn name_engine(&mut self, engine: &str) {
        let (_, rate) = self.head.engine.rsplit_once(RATE).unwrap_or(("", &self.head.engine));
        self.head.engine = format!("{engine}{RATE}{rate}");
    }

    /// The end was asked for by a key, or all tables were printed.
    pub(super) fn is_over(&self) -> bool {
        self.look.over
    }

    /// Why the table could not be shown.
    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// Shows the table until the recording ends, or until it is not wanted any more.
    pub(super) fn run(&mut self, shared: &Shared) {
        self.failure = self.show(shared).err();
        if !shared.state().is_renewed || self.failure.is_some() {
            // At once: what is still to be done is done on the usual screen.
            self.leave();
        }
        if self.failure.is_some() || self.look.over {
            shared.state().is_over = true;
        }
    }

    /// Gives the terminal back.
    pub(super) fn leave(&mut self) {
        if let Place::Terminal { taken, .. } = &mut self.place {
            *taken = None;
        }
    }

    /// Reads no more: the process was gone before another recording of it had begun.
    pub(super) fn forget(&mut self) {
        self.reader = None;
    }

    /// After the recording: what came last. If nobody asked for the end, it is shown.
    pub(super) fn settle(&mut self, is_renewed: bool) -> Result<(), Failure> {
        if !is_renewed {
            self.leave();
        }
        self.lost = self.head.lost;
        if self.look.over && self.last_ns.is_none() {
            return Ok(());
        }
        if is_renewed {
            // What comes last is in no interval, but in all since the start.
            return self.read(u64::MAX, now_ns()).map(drop);
        }
        self.board.begin();
        self.head.samples = self.read(u64::MAX, self.last_ns.unwrap_or_else(now_ns))?;
        match self.head.samples == 0 && self.printed && self.last_ns.is_none() {
            true => Ok(()),
            false => self.print(),
        }
    }

    fn show(&mut self, shared: &Shared) -> Result<(), Failure> {
        self.started.get_or_insert_with(Instant::now);
        self.cut_ns = now_ns();
        self.enter()?;
        let mut end = Instant::now() + self.interval;
        self.mark = None;
        self.draw()?;
        loop {
            let is_last = matches!(self.place, Place::Plain { left: Some(..=1) });
            let next = if is_last { end } else { end + LAG };
            let due = if self.mark.is_none() { end } else { next };
            self.wait(shared, due.saturating_duration_since(Instant::now()))?;
            if shared.state().is_ending || self.look.over {
                self.figures(shared);
                return Ok(());
            }
            if shared.suspension.is_asked() && self.make_way(shared)? {
                return Ok(());
            }
            if let (true, Some(terminal)) = (shared.suspension.has_continued(), self.terminal()) {
                terminal.enter_again().map_err(unwritable)?;
            }
            if Instant::now() >= end && self.mark.is_none() && !self.look.paused {
                self.figures(shared);
            }
            if Instant::now() >= next && !self.look.paused {
                if is_last {
                    // It is read when the recording has ended: then all of its samples are there.
                    self.look.over = true;
                    self.last_ns = Some(now_ns());
                    return Ok(());
                }
                self.take_table()?;
                // If that took longer than an interval, the next one is longer.
                end = (end + self.interval).max(Instant::now() - LAG);
            }
            self.draw()?;
        }
    }

    /// The table of an interval whose samples are there.
    fn take_table(&mut self) -> Result<(), Failure> {
        self.pulse = self.mark.take().unwrap_or_else(|| Pulse::new(self.head.pid));
        self.board.begin();
        let until_ns = now_ns().saturating_sub(LAG.as_nanos() as u64);
        self.head.samples = self.read(until_ns, until_ns)?;
        if let Place::Plain { left } = &mut self.place {
            *left = left.map(|left| left.saturating_sub(1));
            self.print()?;
        }
        Ok(())
    }

    /// Takes the terminal over, if there is one and somebody else has it.
    fn enter(&mut self) -> Result<(), Failure> {
        if let Place::Terminal { taken: taken @ None, has_colors } = &mut self.place {
            *taken = Some(Terminal::enter(*has_colors).map_err(unwritable)?);
        }
        Ok(())
    }

    /// The process is asked to stop. If another recording may follow, this one is to end before, so that
    /// nothing is in the target meanwhile: true. A trace that is kept is one recording: it stops here.
    fn make_way(&mut self, shared: &Shared) -> Result<bool, Failure> {
        self.leave();
        if shared.is_renewable {
            shared.state().is_renewed = true;
            return Ok(true);
        }
        shared.suspension.take().map_err(unwritable)?;
        self.enter()?;
        Ok(false)
    }

    /// Waits for a key, a change of size, the end, or until the time has passed.
    fn wait(&mut self, shared: &Shared, time: Duration) -> Result<(), Failure> {
        let stdin = io::stdin();
        let sources = [shared.wake(), shared.suspension.source()];
        let mut sources = sources.map(|source| PollFd::new(source, PollFlags::POLLIN)).to_vec();
        if self.is_on_terminal() {
            sources.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        // While it is paused there is no time to wait for.
        let time = if self.look.paused { self.interval } else { time };
        // Rounded up, so that no turn of the loop comes just before the time.
        let time = PollTimeout::try_from(time + Duration::from_millis(1));
        match poll(&mut sources, time.unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(unwritable(error.into())),
        }
        let has_keys = sources.get(2).and_then(PollFd::any).unwrap_or(false);
        shared.awake();
        if has_keys { self.take_keys() } else { Ok(()) }
    }

    fn take_keys(&mut self) -> Result<(), Failure> {
        let mut bytes = [0; 256];
        let read = match read(io::stdin(), &mut bytes) {
            // The terminal is gone.
            Ok(0) | Err(Errno::EIO) => {
                self.look.over = true;
                return Ok(());
            }
            Ok(read) => read,
            Err(Errno::EINTR | Errno::EAGAIN) => 0,
            Err(error) => return Err(unwritable(error.into())),
        };
        let page = self.terminal().map_or(1, |terminal| terminal.size().rows());
        for key in keys(bytes.get(..read).unwrap_or_default()) {
            match key {
                Key::Suspend => Suspension::ask(),
                key => self.look.press(key, page),
            }
        }
        Ok(())
    }

    /// Takes down what an interval came to that ends now, but for its samples.
    fn figures(&mut self, shared: &Shared) {
        let now = Pulse::new(self.head.pid);
        (self.head.cpu_percent, self.head.own_percent) = now.percents_since(&self.pulse);
        self.mark = Some(now);
        let state = shared.state();
        if let Some(progress) = state.progress {
            self.head.threads = progress.threads;
            self.head.lost = self.lost.saturating_add(progress.lost);
        }
        let notice = state.notice.as_ref().filter(|(_, told)| told.elapsed() < NOTICED);
        self.head.notice = notice.map(|(text, _)| text.clone());
    }

    /// Adds the samples up to a time; how many of them are of the mode that is shown.
    fn read(&mut self, until_ns: u64, now_ns: u64) -> Result<u64, Failure> {
        let Some(reader) = &mut self.reader else { return Ok(0) };
        let counts = reader.read(until_ns, &mut self.board)?;
        self.head.interval = Duration::from_nanos(now_ns.saturating_sub(self.cut_ns));
        self.head.elapsed = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        self.cut_ns = now_ns;
        let shown = counts.iter().find(|(mode, _)| *mode == self.look.mode);
        Ok(shown.map_or(0, |(_, count)| *count))
    }

    fn terminal(&self) -> Option<&Terminal> {
        match &self.place {
            Place::Terminal { taken, .. } => taken.as_ref(),
            Place::Plain { .. } => None,
        }
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let Place::Terminal { taken: Some(terminal), .. } = &self.place else { return Ok(()) };
        let lines = screen(&self.board, &self.head, &mut self.look, terminal.size());
        terminal.draw(&lines).map_err(unwritable)
    }

    /// Writes a table that stays, an empty line before all but the first.
    fn print(&mut self) -> Result<(), Failure> {
        let mut text = String::new();
        if self.printed {
            // A string takes whatever is written.
            let _ = writeln!(text);
        }
        self.printed = true;
        text.push_str(&plain(&self.board, &self.head, &self.look, self.top));
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(unwritable)
    }
}
