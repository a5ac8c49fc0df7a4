//! Reads the samples of each interval from a trace that grows.

use std::path::{Path, PathBuf};

use nix::time::{ClockId, clock_gettime};

use super::temporary_trace::TemporaryTrace;
use crate::cli::exit::CommandFailure;
use crate::trace::{LazyTrace, TraceError};
use crate::view::live::{LiveCounts, UnreadSamples};
use crate::view::{self, Mode, SampleFilter, Selected};

/// A trace that is being written.
#[derive(Debug)]
pub(super) struct IntervalReader {
    path: PathBuf,
    trace: Option<LazyTrace>,
    /// Removed as soon as the trace can be read without its name.
    temporary: Option<TemporaryTrace>,
    /// Whether stacks have the native frames of interpreters.
    native_frames: bool,
    paces: Vec<(Mode, UnreadSamples)>,
}

impl IntervalReader {
    /// Reads the trace at `path`, which may not exist yet.
    pub(super) fn new(
        path: &Path,
        temporary: Option<TemporaryTrace>,
        (board, native_frames): (&LiveCounts, bool),
    ) -> Self {
        let paces = board.modes().map(|mode| (mode, UnreadSamples::default())).collect();
        Self { path: path.to_owned(), trace: None, temporary, native_frames, paces }
    }

    /// Adds the new samples up to a time on the monotonic clock, and returns their number by mode.
    pub(super) fn read(
        &mut self,
        until_ns: u64,
        board: &mut LiveCounts,
    ) -> Result<Vec<(Mode, u64)>, CommandFailure> {
        let mut counts: Vec<(Mode, u64)> = self.paces.iter().map(|(mode, _)| (*mode, 0)).collect();
        if !self.open().map_err(CommandFailure::of_trace)? {
            return Ok(counts);
        }
        let Some(trace) = &self.trace else { return Ok(counts) };
        for ((mode, pace), (_, count)) in self.paces.iter_mut().zip(&mut counts) {
            let windows = pace.windows(trace, until_ns);
            if windows.is_empty() {
                continue;
            }
            let filter = SampleFilter { mode: *mode, ..SampleFilter::default() };
            let selected = Selected { windows, filter, by: None, text: None };
            let profile = view::load(trace, &selected).map_err(CommandFailure::of_view)?;
            *count = profile.count().samples;
            board.add(&profile);
        }
        Ok(counts)
    }

    /// Calls `f` with the trace up to now, and with all its frames. `None` if there is none yet.
    pub(super) fn whole<T>(
        &mut self,
        f: impl FnOnce(&LazyTrace) -> Result<T, CommandFailure>,
    ) -> Option<Result<T, CommandFailure>> {
        match self.open().map_err(CommandFailure::of_trace) {
            Ok(true) => Some(self.trace.as_mut()?.with_all_frames(f)),
            Ok(false) => None,
            Err(failure) => Some(Err(failure)),
        }
    }

    /// Opens the trace, or reads what was added; false if there is none yet.
    fn open(&mut self) -> Result<bool, TraceError> {
        if let Some(trace) = &mut self.trace {
            trace.refresh()?;
            return Ok(true);
        }
        match LazyTrace::open(&self.path) {
            // The trace has content: reading goes on through the open files.
            Ok(mut trace) if !trace.metadata().is_empty() => {
                if !self.native_frames {
                    trace.leave_out_interpreters();
                }
                self.trace = Some(trace);
                if let Some(temporary) = &mut self.temporary {
                    temporary.remove();
                }
                Ok(true)
            }
            Ok(_) | Err(TraceError::NotATrace { .. } | TraceError::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The clock of samples, in nanoseconds.
pub(super) fn now_ns() -> u64 {
    // The monotonic clock always exists.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(std::time::Duration::from);
    now.map_or(0, |now| now.as_nanos() as u64)
}
