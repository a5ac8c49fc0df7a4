//! What is recorded while somebody dies.

use traceprof::fault::Point;

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

/// A program, and what is done to it.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) work: Work,
    /// Program and argument.
    pub(super) program: (&'static str, &'static str),
    pub(super) options: &'static [&'static str],
    /// A fault that comes before the one that is tried.
    pub(super) first: &'static str,
    /// How the program ends by itself.
    pub(super) code: i32,
    /// Where nothing can be left on the program's stack, or it has nothing to return through.
    naked: &'static [Point],
}

const PLAIN: Scenario = Scenario {
    name: "spin",
    work: Work::Record,
    program: ("prey", "spin"),
    options: &["--engine", "perf"],
    first: "",
    code: OWN_EXIT_CODE,
    naked: &[],
};
const TIMER: &[&str] = &["--engine", "timer"];
/// Much less than a recorder with fault points takes, which is known at the third look, after two
/// seconds.
const TIGHT: &[&str] = &["--engine", "perf", "--max-overhead", "2%", "--duration", "4s"];
/// From a call with nothing behind it to the moment in which the thread is on a chain or back.
const NAKED: &[Point] = &[
    Point::BareSet,
    Point::BareEntry,
    Point::BareExit,
    Point::MapBare,
    Point::LaunchWritten,
    Point::StepWritten,
    Point::RestoreUnmappedBare,
    Point::BackMasked,
];

/// The first that passes a point is the one that it is tried with.
pub(super) static SCENARIOS: [Scenario; 15] = [
    PLAIN,
    Scenario { name: "crowd", program: ("prey", "crowd"), options: TIMER, ..PLAIN },
    Scenario { name: "nap", program: ("prey", "nap"), ..PLAIN },
    Scenario { name: "pause", program: ("prey", "pause"), options: TIMER, ..PLAIN },
    Scenario { name: "epoll", program: ("prey", "epoll"), ..PLAIN },
    Scenario { name: "crowd, perf", program: ("prey", "crowd"), ..PLAIN },
    Scenario { name: "ticks", program: ("prey", "ticks"), options: TIMER, ..PLAIN },
    Scenario { name: "poor", program: ("prey", "poor"), options: TIMER, ..PLAIN },
    Scenario { name: "fiber", program: ("prey", "fiber"), naked: NAKED, ..PLAIN },
    Scenario { name: "bare", program: ("bare", ""), code: 7, naked: NAKED, ..PLAIN },
    Scenario { name: "slower", options: TIGHT, ..PLAIN },
    Scenario { name: "recall", first: "LaunchSet=stop", ..PLAIN },
    Scenario { name: "orphan", first: "RecordLooped=recorder", options: TIMER, ..PLAIN },
    Scenario { name: "detach", work: Work::Detach, options: &[], ..PLAIN },
    Scenario { name: "command", work: Work::Command, program: ("prey", "brief"), ..PLAIN },
];

impl Scenario {
    /// Nothing has happened before.
    pub(super) fn is_plain(&self) -> bool {
        self.first.is_empty() && self.work == Work::Record && self.naked.is_empty()
    }

    /// This deed makes sense here.
    pub(super) fn bears(&self, deed: Deed) -> bool {
        match deed {
            // It has no handlers for the signals that ask for it.
            Deed::Exec | Deed::Exit => {
                self.program.0 == "prey" && self.work != Work::Command && !self.is_stopped()
            }
            _ => true,
        }
    }

    /// A thread of it makes a call with nothing behind it.
    pub(super) fn may_be_naked(&self) -> bool {
        !self.naked.is_empty()
    }

    /// A guardian that dies here takes the target with it.
    pub(super) fn is_naked(&self, point: Point) -> bool {
        self.naked.contains(&point)
    }

    /// It may see one EINTR if its guardian dies: the call that it sleeps in was restarted by the
    /// kernel before, and which it is nobody can tell any more.
    pub(super) fn sees_restart(&self) -> bool {
        self.program.1 == "nap"
    }

    /// A thread of it sleeps in a call that a mere stop ends with EINTR, until that is put right.
    pub(super) fn sees_stop(&self) -> bool {
        ["epoll", "crowd"].contains(&self.program.1)
    }

    /// Job control has the program stopped in the end.
    pub(super) fn is_stopped(&self) -> bool {
        self.first.ends_with("stop")
    }
}
