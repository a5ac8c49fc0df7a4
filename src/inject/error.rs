//! The error of an injection, with advice for the user.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use crate::proc;

/// The reason why an injection or a restore failed. The target is unchanged, unless the text says
/// otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InjectError {
    /// The checks refused the target before anything was changed.
    Refused(Refusal),
    /// The target exited, or its pid belongs to another process now.
    Gone,
    /// The target has executed another program.
    Executed,
    /// The target has unmapped the agent.
    Unmapped,
    /// The command exited before it executed a program.
    ExitedBeforeExec {
        /// The exit code, or 128 plus the signal's number.
        code: i32,
    },
    /// The kernel does not permit tracing, and `/proc` does not show why.
    NotPermitted,
    /// No thread of the target could be stopped.
    WouldNotStop {
        /// The last thread that was tried.
        tid: i32,
        /// The thread's state letter.
        state: char,
    },
    /// A thread runs a signal handler that interrupted the agent's code and will return to it.
    StillInUse {
        /// The thread.
        tid: i32,
    },
    /// The target could not attach a segment.
    MapFailed {
        /// The segment's name.
        segment: String,
        /// The errno, 0 if unknown.
        errno: i32,
    },
    /// The agent refused to start.
    EntryFailed {
        /// The error code in the control block.
        error: u32,
        /// The errno of the failed call.
        errno: i32,
    },
    /// The agent's entry did not finish in time. All changes were reverted.
    EntryTimedOut,
    /// The plan contradicts itself or the state of the guardian.
    BadPlan {
        /// The contradiction.
        reason: String,
    },
    /// A system call failed unexpectedly.
    System {
        /// The call.
        call: String,
        /// The errno.
        errno: i32,
    },
    /// The guardian does not answer.
    Guardian {
        /// The failure of the communication.
        reason: String,
    },
    /// The guardian was killed during the attach. Its changes were reverted.
    GuardianKilled,
    /// An operation failed, and the target could not be restored completely afterwards.
    Residue {
        /// The first error.
        cause: Box<InjectError>,
        /// The part of the agent that is left in the target.
        residue: String,
    },
}

impl InjectError {
    pub(super) fn system(call: &str, error: &io::Error) -> InjectError {
        match error.raw_os_error() {
            Some(libc::ESRCH) => InjectError::Gone,
            errno => {
                InjectError::System { call: call.to_owned(), errno: errno.unwrap_or(libc::EIO) }
            }
        }
    }

    /// Returns the error of a file in `/proc` that cannot be read.
    pub(super) fn reading(file: &str, error: &io::Error) -> InjectError {
        match proc::is_gone(error) {
            true => InjectError::Gone,
            false => Self::system(&format!("reading {file}"), error),
        }
    }

    /// Whether the target exited or executed another program, so that there is nothing to restore.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone | Self::Executed | Self::ExitedBeforeExec { .. })
    }
}

impl From<Refusal> for InjectError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoSuchProcess { .. } | Refusal::Exited { .. } => Self::Gone,
            other => Self::Refused(other),
        }
    }
}

/// Whether a thread in this state does not stop because the kernel has blocked it, or is unknown. A
/// request to stop wakes a thread in any other state, so the thread only needs a processor. The
/// state was read after the wait: by then the thread may sleep again, or be in the late stop.
pub(super) fn is_blocked(state: char) -> bool {
    matches!(state, 'D' | '?')
}

fn still_in_use(tid: i32) -> String {
    format!(
        "thread {tid} of the target runs a signal handler of the program that will return to the \
         agent; try again when that handler has returned"
    )
}

/// The text for [`InjectError::Unmapped`].
const UNMAPPED: &str = "the target removed the agent from its memory during the attach; a program \
                        that unmaps what it did not map cannot be sampled (try `traceprof stacks`)";

