//! The table: refreshed every interval, and on a terminal with every key.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;

use super::cpu_usage::CpuUsage;
use super::interval_reader::{IntervalReader, now_ns};
use super::saved_minute::save;
use super::suspend::Suspension;
use super::table_control::TableControl;
use super::terminal::Terminal;
use crate::cli::exit::CommandFailure;
use crate::cli::output::unwritable;
use crate::view::Mode;
use crate::view::live::{DisplayState, KeyPress, LiveCounts, LiveStatus, keys, plain, screen};

/// After this time a sample can be read, unless it waits for names.
const LAG: Duration = Duration::from_millis(1200);

/// How long a notice is shown in the place of the keys.
const NOTICED: Duration = Duration::from_secs(10);

/// The number of intervals whose CPU use is shown.
const HISTORY: usize = 20;

/// The text between engine and rate.
const RATE: &str = " at ";

/// Where the table is shown.
#[derive(Debug)]
pub(super) enum TableOutput {
    /// A terminal, taken over when the table starts.
    Terminal {
        /// Set while it is taken over.
        taken: Option<Terminal>,
        /// Use colours.
        has_colors: bool,
    },
    /// A pipe or a file.
    Plain {
        /// The number of tables to print, if it is limited.
        left: Option<u32>,
    },
}

/// The table, over one or several recordings.
#[derive(Debug)]
pub(super) struct Display {
    board: LiveCounts,
    head: LiveStatus,
    state: DisplayState,
    place: TableOutput,
    pids: Vec<i32>,
    /// Rows of a table that is printed.
    top: usize,
    interval: Duration,
    /// The reader of the current recording.
    reader: Option<IntervalReader>,
    /// CPU usage at the start of the interval.
    usage: CpuUsage,
    /// CPU usage at its end, if it has ended.
    mark: Option<CpuUsage>,
    started: Option<Instant>,
    /// The table has the samples up to this time.
    cut_ns: u64,
    /// Samples lost in earlier recordings.
    lost: u64,
    /// The end of the last requested table, which is printed after the recording.
    last_ns: Option<u64>,
    printed: bool,
    failure: Option<CommandFailure>,
}

impl Display {
    /// A table of these processes with nothing to read yet.
    pub(super) fn new(
        pids: Vec<i32>,
        (state, head): (DisplayState, LiveStatus),
        place: TableOutput,
        every: (Duration, usize),
    ) -> Self {
        let modes = match state.has_both_modes {
            true => &Mode::ALL[..],
            false => std::slice::from_ref(&state.mode),
        };
        let (board, usage, (interval, top)) = (LiveCounts::new(modes), CpuUsage::new(&pids), every);
        let (reader, started, failure) = (None, None, None);
        let (mark, cut_ns, lost, last_ns, printed) = (None, 0, 0, None, false);
        Self {
            board,
            head,
            state,
            place,
            pids,
            top,
            interval,
            reader,
            usage,
            mark,
            started,
            cut_ns,
            lost,
            last_ns,
            printed,
            failure,
        }
    }

    /// Whether the table is drawn, not printed.
    pub(super) fn is_on_terminal(&self) -> bool {
        matches!(self.place, TableOutput::Terminal { .. })
    }

    /// The board that collects the samples.
    pub(super) fn board(&self) -> &LiveCounts {
        &self.board
    }

    /// Reads from this reader from now on.
    pub(super) fn follow(&mut self, reader: IntervalReader) {
        self.reader = Some(reader);
    }

    /// Sets the engine name in the head of the table.
    pub(super) fn name_engine(&mut self, engine: &str) {
        let (_, rate) = self.head.engine.rsplit_once(RATE).unwrap_or(("", &self.head.engine));
        self.head.engine = format!("{engine}{RATE}{rate}");
    }

    /// Whether a key asked for the end, or all tables were printed.
    pub(super) fn is_over(&self) -> bool {
        self.state.over
    }

    /// The failure to show the table, if any.
    pub(super) fn take_failure(&mut self) -> Option<CommandFailure> {
        self.failure.take()
    }

    /// Shows the table until the recording or the table ends.
    pub(super) fn run(&mut self, control: &TableControl) {
        self.failure = self.show(control).err();
        if !control.state().is_renewed || self.failure.is_some() {
            // At once, so that the rest happens on the usual screen.
            self.leave();
        }
        if self.failure.is_some() || self.state.over {
            control.state().is_over = true;
        }
    }

