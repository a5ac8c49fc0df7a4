//! Where a view is written: the standard output, or a file that appears complete or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use super::exit::{CommandFailure, ExitCode};
use super::progress_line;
use crate::trace::{TraceError, directory_of, index_path};

/// Where to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Destination {
    /// The standard output.
    Standard,
    /// A file.
    File {
        /// Its name.
        path: PathBuf,
        /// Replace it if it exists.
        force: bool,
    },
}

impl Destination {
    /// The destination that the options name; `-` is the standard output. The input trace is never
    /// overwritten, not even with --force.
    pub(super) fn new(
        path: Option<PathBuf>,
        force: bool,
        trace: &Path,
    ) -> Result<Self, CommandFailure> {
        let Some(path) = path.filter(|path| path.as_os_str() != "-") else {
            return Ok(Self::Standard);
        };
        if is_part_of(&path, trace) {
            let error = anyhow!("{} is the input trace: name another output", path.display());
            return Err(CommandFailure::new(ExitCode::Output, error));
        }
        Ok(Self::File { path, force })
    }

    /// Calls `write` with this destination. A failure of `write` keeps its own code.
    pub(super) fn write(
        &self,
        write: impl FnOnce(&mut dyn Write) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        match self {
            Self::Standard => {
                let mut out = BufWriter::new(WithoutProgressLine(io::stdout().lock()));
                write(&mut out)?;
                out.flush().map_err(unwritable)
            }
            Self::File { path, force } => {
                let whole = |error| {
                    CommandFailure::of_output(&format!("writing {}", path.display()), error)
                };
                let mut file = NewFile::create(path, *force)?;
                write(&mut file.out)?;
                file.out.flush().map_err(whole)?;
                file.finish()
            }
        }
    }
}

/// The standard output; clears the progress line first, because both may be the terminal.
struct WithoutProgressLine<W>(W);

impl<W: Write> Write for WithoutProgressLine<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        progress_line::end();
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether a path names the data or the index file of a trace, under whatever name.
pub(super) fn is_part_of(path: &Path, trace: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    let own = identity(path);
    own.is_some() && (own == identity(trace) || own == identity(&index_path(trace)))
}

/// The failure of a write to the output.
pub(super) fn unwritable(error: io::Error) -> CommandFailure {
    CommandFailure::of_output("writing the output", error)
}

/// A file under another name until it is complete.
#[derive(Debug)]
struct NewFile {
    path: PathBuf,
    /// Its name until then; none for a device or a pipe, which is written directly.
    partial: Option<PathBuf>,
    force: bool,
    out: BufWriter<File>,
}

impl NewFile {
    fn create(path: &Path, force: bool) -> Result<Self, CommandFailure> {
        let directory = directory_of(path);
        if !directory.is_dir() {
            let error = anyhow!("{} is not a directory: create it first", directory.display());
            return Err(CommandFailure::new(ExitCode::Output, error));
        }
        let partial = match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                return Err(CommandFailure::of_trace(TraceError::Directory { path: path.into() }));
            }
            Ok(found) if !found.is_file() => None,
            Ok(_) if !force => return Err(exists(path)),
            _ => Some(partial_path(path)),
        };
        let file = match &partial {
            // Never through a link that somebody else placed there.
            Some(partial) => File::create_new(partial),
            None => File::options().write(true).open(path),
        };
        let file = file.map_err(|error| {
            CommandFailure::of_output(&format!("creating {}", path.display()), error)
        })?;
        Ok(Self { path: path.to_owned(), partial, force, out: BufWriter::new(file) })
    }

    fn finish(mut self) -> Result<(), CommandFailure> {
        let Some(partial) = self.partial.take() else {
            return Ok(());
        };
        let placed = if self.force {
            fs::rename(&partial, &self.path)
        } else {
            place_new(&partial, &self.path)
        };
        if placed.is_err() {
            let _ = fs::remove_file(&partial);
        }
        match placed {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(&self.path)),
            placed => placed.map_err(|error| {
                CommandFailure::of_output(&format!("writing {}", self.path.display()), error)
            }),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // The failure that led here is the one to report.
            let _ = fs::remove_file(partial);
        }
    }
}

/// Renames the file unless the name is taken. A hard link never replaces a file; file systems
/// without links get a check and a rename.
fn place_new(partial: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(partial, path) {
        Ok(()) => fs::remove_file(partial),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) if path.symlink_metadata().is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(partial, path),
    }
}

fn partial_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.partial", std::process::id()));
    path.with_file_name(name)
}

fn exists(path: &Path) -> CommandFailure {
    CommandFailure::of_trace(TraceError::Exists { path: path.to_owned() })
}
