//! How the command ends: the exit codes, and the failures that lead to them.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::record::RecordError;
use crate::trace::{TraceError, directory_of};
use crate::view::ViewError;
use crate::view::text::escape::{escaped, shell_quoted};

/// An exit code. Scripts rely on these: a number never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Done.
    Ok = 0,
    /// Anything that has no code of its own.
    Failure = 1,
    /// The command line is invalid (clap's code).
    Usage = 2,
    /// The target may not be traced by this user.
    NotPermitted = 3,
    /// The recording is done and has no sample. It is written, except for a ring without a save.
    NoSamples = 4,
    /// The recording is done, and its quality is below `--fail-under`.
    LowQuality = 5,
    /// The output could not be written.
    Output = 6,
    /// The target exited before there was any data.
    TargetGone = 7,
    /// The trace is sound to its last byte, but was never closed.
    Unfinished = 8,
    /// Parts of the trace are lost.
    Lossy = 9,
    /// The file is not a readable trace.
    Unreadable = 10,
    /// The recording is done, and part of it is left in the target.
    LeftBehind = 11,
    /// The recording is done, and a crash ended the target meanwhile.
    TargetDied = 12,
    /// The file to read does not exist, or this user may not read it.
    NoInput = 13,
    /// The command to record exists, and the system does not start it (the code of shells).
    NotExecutable = 126,
    /// The command to record does not exist (the code of shells).
    NoCommand = 127,
    /// A second signal requested the end, such as a second Ctrl-C.
    Interrupted = 130,
}

impl ExitCode {
    /// All codes in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Failure,
        Self::Usage,
        Self::NotPermitted,
        Self::NoSamples,
        Self::LowQuality,
        Self::Output,
        Self::TargetGone,
        Self::Unfinished,
        Self::Lossy,
        Self::Unreadable,
        Self::LeftBehind,
        Self::TargetDied,
        Self::NoInput,
        Self::NotExecutable,
        Self::NoCommand,
        Self::Interrupted,
    ];

    /// Returns the number that the shell sees.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the meaning of the code, as in the help and the manual.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "done",
            Self::Failure => "failed for a reason without a code of its own",
            Self::Usage => "the command line is invalid",
            Self::NotPermitted => "not permitted to trace the target",
            Self::NoSamples => "the recording is done, but it holds no sample",
            Self::LowQuality => "the recording is done, but its quality is below --fail-under",
            Self::Output => "the output could not be written (exists, no space, no access)",
            Self::TargetGone => "the target exited before there was any data",
            Self::Unfinished => "the trace is sound but was not closed: its recording did not end",
            Self::Lossy => "the trace is readable, but parts of it are lost",
            Self::Unreadable => "the file is not a readable trace",
            Self::LeftBehind => "the recording is done, but something of it is left in the target",
            Self::TargetDied => "a crash ended the target during the recording",
            Self::NoInput => "the file to read does not exist or may not be read",
            Self::NotExecutable => "COMMAND exists, but the system cannot start it",
            Self::NoCommand => "COMMAND does not exist",
            Self::Interrupted => {
                "ended at once by a second signal: the trace is not closed, the target is restored"
            }
        }
    }
}

/// What replaces some of the codes if the recorder started a program.
pub(super) const OF_PROGRAM: &str =
    "record -- COMMAND exits with the code of COMMAND in place of 0, 4 and 12.";

/// How this program exits: with a code of its own, or as the program that it recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandExit(u8);

impl CommandExit {
    /// Returns the exit of a recorded program, as shells report it: its own code, or 128 and the
    /// number of the signal that killed it.
    pub fn of_command(status: ExitStatus) -> Self {
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        Self(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
    }

    /// Returns the number that the shell sees.
    pub fn number(self) -> u8 {
        self.0
    }
}

impl From<ExitCode> for CommandExit {
    fn from(code: ExitCode) -> Self {
        Self(code.number())
    }
}

impl From<CommandExit> for std::process::ExitCode {
    fn from(exit: CommandExit) -> Self {
        Self::from(exit.number())
    }
}

/// Why the command failed, and the code that says so.
#[derive(Debug)]
pub struct CommandFailure {
    /// The code.
    pub code: ExitCode,
    /// The error with its causes, from the outside in. The last part says what to do.
    pub error: anyhow::Error,
}

impl CommandFailure {
    /// Creates a failure with this code.
    pub fn new(code: ExitCode, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into() }
    }

    /// Converts the error of a recording, or of another inspection of a process.
    pub fn of_recording(error: RecordError) -> Self {
        let (code, error) = match error {
            RecordError::NotPermitted(error) => (ExitCode::NotPermitted, error),
            RecordError::TargetGone(error) => (ExitCode::TargetGone, error),
            RecordError::TargetDied(error) => (ExitCode::TargetDied, error),
            RecordError::Output(error) => (ExitCode::Output, error),
            RecordError::NotExecutable(error) => (ExitCode::NotExecutable, error),
            RecordError::NoCommand(error) => (ExitCode::NoCommand, error),
            RecordError::Usage(text) => (ExitCode::Usage, anyhow::anyhow!(text)),
            RecordError::Other(error) => (ExitCode::Failure, error),
        };
        Self::new(code, error)
    }

