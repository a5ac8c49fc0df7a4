//! The errors that prevent a recording.

use std::io;

use anyhow::anyhow;

use crate::inject::{InjectError, Refusal};
use crate::proc;
use crate::trace::TraceError;

/// An error that prevents a recording; each variant has its own exit code.
#[derive(Debug)]
pub enum RecordError {
    /// This user may not trace the target.
    NotPermitted(anyhow::Error),
    /// The target exited before anything was recorded.
    TargetGone(anyhow::Error),
    /// A crash ended the target before anything was recorded.
    TargetDied(anyhow::Error),
    /// The output files could not be written.
    Output(anyhow::Error),
    /// The program to start exists, and the system does not start it.
    NotExecutable(anyhow::Error),
    /// The program to start does not exist.
    NoCommand(anyhow::Error),
    /// The request is invalid.
    Usage(String),
    /// Any other error.
    Other(anyhow::Error),
}

impl RecordError {
    /// Returns whether the target executed another program during the attach.
    pub(crate) fn is_executed(&self) -> bool {
        let Self::TargetGone(error) = self else { return false };
        matches!(error.downcast_ref(), Some(InjectError::Executed))
    }

    /// Returns an error of the same kind with another text.
    pub(crate) fn saying(self, text: String) -> Self {
        match self {
            Self::NotPermitted(_) => Self::NotPermitted(anyhow!(text)),
            Self::TargetGone(_) => Self::TargetGone(anyhow!(text)),
            Self::TargetDied(_) => Self::TargetDied(anyhow!(text)),
            Self::Output(_) => Self::Output(anyhow!(text)),
            Self::NotExecutable(_) => Self::NotExecutable(anyhow!(text)),
            Self::NoCommand(_) => Self::NoCommand(anyhow!(text)),
            Self::Other(_) => Self::Other(anyhow!(text)),
            Self::Usage(_) => Self::Usage(text),
        }
    }

    /// Returns the error's text including its causes.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::NotPermitted(error)
            | Self::TargetGone(error)
            | Self::TargetDied(error)
            | Self::Output(error)
            | Self::NotExecutable(error)
            | Self::NoCommand(error)
            | Self::Other(error) => format!("{error:#}"),
            Self::Usage(text) => text.clone(),
        }
    }
}

/// Converts an injection error to the variant with the matching exit code.
pub(crate) fn inject_error(error: InjectError) -> RecordError {
    match error {
        InjectError::Refused(refusal) => refusal_error(refusal),
        InjectError::NotPermitted => RecordError::NotPermitted(error.into()),
        error if error.is_gone() => RecordError::TargetGone(error.into()),
        error => RecordError::Other(error.into()),
    }
}

/// Converts a refused attach to the variant with the matching exit code.
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

/// The message if no gap in the target's address space is large enough for the agent.
pub(crate) const NO_HOLE: &str = "the target's address space has no gap of 2 GiB for the agent; \
    `traceprof stacks --pid PID` reads its stacks without an agent";

/// Converts an error from starting the guardian process, or the process that forks guardians.
pub(crate) fn guardian_error(error: io::Error) -> RecordError {
    failed("starting the guardian process", error)
}

/// Returns the error of a step that failed, with its remedy.
pub(crate) fn failed(step: &str, error: io::Error) -> RecordError {
    let advice = proc::advice(&error);
    RecordError::Other(anyhow!("{step}: {error}; {advice}"))
}

pub(crate) fn output_error(error: TraceError) -> RecordError {
    RecordError::Output(anyhow::Error::new(error))
}

/// Converts an error from reading a process, which may have exited meanwhile.
pub(crate) fn target_error(pid: i32, error: io::Error) -> RecordError {
    if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) {
        return RecordError::TargetGone(anyhow!(
            "process {pid} no longer exists: find the running one, for example with `pgrep -a NAME`"
        ));
    }
    failed(&format!("reading process {pid}"), error)
}
