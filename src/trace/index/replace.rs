//! Replaces the index of a data file by a sorted index.
//!
//! The writer writes a `.tmp` file beside the index and renames it once it is on the disk, so there
//! is an index at every moment. The writer holds a lock on that file. An unlocked file was left by
//! a killed writer, and the next writer removes it.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::open::index_path;
use super::pages::MAX_BYTES;
use super::sorted::{self, Stamp};
use super::tables::IndexTables;
use crate::proc::FileLock;
use crate::trace::TraceError;
use crate::trace::file::{directory_of, sync_directory};

/// The permission bits, without the file type and the set-id bits.
const PERMISSIONS: u32 = 0o777;

/// Writes the index of the data file at `data`, with the same permissions. Returns its size in
/// bytes.
pub(super) fn write(data: &Path, tables: &IndexTables, stamp: &Stamp) -> Result<u64, TraceError> {
    if sorted::size(tables) > MAX_BYTES {
        return Err(TraceError::LimitExceeded { what: "the index file", limit: MAX_BYTES });
    }
    let path = index_path(data);
    let temporary = temporary_path(&path);
    let failed = |source| TraceError::write(&temporary, source);
    let mode = std::fs::metadata(data).map_err(|source| TraceError::read(data, source))?.mode();
    let file = create(&temporary).map_err(failed)?;
    let written =
        fill(&file, tables, stamp, mode & PERMISSIONS).map_err(failed).and_then(|bytes| {
            std::fs::rename(&temporary, &path)
                .map_err(|source| TraceError::write(&path, source))?;
            Ok(bytes)
        });
    if written.is_err() {
        // The file is locked, so it is ours. If the removal fails, the next writer removes it.
        let _ = std::fs::remove_file(&temporary);
    }
    let bytes = written?;
    // The new index is in its place and replaces the old one for every reader. If its name is lost
    // with the machine's power, the old index is there again, or none, which can be made again.
    let _ = sync_directory(directory_of(&path));
    Ok(bytes)
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Creates and locks the temporary file.
fn create(path: &Path) -> io::Result<FileLock> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(flags);
    let file = match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            remove_abandoned(path, &options)?;
            options.create_new(true).open(path)?
        }
        other => other?,
    };
    lock(file, path)
}

/// Removes the file of a killed writer.
fn remove_abandoned(path: &Path, options: &OpenOptions) -> io::Result<()> {
    if !std::fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let _abandoned = lock(options.open(path)?, path)?;
    std::fs::remove_file(path)
}

/// Locks a file and checks that it still has its name: another writer may have removed it in
/// between.
fn lock(file: File, path: &Path) -> io::Result<FileLock> {
    let busy = || io::Error::new(ErrorKind::ResourceBusy, "it is being written by another process");
    let file = match FileLock::exclusive(file) {
        Ok(file) => file,
        Err((_, error)) if error.kind() == ErrorKind::WouldBlock => return Err(busy()),
        Err((_, error)) => return Err(error),
    };
    let (opened, named) = (file.metadata()?, std::fs::symlink_metadata(path)?);
    let same = (opened.dev(), opened.ino()) == (named.dev(), named.ino());
    if same { Ok(file) } else { Err(busy()) }
}

fn fill(file: &File, tables: &IndexTables, stamp: &Stamp, mode: u32) -> io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 16, file);
    let bytes = sorted::write(tables, stamp, &mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()?;
    Ok(bytes)
}
