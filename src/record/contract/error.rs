//! Why there is no recording.

use std::io;

use anyhow::anyhow;

use crate::inject::{InjectError, Refusal};
use crate::trace::TraceError;

/// Why there is no recording.
#[derive(Debug)]
pub enum RecordError {
    /// The target may not be traced by this user.
    NotPermitted(anyhow::Error),
    /// The target ended before there was any data.
    TargetGone(anyhow::Error),
    /// The files could not be written.
    Output(anyhow::Error),
    /// What was asked for makes no sense.
    Usage(String),
    /// Anything else.
    Other(anyhow::Error),
}

impl RecordError {
    /// The target executed another program while it was being attached to.
    pub(crate) fn is_executed(&self) -> bool {
        let Self::TargetGone(error) = self else { return false };
        matches!(error.downcast_ref(), Some(InjectError::Executed))
    }

    /// The same kind of error, that says something else.
    pub(crate) fn saying(self, text: String) -> Self {
        match self {
            Self::NotPermitted(_) => Self::NotPermitted(anyhow!(text)),
            Self::TargetGone(_) => Self::TargetGone(anyhow!(text)),
            Self::Output(_) => Self::Output(anyhow!(text)),
            Self::Other(_) => Self::Other(anyhow!(text)),
            Self::Usage(_) => Self::Usage(text),
        }
    }

    /// What it says, with its causes.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::NotPermitted(error)
            | Self::TargetGone(error)
            | Self::Output(error)
            | Self::Other(error) => format!("{error:#}"),
            Self::Usage(text) => text.clone(),
        }
    }
}

/// The error of an injection, by the exit code that fits.
pub(crate) fn inject_error(error: InjectError) -> RecordError {
    match error {
        InjectError::Refused(refusal) => refusal_error(refusal),
        InjectError::NotPermitted => RecordError::NotPermitted(error.into()),
        error if error.is_gone() => RecordError::TargetGone(error.into()),
        error => RecordError::Other(error.into()),
    }
}

/// The error of a refused attach, by the exit code that fits.
pub(crate) fn refusal_error(refusal: Refusal) -> RecordError {
    match refusal {
        Refusal::NoSuchProcess { .. } | Refusal::Exited { .. } => {
            RecordError::TargetGone(refusal.into())
        }
        Refusal::NotAProcess { .. }
        | Refusal::Own
        | Refusal::NoAddressSpace { .. }
        | Refusal::TooManyMappings { .. }
        | Refusal::Unreadable { .. } => RecordError::Other(refusal.into()),
        _ => RecordError::NotPermitted(refusal.into()),
    }
}

/// Why the agent has no place.
pub(crate) const NO_HOLE: &str = "the target's address space has no hole of 2 GiB left, where the \
    agent would go; \
                       `traceprof stacks --pid PID` looks at it without one";

/// What may stand in the way of a process more.
pub(crate) const NO_GUARDIAN: &str = "starting the guardian process; where the limit of processes \
    is used up, raise \
                           it (ulimit -u, or pids.max of the control group)";

pub(crate) fn output_error(error: TraceError) -> RecordError {
    RecordError::Output(anyhow::Error::new(error))
}

/// An error about a process that may just have ended.
pub(crate) fn target_error(pid: i32, error: io::Error) -> RecordError {
    if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) {
        return RecordError::TargetGone(anyhow!(
            "process {pid} is gone: look for the one that runs now, as with `pgrep -a NAME`"
        ));
    }
    RecordError::Other(anyhow::Error::new(error).context(format!("looking at process {pid}")))
}
