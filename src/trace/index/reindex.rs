//! Rebuilds the index of a data file.

use std::fs::File;
use std::io;
use std::path::Path;

use super::cell::CELL_BYTES;
use super::replace;
use super::sorted::Stamp;
use crate::proc::FileLock;
use crate::trace::output::Identity;
use crate::trace::scan::scan;
use crate::trace::scanned::Scan;
use crate::trace::{HEADER_BYTES, TraceError};

/// The result of [`reindex`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reindexed {
    /// The size of the index file in bytes.
    pub index_bytes: u64,
    /// The number of cells in the index.
    pub cells: u64,
    /// Notices for the user about the state of the data file.
    pub notices: Vec<String>,
}

/// Rebuilds the index of the data file at `path` from the data and replaces the existing index, if
/// there is one. With `full` it has a cell for every call, not only for calls whose ends a reader
/// could not find otherwise.
///
/// # Errors
/// Those of [`load`](fn@crate::trace::load), [`TraceError::Busy`] while the trace is being
/// recorded, [`TraceError::Corrupt`] if there is no complete frame, and [`TraceError::Io`] if the
/// index cannot be written; the existing index stays then.
pub fn reindex(path: &Path, full: bool) -> Result<Reindexed, TraceError> {
    let _lock = lock(path)?;
    let Scan { tables, identity, first, closed, bytes, notices, .. } = scan(path, full)?;
    let (Some(first), Some(last)) = (first, tables.frames.last()) else {
        let (offset, what) = (HEADER_BYTES as u64, "there is no complete frame");
        return Err(TraceError::Corrupt { offset, what });
    };
    // A trace without its first frame has lost its UUID.
    let identity = identity.unwrap_or(Identity { salt: first.salt, uuid: 0 });
    let covered = if closed { last.end } else { bytes };
    let stamp = Stamp { identity, first_crc: first.crc(), covered };
    let index_bytes = replace::write(path, &tables, &stamp)?;
    let cells = (index_bytes - HEADER_BYTES as u64) / CELL_BYTES as u64;
    Ok(Reindexed { index_bytes, cells, notices })
}

/// Locks recorders out of the data file, if the file system supports locks: a recorder would
/// continue to write an index that no longer has a name.
fn lock(path: &Path) -> Result<Option<FileLock>, TraceError> {
    let read = |source| TraceError::read(path, source);
    // Opening a pipe would block.
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(TraceError::NotATrace { path: path.to_owned() });
    }
    match FileLock::shared(File::open(path).map_err(read)?) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(TraceError::Busy { path: path.to_owned() })
        }
        Err(_) => Ok(None),
    }
}