impl fmt::Display for InjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Gone => write!(f, "the target exited"),
            Self::Executed => {
                write!(f, "the target executed another program during the attach; try again")
            }
            Self::Unmapped => f.write_str(UNMAPPED),
            Self::ExitedBeforeExec { code } => {
                write!(
                    f,
                    "the command exited with code {code} before its program started; run it \
                     without `traceprof record` to see its own message"
                )
            }
            Self::NotPermitted => write!(
                f,
                "the kernel does not permit tracing the target; run as root (CAP_SYS_PTRACE), or \
                 check for a security module that forbids it"
            ),
            Self::WouldNotStop { tid, state } if is_blocked(*state) => write!(
                f,
                "thread {tid} of the target did not stop (state {state}): it is blocked inside the \
                 kernel; try again when it runs"
            ),
            Self::WouldNotStop { tid, .. } => write!(
                f,
                "thread {tid} of the target did not stop: it waits for a processor, because the \
                 machine or its control group is overloaded; try again when the load is lower"
            ),
            Self::StillInUse { tid } => f.write_str(&still_in_use(*tid)),
            Self::MapFailed { segment, errno } => write!(
                f,
                "the target could not attach the {segment} segment: {}; {}",
                describe(*errno),
                map_advice(*errno)
            ),
            Self::EntryFailed { error, errno } => {
                let reason = describe(*errno);
                write!(
                    f,
                    "the agent could not start in the target (error {error}): {reason}; `traceprof \
                     doctor --pid PID` shows the obstacle, and `traceprof stacks` works without \
                     an agent"
                )
            }
            Self::EntryTimedOut => write!(
                f,
                "the agent did not start in time, because the target gets no CPU time; try again \
                 when the target runs"
            ),
            Self::BadPlan { reason } => write!(f, "cannot attach: {reason}"),
            Self::System { call, errno } => write!(
                f,
                "{call} failed during the attach: {}; {}",
                describe(*errno),
                system_advice(*errno)
            ),
            Self::Guardian { reason } => write!(
                f,
                "the guardian process does not answer ({reason}); an agent that is left in the \
                 target is inert: `traceprof detach --pid PID` removes it"
            ),
            Self::GuardianKilled => write!(
                f,
                "the guardian process was killed during the attach; the target was restored: try \
                 again"
            ),
            Self::Residue { cause, residue } => write!(f, "{cause}; left in the target: {residue}"),
        }
    }
}

impl std::error::Error for InjectError {}

fn describe(errno: i32) -> String {
    match errno {
        0 => "unknown reason".to_owned(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    }
}

fn system_advice(errno: i32) -> &'static str {
    match errno {
        libc::EPERM | libc::EACCES | libc::ENOSYS => {
            "`traceprof doctor --pid PID` shows what is permitted"
        }
        _ => proc::shortage_advice(errno)
            .unwrap_or("try again; `traceprof doctor --pid PID` shows what is permitted"),
    }
}

fn map_advice(errno: i32) -> &'static str {
    match errno {
        libc::EACCES | libc::EPERM => {
            "a security module or a seccomp filter forbids executable shared memory in the target"
        }
        libc::ENOMEM => "check the target's address space limit (ulimit -v) and vm.max_map_count",
        libc::EAGAIN => "the target locks its future memory: raise its limit (ulimit -l)",
        libc::EINVAL => "the address range or the segment is no longer available: try again",
        _ => "try again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_way_out() {
        let (target, name) = ("process 9 (app)".to_owned(), "gdb".to_owned());
        let traced = Refusal::AlreadyTraced { target, tracer: 7, name };
        assert_eq!(
            InjectError::from(traced).to_string(),
            "process 9 (app) is already traced by gdb (pid 7); end that program first"
        );
        let full = InjectError::MapFailed { segment: "data".to_owned(), errno: libc::ENOMEM };
        assert!(full.to_string().contains("ulimit -v"));
        assert!(InjectError::from(Refusal::NoSuchProcess { pid: 1 }).is_gone());
        for (state, why) in [('D', "blocked inside the kernel"), ('t', "waits for a processor")] {
            let text = InjectError::WouldNotStop { tid: 7, state }.to_string();
            assert!(text.contains(why) && text.contains("try again"), "{state}: {text}");
        }
    }
}