    /// Restores the terminal.
    pub(super) fn leave(&mut self) {
        if let TableOutput::Terminal { taken, .. } = &mut self.place {
            *taken = None;
        }
    }

    /// Drops the reader: the process was gone before another recording started.
    pub(super) fn forget(&mut self) {
        self.reader = None;
    }

    /// Reads the last samples after a recording, and shows them unless the user asked for the end.
    pub(super) fn settle(&mut self, is_renewed: bool) -> Result<(), CommandFailure> {
        if !is_renewed {
            self.leave();
        }
        self.lost = self.head.lost;
        if self.state.over && self.last_ns.is_none() {
            return Ok(());
        }
        if is_renewed {
            // These samples count in the columns since the start, but in no interval.
            return self.read(u64::MAX, now_ns()).map(drop);
        }
        self.board.begin();
        self.head.samples = self.read(u64::MAX, self.last_ns.unwrap_or_else(now_ns))?;
        match self.head.samples == 0 && self.printed && self.last_ns.is_none() {
            true => Ok(()),
            false => self.print(),
        }
    }

    fn show(&mut self, control: &TableControl) -> Result<(), CommandFailure> {
        self.started.get_or_insert_with(Instant::now);
        self.cut_ns = now_ns();
        self.enter()?;
        let mut end = Instant::now() + self.interval;
        self.mark = None;
        self.draw()?;
        loop {
            let is_last = matches!(self.place, TableOutput::Plain { left: Some(..=1) });
            let next = if is_last { end } else { end + LAG };
            let due = if self.mark.is_none() { end } else { next };
            self.wait(control, due.saturating_duration_since(Instant::now()))?;
            if control.state().is_ending || self.state.over {
                self.figures(control);
                return Ok(());
            }
            if control.suspension.is_asked() && self.make_way(control)? {
                return Ok(());
            }
            if std::mem::take(&mut self.state.save) {
                self.save(control);
            }
            if let (true, Some(terminal)) = (control.suspension.has_continued(), self.terminal()) {
                terminal.enter_again().map_err(unwritable)?;
            }
            if Instant::now() >= end && self.mark.is_none() && !self.state.paused {
                self.figures(control);
            }
            if Instant::now() >= next && !self.state.paused {
                if is_last {
                    // Read after the end of the recording, when all samples are written.
                    self.state.over = true;
                    self.last_ns = Some(now_ns());
                    return Ok(());
                }
                self.take_table()?;
                // The next interval is longer if this took longer than one.
                end = (end + self.interval).max(Instant::now() - LAG);
            }
            self.draw()?;
        }
    }

    /// Makes the table of an interval.
    fn take_table(&mut self) -> Result<(), CommandFailure> {
        self.usage = self.mark.take().unwrap_or_else(|| CpuUsage::new(&self.pids));
        self.board.begin();
        let until_ns = now_ns().saturating_sub(LAG.as_nanos() as u64);
        self.head.samples = self.read(until_ns, until_ns)?;
        if let TableOutput::Plain { left } = &mut self.place {
            *left = left.map(|left| left.saturating_sub(1));
            self.print()?;
        }
        Ok(())
    }

    /// Takes the terminal over, unless it is taken already.
    fn enter(&mut self) -> Result<(), CommandFailure> {
        if let TableOutput::Terminal { taken: taken @ None, has_colors } = &mut self.place {
            *taken = Some(Terminal::enter(*has_colors).map_err(unwritable)?);
        }
        Ok(())
    }

    /// Handles a request to stop. Returns true if the recording must end first, so that nothing
    /// stays in the target. A kept trace has one recording, so then the process stops here.
    fn make_way(&mut self, control: &TableControl) -> Result<bool, CommandFailure> {
        self.leave();
        if control.is_renewable {
            control.state().is_renewed = true;
            return Ok(true);
        }
        control.suspension.take().map_err(unwritable)?;
        self.enter()?;
        Ok(false)
    }

