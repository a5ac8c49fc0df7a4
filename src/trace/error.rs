//! The errors of writing and reading a trace file.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use super::Written;
use crate::proc;

/// An error of writing or reading a trace.
#[derive(Debug)]
pub enum TraceError {
    /// The operating system refused an operation on a file.
    Io {
        /// The file.
        path: PathBuf,
        /// Whether the file was being created or written.
        writing: bool,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An output file exists and `force` is not set.
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Another recorder is writing the output file.
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A write failed; the files keep what was written before.
    CutShort {
        /// The file that could not be written.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
        /// The contents of the files.
        kept: Written,
        /// The number of samples that the files do not hold.
        lost_samples: u64,
        /// Whether the data file has its end and so is complete in itself.
        closed: bool,
    },
    /// The output file is also the input file.
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// The path names a directory.
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// The path names a device, a directory, a socket or a pipe.
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// The file does not begin like a trace or an index.
    NotATrace {
        /// The file.
        path: PathBuf,
    },
    /// The file has a newer major version that this version cannot read.
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Its major version.
        major: u32,
    },
    /// Bytes with a correct checksum have an impossible meaning.
    Corrupt {
        /// The position in the data file: [`Object::offset`](super::Object::offset) for an object,
        /// else the offset in the file.
        offset: u64,
        /// The reason.
        what: &'static str,
    },
    /// An index file is damaged. The data file suffices to make a new one.
    BrokenIndex {
        /// The index file.
        path: PathBuf,
        /// The offset in the index file.
        offset: u64,
        /// The reason.
        what: &'static str,
    },
    /// A value is larger than the format allows.
    LimitExceeded {
        /// The name of the value.
        what: &'static str,
        /// The largest allowed value.
        limit: u64,
    },
    /// Reading the trace takes more memory than a trace of its size can need, or than the caller
    /// allows.
    TooMuchMemory {
        /// The number of bytes that it may take.
        limit: u64,
    },
    /// The caller used an id that this writer never returned.
    UnknownId {
        /// The kind of the object.
        kind: &'static str,
        /// The id.
        id: u32,
    },
}

impl TraceError {
    /// Returns whether the output is at fault (disk full, no permission, file exists), and not the
    /// input.
    pub fn is_output_error(&self) -> bool {
        match self {
            Self::Io { writing, .. } => *writing,
            Self::Exists { .. }
            | Self::Directory { .. }
            | Self::SameFile { .. }
            | Self::NotRegular { .. }
            | Self::Busy { .. }
            | Self::CutShort { .. } => true,
            _ => false,
        }
    }

    pub(super) fn read(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), writing: false, source }
    }

    pub(super) fn write(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), writing: true, source }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, writing, source } => {
                let verb = if *writing { "write" } else { "read" };
                write!(f, "cannot {verb} {}: {source}", path.display())?;
                write_advice(f, source)
            }
            Self::Busy { path } => {
                write!(
                    f,
                    "another recorder is writing {}; choose another name, or stop that recorder",
                    path.display()
                )
            }
            Self::CutShort { path, source, kept, lost_samples, closed } => {
                write_cut_short(f, (path, source), kept.samples, (*lost_samples, *closed))
            }
            Self::Exists { path } => {
                let path = path.display();
                write!(f, "{path} exists: choose another name, or replace it with --force")
            }
            Self::Directory { path } => {
                let within = path.join("NAME");
                let (path, within) = (path.display(), within.display());
                write!(f, "{path} is a directory: name a file, as in {within}")
            }
            Self::SameFile { path } => {
                write!(f, "{} is also the input; choose another name", path.display())
            }
            Self::NotRegular { path } => {
                write!(f, "{} is not a regular file; choose another name", path.display())
            }
            Self::NotATrace { path } => {
                let path = path.display();
                write!(f, "{path} is not a trace: give a file that `traceprof record` wrote")
            }
            Self::NewerVersion { path, major } => {
                let own = super::VERSION_MAJOR;
                write!(
                    f,
                    "{} has format version {major}, but this traceprof reads up to {own}; use the \
                     version that wrote it",
                    path.display()
                )
            }
            Self::Corrupt { offset, what } => {
                write!(f, "the trace is corrupt at {offset:#x}: {what}; record it again")
            }
            Self::BrokenIndex { path, offset, what } => {
                write!(
                    f,
                    "the index {} is broken at {offset:#x}: {what}; make a new one with `traceprof \
                     reindex`",
                    path.display()
                )
            }
            Self::TooMuchMemory { limit } => {
                let mib = limit.div_ceil(1 << 20);
                write!(
                    f,
                    "reading the trace takes more than {mib} MiB of memory, which no recording of \
                     its size needs: it was made to do harm, or is not what was recorded; get it \
                     again from its source"
                )
            }
            Self::LimitExceeded { what, limit } => write!(f, "{what} exceeds the limit of {limit}"),
            Self::UnknownId { kind, id } => write!(f, "no {kind} has the id {id}"),
        }
    }
}

/// Writes what is left of a trace that could not be written to its end. `closed` says whether the
/// file has its end nevertheless.
fn write_cut_short(
    f: &mut fmt::Formatter<'_>,
    (path, source): (&Path, &io::Error),
    samples: u64,
    (lost, closed): (u64, bool),
) -> fmt::Result {
    let path = path.display();
    if lost == 0 && closed {
        write!(
            f,
            "cannot write all of {path}: {source}; all {samples} samples are in the data file"
        )?;
    } else {
        let (all, end) = (samples + lost, if closed { "" } else { " without its end" });
        write!(
            f,
            "cannot write {path}: {source}; the trace is kept{end}, with {samples} of {all} samples"
        )?;
    }
    write_advice(f, source)
}

/// Writes the remedy for an error, if there is one.
fn write_advice(f: &mut fmt::Formatter<'_>, source: &io::Error) -> fmt::Result {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            write!(f, "; free some space or choose another location with --output")
        }
        io::ErrorKind::FileTooLarge => {
            write!(f, "; raise the file size limit (`ulimit -f`), or record for less time")
        }
        _ if source.raw_os_error() == Some(libc::EIO) => {
            write!(f, "; check the system log, or choose another location with --output")
        }
        _ => match source.raw_os_error().and_then(proc::shortage_advice) {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        },
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } | Self::CutShort { source, .. } => Some(source),
            _ => None,
        }
    }
}