    /// Converts the error of a trace that cannot be read or written.
    pub fn of_trace(error: TraceError) -> Self {
        let code = match &error {
            _ if error.is_output_error() => ExitCode::Output,
            TraceError::Io { source, .. } if is_no_input(source) => ExitCode::NoInput,
            // The trace may be sound, but the system refuses to read it.
            TraceError::Io { .. } => ExitCode::Failure,
            // Or it may be sound and larger than this program, or the machine, can take.
            TraceError::LimitExceeded { .. } | TraceError::TooMuchMemory { .. } => {
                ExitCode::Failure
            }
            _ => ExitCode::Unreadable,
        };
        match search(&error) {
            Some(advice) => {
                let text = format!("{error}; {advice}");
                Self::new(code, anyhow::Error::from(error).context(text))
            }
            None => Self::new(code, error),
        }
    }

    /// Converts the error of a view that could not be made.
    pub fn of_view(error: ViewError) -> Self {
        match error {
            ViewError::Trace(error) => Self::of_trace(error),
            ViewError::NoContext => {
                Self::new(ExitCode::Usage, anyhow::anyhow!(ViewError::no_context()))
            }
            ViewError::NoStacks => {
                Self::new(ExitCode::Usage, anyhow::anyhow!(ViewError::NO_STACKS))
            }
            ViewError::Output(error) => Self::of_output("writing the output", error),
        }
    }

    /// Converts the error of a write, with what failed and what to do.
    pub(super) fn of_output(what: &str, error: io::Error) -> Self {
        let advice = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("{what}: {error}; free some space, or write to another place")
            }
            io::ErrorKind::FileTooLarge => {
                format!("{what}: {error}; raise the file size limit (`ulimit -f`)")
            }
            _ => what.to_owned(),
        };
        Self::new(ExitCode::Output, anyhow::Error::from(error).context(advice))
    }

    /// Whether the reader of the output closed it, as `head` does.
    pub fn is_broken_pipe(&self) -> bool {
        self.error.chain().any(|cause| {
            cause
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        })
    }

    /// Returns the message in one line, without control characters.
    pub fn message(&self) -> String {
        let mut message = String::new();
        for cause in self.error.chain().map(|cause| cause.to_string()) {
            // Some errors quote their cause themselves.
            if !message.contains(&cause) {
                let between = if message.is_empty() { "" } else { ": " };
                message.push_str(between);
                message.push_str(&cause);
            }
        }
        escaped(&message.replace('\n', " ")).to_string()
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "traceprof: {}", self.message())
    }
}

/// Returns where to look for a trace that does not exist.
fn search(error: &TraceError) -> Option<String> {
    let TraceError::Io { path, writing: false, source } = error else { return None };
    let directory = directory_of(path);
    let name = shell_quoted(&directory.to_string_lossy());
    match source.kind() {
        io::ErrorKind::NotFound if !directory.is_dir() => Some(format!("{name} does not exist")),
        io::ErrorKind::NotFound if name == "." => Some("`ls *.trace` lists traces".to_owned()),
        io::ErrorKind::NotFound => Some(format!("`ls {name}/*.trace` lists traces")),
        _ => None,
    }
}

/// Whether a file could not be opened because of its name or its permissions.
fn is_no_input(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | InvalidFilename | NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_documented_numbers() {
        let numbers: Vec<u8> = ExitCode::ALL.iter().map(|code| code.number()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 126, 127, 130]);
    }

    #[test]
    fn a_recorded_program_determines_the_exit_as_in_a_shell() {
        let of = |raw| CommandExit::of_command(ExitStatus::from_raw(raw)).number();
        assert_eq!([of(0), of(3 << 8), of(255 << 8)], [0, 3, 255]);
        assert_eq!([of(libc::SIGKILL), of(libc::SIGSEGV | 0x80)], [137, 139], "a core is dumped");
    }

    #[test]
    fn a_failure_is_one_line_without_control_characters() {
        let error = anyhow::anyhow!("no such file: look\n  twice").context("reading a\u{1b}[2J");
        let line = CommandFailure::new(ExitCode::Failure, error).to_string();
        assert_eq!(line, "traceprof: reading a\\u{1b}[2J: no such file: look   twice");
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("no space").context("cannot write x: no space; free some");
        let line = CommandFailure::new(ExitCode::Output, error).to_string();
        assert_eq!(line, "traceprof: cannot write x: no space; free some");
    }

    #[test]
    fn only_a_broken_pipe_is_quiet() {
        let of = |kind: io::ErrorKind| {
            let error = anyhow::Error::from(io::Error::from(kind)).context("writing the output");
            CommandFailure::new(ExitCode::Output, error).is_broken_pipe()
        };
        assert!(of(io::ErrorKind::BrokenPipe));
        assert!(!of(io::ErrorKind::StorageFull));
    }
}
