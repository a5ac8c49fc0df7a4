//! Why an injection failed, and what the user can do about it.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use super::refusal::Refusal;

/// Why an injection or a restore failed. The target is as it was before, unless the text says
/// otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InjectError {
    /// Refused before anything was touched.
    Refused(Refusal),
    /// The target ended, or its pid belongs to another process by now.
    Gone,
    /// The target executes another program by now.
    Executed,
    /// The command ended before it executed a program.
    ExitedBeforeExec {
        /// Exit code, or 128 and the signal's number.
        code: i32,
    },
    /// The kernel does not permit the trace, and `/proc` did not show why.
    NotPermitted,
    /// No thread of the target could be stopped.
    WouldNotStop {
        /// The last thread that was tried.
        tid: i32,
        /// Its state letter.
        state: char,
    },
    /// The target could not attach a segment.
    MapFailed {
        /// The name of the segment.
        segment: String,
        /// The reason, 0 if unknown.
        errno: i32,
    },
    /// The agent refused to start.
    EntryFailed {
        /// The control block's error.
        error: u32,
        /// The errno that goes with it.
        errno: i32,
    },
    /// The agent's entry did not finish in time; all changes were taken back.
    EntrySilent,
    /// The plan contradicts itself or the state of the guardian.
    BadPlan {
        /// The contradiction.
        reason: String,
    },
    /// A system call failed that should not.
    System {
        /// The call.
        call: String,
        /// The reason.
        errno: i32,
    },
    /// The guardian does not answer.
    Guardian {
        /// The failure on the way to it.
        reason: String,
    },
    /// The guardian was killed during the attach; its changes were taken back.
    GuardianKilled,
    /// The first error, and what could not be restored after it.
    Residue {
        /// The first error.
        cause: Box<InjectError>,
        /// What is left in the target.
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

    /// The target ended or executed another program, so nothing is left to restore.
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

impl fmt::Display for InjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Gone => write!(f, "the target ended"),
            Self::Executed => {
                write!(f, "the target executed another program during the attach; try again")
            }
            Self::ExitedBeforeExec { code } => {
                write!(
                    f,
                    "the command ended with code {code} before it could be executed; see what it \
                     says without `traceprof record`"
                )
            }
            Self::NotPermitted => write!(
                f,
                "the kernel does not permit tracing the target; run as root (CAP_SYS_PTRACE), or \
                 check for a security module that forbids it"
            ),
            Self::WouldNotStop { tid, state: 'R' } => write!(
                f,
                "thread {tid} of the target did not stop: it waits for a processor, as the machine \
                 or its control group is overloaded; try again when it runs"
            ),
            Self::WouldNotStop { tid, state } => write!(
                f,
                "thread {tid} of the target did not stop (state {state}); it waits inside the \
                 kernel: try again when it runs"
            ),
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
                     doctor --pid PID` shows what forbids it, `traceprof stacks` needs no agent"
                )
            }
            Self::EntrySilent => write!(
                f,
                "the agent did not start within the time limit; the target gets no CPU time: try \
                 again when it runs"
            ),
            Self::BadPlan { reason } => write!(f, "cannot attach: {reason}"),
            Self::System { call, errno } => write!(
                f,
                "attaching: {call} failed: {}; `traceprof doctor --pid PID` says what is permitted",
                describe(*errno)
            ),
            Self::Guardian { reason } => write!(
                f,
                "the guardian process does not answer ({reason}); what it left in the target is \
                 inert"
            ),
            Self::GuardianKilled => write!(
                f,
                "the guardian process was killed during the attach; the target is as it was: try \
                 again"
            ),
            Self::Residue { cause, residue } => write!(f, "{cause}; left in the target: {residue}"),
        }
    }
}

impl std::error::Error for InjectError {}

fn describe(errno: i32) -> String {
    match errno {
        0 => "no reason known".to_owned(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    }
}

fn map_advice(errno: i32) -> &'static str {
    match errno {
        libc::EACCES | libc::EPERM => {
            "a security module or a seccomp filter forbids executable shared memory there"
        }
        libc::ENOMEM => "check its address space limit (ulimit -v) and vm.max_map_count",
        libc::EAGAIN => "it locks its future memory: raise its limit (ulimit -l)",
        libc::EINVAL => "the address range was taken meanwhile, or the segment is gone: try again",
        _ => "try again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_way_out() {
        let traced = Refusal::AlreadyTraced { tracer: 7, name: "gdb".to_owned() };
        assert_eq!(
            InjectError::from(traced).to_string(),
            "the target is already traced by gdb (pid 7); end that program first"
        );
        let full = InjectError::MapFailed { segment: "data".to_owned(), errno: libc::ENOMEM };
        assert!(full.to_string().contains("ulimit -v"));
        assert!(InjectError::from(Refusal::NoSuchProcess { pid: 1 }).is_gone());
    }
}