    /// Waits for a key, a change of size, the end, or the time.
    fn wait(&mut self, control: &TableControl, time: Duration) -> Result<(), CommandFailure> {
        let stdin = io::stdin();
        let sources = [control.wake(), control.suspension.source()];
        let mut sources = sources.map(|source| PollFd::new(source, PollFlags::POLLIN)).to_vec();
        if self.is_on_terminal() {
            sources.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        // A paused table has no next time.
        let time = if self.state.paused { self.interval } else { time };
        // Rounded up, so that the loop does not wake just before the time.
        let time = PollTimeout::try_from(time + Duration::from_millis(1));
        match poll(&mut sources, time.unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(unwritable(error.into())),
        }
        let has_keys = sources.get(2).and_then(PollFd::any).unwrap_or(false);
        control.awake();
        if has_keys { self.take_keys() } else { Ok(()) }
    }

    fn take_keys(&mut self) -> Result<(), CommandFailure> {
        let mut bytes = [0; 256];
        let read = match read(io::stdin(), &mut bytes) {
            // The terminal hung up.
            Ok(0) | Err(Errno::EIO) => {
                self.state.over = true;
                return Ok(());
            }
            Ok(read) => read,
            Err(Errno::EINTR | Errno::EAGAIN) => 0,
            Err(error) => return Err(unwritable(error.into())),
        };
        let page = self.terminal().map_or(1, |terminal| terminal.size().rows());
        for key in keys(bytes.get(..read).unwrap_or_default()) {
            match key {
                KeyPress::Suspend => Suspension::ask(),
                key => self.state.press(key, page),
            }
        }
        Ok(())
    }

    /// Records the figures of an interval that ends now, except for its samples.
    fn figures(&mut self, control: &TableControl) {
        let now = CpuUsage::new(&self.pids);
        (self.head.cpu_percent, self.head.own_percent) = now.percents_since(&self.usage);
        self.mark = Some(now);
        let history = &mut self.head.cpu_history;
        history.extend(self.head.cpu_percent);
        history.drain(..history.len().saturating_sub(HISTORY));
        let state = control.state();
        if let Some(progress) = state.progress {
            self.head.threads = progress.threads;
            self.head.lost = self.lost.saturating_add(progress.lost);
        }
        let notice = state.notice.as_ref().filter(|(_, since)| since.elapsed() < NOTICED);
        self.head.notice = notice.map(|(text, _)| text.clone());
    }

    /// Adds the samples up to a time, and returns their number in the shown mode.
    fn read(&mut self, until_ns: u64, now_ns: u64) -> Result<u64, CommandFailure> {
        let Some(reader) = &mut self.reader else { return Ok(0) };
        let counts = reader.read(until_ns, &mut self.board)?;
        self.head.interval = Duration::from_nanos(now_ns.saturating_sub(self.cut_ns));
        self.head.elapsed = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        self.cut_ns = now_ns;
        let shown = counts.iter().find(|(mode, _)| *mode == self.state.mode);
        Ok(shown.map_or(0, |(_, count)| *count))
    }

    /// Saves the last minute as a trace, and shows where. A failure ends nothing.
    fn save(&mut self, control: &TableControl) {
        let text = match &mut self.reader {
            Some(reader) => reader.whole(|trace| save(trace, self.head.pid, now_ns())),
            None => None,
        };
        let text = match text {
            Some(Ok(text)) => text,
            Some(Err(failure)) => format!("not saved: {:#}", failure.error),
            None => "not saved: there are no samples yet".to_owned(),
        };
        control.state().notice = Some((text.clone(), Instant::now()));
        self.head.notice = Some(text);
    }

    fn terminal(&self) -> Option<&Terminal> {
        match &self.place {
            TableOutput::Terminal { taken, .. } => taken.as_ref(),
            TableOutput::Plain { .. } => None,
        }
    }

    fn draw(&mut self) -> Result<(), CommandFailure> {
        let TableOutput::Terminal { taken: Some(terminal), .. } = &self.place else {
            return Ok(());
        };
        let lines = screen(&self.board, &self.head, &mut self.state, terminal.size());
        terminal.draw(&lines).map_err(unwritable)
    }

    /// Prints a table, with an empty line before all but the first.
    fn print(&mut self) -> Result<(), CommandFailure> {
        let mut text = String::new();
        if self.printed {
            // Writing to a string cannot fail.
            let _ = writeln!(text);
        }
        self.printed = true;
        text.push_str(&plain(&self.board, &self.head, &self.state, self.top));
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(unwritable)
    }
}
