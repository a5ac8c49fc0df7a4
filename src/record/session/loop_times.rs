//! The schedule of a session's loop.

use std::time::{Duration, Instant};

use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::periodic::Periodic;

/// The longest sleep of the loop while something must be noticed soon.
const NAP: Duration = Duration::from_millis(10);
/// The longest sleep of the loop otherwise, and while the target uses no CPU time. On a virtual
/// machine, waking up costs as much as the work of a turn.
const PATIENT_NAP: Duration = Duration::from_millis(50);
const QUIET_NAP: Duration = Duration::from_millis(100);
/// How long after the last start of a thread the next one is expected.
const BIRTHS: Duration = Duration::from_secs(10);
/// The longest sleep during [`STARTING`]. A new program maps its libraries in its first
/// milliseconds, and samples in them find no unwind table until the recorder reads these mappings.
const START_NAP: Duration = Duration::from_millis(1);
/// How long the short sleeps last after the start.
const STARTING: Duration = Duration::from_millis(50);
/// The interval between two rotations, unless a table fills up earlier.
const ROTATION: Duration = Duration::from_millis(100);
/// The largest number of early rotations in a burst.
const EARLY_MAX: u32 = 50;
/// The interval after which one more early rotation is permitted.
const EARLY_EVERY: Duration = Duration::from_millis(200);
/// The interval between two checks that the agent's handler is still installed, if the signal would
/// end the program otherwise.
const SIGNAL_CHECK: Duration = Duration::from_millis(10);
/// The same if only samples would be lost.
const HARMLESS_CHECK: Duration = Duration::from_millis(100);
/// The interval between two reports of the progress.
const TICK: Duration = Duration::from_millis(200);

/// The times of one session.
pub(super) struct LoopTimes {
    /// The start of sampling.
    pub(super) started: Instant,
    /// The start of sampling in CLOCK_MONOTONIC nanoseconds.
    pub(super) started_ns: u64,
    /// The requested duration of the recording.
    pub(super) duration: Option<Duration>,
    pub(super) rotation: Periodic,
    /// The number of early rotations that are left, and when one was last added.
    early: (u32, Instant),
    signals: Periodic,
    pub(super) tick: Periodic,
    /// The number of threads that ever existed, and when it last changed.
    births: (usize, Instant),
    /// The target's CPU time at the last turn in nanoseconds.
    cpu_ns: u64,
    /// Whether the target used CPU time in the last turn, since the last check of its signals, and
    /// since the last rotation.
    is_busy: bool,
    is_unchecked: bool,
    is_unrotated: bool,
}

impl LoopTimes {
    /// Starts the schedule. `is_harmless`: the sampling signal cannot end the program.
    pub(super) fn start(duration: Option<Duration>, is_harmless: bool) -> Self {
        let signal_check = if is_harmless { HARMLESS_CHECK } else { SIGNAL_CHECK };
        Self {
            started: Instant::now(),
            started_ns: monotonic_now_ns(),
            duration,
            rotation: Periodic::new(ROTATION),
            early: (EARLY_MAX, Instant::now()),
            signals: Periodic::new(signal_check),
            tick: Periodic::new(TICK),
            births: (0, Instant::now()),
            cpu_ns: 0,
            is_busy: true,
            is_unchecked: true,
            is_unrotated: true,
        }
    }

    /// Makes the next rotation early, unless there were too many early ones.
    pub(super) fn hasten_rotation(&mut self) {
        let (left, since) = &mut self.early;
        while *left < EARLY_MAX && since.elapsed() >= EARLY_EVERY {
            (*left, *since) = (*left + 1, *since + EARLY_EVERY);
        }
        if *left == EARLY_MAX {
            *since = Instant::now();
        }
        if let Some(rest) = left.checked_sub(1) {
            *left = rest;
            self.rotation.hasten();
        }
    }

    /// Notes the number of threads that ever existed, and the target's CPU time in nanoseconds, if
    /// it was read in this turn.
    pub(super) fn note_turn(&mut self, threads: usize, cpu_ns: Option<u64>) {
        if self.births.0 != threads {
            self.births = (threads, Instant::now());
        }
        self.is_busy = cpu_ns.is_none_or(|cpu_ns| cpu_ns != self.cpu_ns);
        self.cpu_ns = cpu_ns.unwrap_or(self.cpu_ns);
        self.is_unchecked |= self.is_busy;
        self.is_unrotated |= self.is_busy;
    }

    /// Returns whether the target used no CPU time in the last turn.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_busy
    }

    /// Returns whether a check of the signals is due. Where no thread ran, none has changed its
    /// action.
    pub(super) fn is_check_due(&mut self) -> bool {
        self.is_unchecked && self.signals.is_due() && std::mem::take(&mut self.is_unchecked)
    }

    /// Returns whether a rotation is due. Where no thread ran, there is no sample, unless sleeping
    /// threads have some. `is_flush`: what was written so far must be visible to others.
    pub(super) fn is_rotation_due(&mut self, has_sleepers: bool, is_flush: bool) -> bool {
        let is_wanted = self.is_unrotated || has_sleepers || is_flush;
        let is_due = is_wanted && self.rotation.is_due();
        self.is_unrotated &= !is_due;
        is_due
    }

    /// Returns whether threads start now and then.
    pub(super) fn has_births(&self) -> bool {
        self.births.1.elapsed() < BIRTHS
    }

    /// Returns how long the loop may sleep, at most until something is due. `is_patient`: nothing
    /// else must be noticed soon.
    pub(super) fn nap(&self, is_patient: bool, due: impl IntoIterator<Item = Instant>) -> Duration {
        if self.started.elapsed() < STARTING {
            return START_NAP;
        }
        if !is_patient {
            return NAP;
        }
        let now = Instant::now();
        let until = due.into_iter().map(|due| due.saturating_duration_since(now)).min();
        let most = if self.is_quiet() { QUIET_NAP } else { PATIENT_NAP };
        until.map_or(most, |until| until.clamp(NAP, most))
    }
}
