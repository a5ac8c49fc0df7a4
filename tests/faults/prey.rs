//! The scenarios: what is recorded while a process dies.

use traceprof::fault::FaultPoint;

use super::strike::Deed;
use crate::common::OWN_EXIT_CODE;

/// What the command under test does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// `record --pid`.
    Record,
    /// `detach --pid`, after a recorder and its guardian were killed.
    Detach,
    /// `record -- COMMAND`.
    Command,
}

/// A target program and the command that is run on it.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) work: Work,
    /// Program and argument.
    pub(super) program: (&'static str, &'static str),
    pub(super) options: &'static [&'static str],
    /// A fault that comes before the fault under test.
    pub(super) first: &'static str,
    /// Exit code of the program when it exits by itself.
    pub(super) code: i32,
    /// Points at which nothing can be kept on the program's stack, or at which the program has
    /// nothing to return through.
    bare_points: &'static [FaultPoint],
}

const PLAIN: Scenario = Scenario {
    name: "spin",
    work: Work::Record,
    program: ("prey", "spin"),
    options: &["--engine", "perf"],
    first: "",
    code: OWN_EXIT_CODE,
    bare_points: &[],
};
const TIMER: &[&str] = &["--engine", "timer"];
/// Much less than a recorder with fault points takes. The recorder knows that at its third
/// measurement, after two seconds.
const TIGHT: &[&str] = &["--engine", "perf", "--max-overhead", "2%", "--duration", "4s"];
/// From a call with nothing to return to until the thread is on a chain or has returned.
const BARE_POINTS: &[FaultPoint] = &[
    FaultPoint::BareSet,
    FaultPoint::BareEntry,
    FaultPoint::BareExit,
    FaultPoint::MapBare,
    FaultPoint::LaunchWritten,
    FaultPoint::StepWritten,
    FaultPoint::RestoreUnmappedBare,
    FaultPoint::BackMasked,
];

/// A point is tried in the first scenario that passes it.
pub(super) static SCENARIOS: [Scenario; 15] = [
    PLAIN,
    Scenario { name: "crowd", program: ("prey", "crowd"), options: TIMER, ..PLAIN },
    Scenario { name: "nap", program: ("prey", "nap"), ..PLAIN },
    Scenario { name: "pause", program: ("prey", "pause"), options: TIMER, ..PLAIN },
    Scenario { name: "epoll", program: ("prey", "epoll"), ..PLAIN },
    Scenario { name: "crowd, perf", program: ("prey", "crowd"), ..PLAIN },
    Scenario { name: "ticks", program: ("prey", "ticks"), options: TIMER, ..PLAIN },
    Scenario { name: "poor", program: ("prey", "poor"), options: TIMER, ..PLAIN },
    Scenario { name: "fiber", program: ("prey", "fiber"), bare_points: BARE_POINTS, ..PLAIN },
    Scenario { name: "bare", program: ("bare", ""), code: 7, bare_points: BARE_POINTS, ..PLAIN },
    Scenario { name: "slower", options: TIGHT, ..PLAIN },
    Scenario { name: "recall", first: "LaunchSet=stop", ..PLAIN },
    Scenario { name: "orphan", first: "RecordLooped=recorder", options: TIMER, ..PLAIN },
    Scenario { name: "detach", work: Work::Detach, options: &[], ..PLAIN },
    Scenario { name: "command", work: Work::Command, program: ("prey", "brief"), ..PLAIN },
];

impl Scenario {
    /// Whether nothing happens before the fault under test.
    pub(super) fn is_plain(&self) -> bool {
        self.first.is_empty() && self.work == Work::Record && self.bare_points.is_empty()
    }

    /// Whether this deed makes sense in the scenario.
    pub(super) fn allows(&self, deed: Deed) -> bool {
        match deed {
            // The program has no handlers for the signals that ask for it.
            Deed::Exec | Deed::Exit => {
                self.program.0 == "prey" && self.work != Work::Command && !self.is_stopped()
            }
            _ => true,
        }
    }

    /// Whether a thread of the target makes a call with nothing to return to.
    pub(super) fn makes_bare_calls(&self) -> bool {
        !self.bare_points.is_empty()
    }

    /// Whether a guardian that dies here takes the target with it.
    pub(super) fn is_bare(&self, point: FaultPoint) -> bool {
        self.bare_points.contains(&point)
    }

    /// Whether the target may see one EINTR if its guardian dies. The kernel had restarted the call
    /// in which it sleeps, and nobody can tell any more which call that was.
    pub(super) fn sees_restart(&self) -> bool {
        self.program.1 == "nap"
    }

    /// Whether a thread of the target sleeps in a call that a mere stop ends with EINTR, until the
    /// guardian repairs it.
    pub(super) fn sees_stop(&self) -> bool {
        ["epoll", "crowd"].contains(&self.program.1)
    }

    /// Whether job control stops the program at the end.
    pub(super) fn is_stopped(&self) -> bool {
        self.first.ends_with("stop")
    }
}
