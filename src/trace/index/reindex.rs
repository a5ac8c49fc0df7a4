//! Making the index of a data file anew.

use std::fs::File;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::cell::CELL_BYTES;
use super::replace;
use super::sorted::Stamp;
use crate::trace::output::Identity;
use crate::trace::scan::scan;
use crate::trace::scanned::Scan;
use crate::trace::{HEADER_BYTES, TraceError};

/// An index that was made anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reindexed {
    /// Bytes of the index file.
    pub index_bytes: u64,
    /// How many cells it has.
    pub cells: u64,
    /// What a user should know of the data file's state.
    pub notices: Vec<String>,
}

/// Makes the index of the data file at `path` anew from the data and puts it in the place of the
/// one that is there, if there is one. With `full` it has a cell for every call, not only for those
/// that a reader could not find the ends of otherwise.
///
/// # Errors
/// Those of [`load`](fn@crate::trace::load), [`TraceError::Busy`] while the trace is recorded,
/// [`TraceError::Corrupt`] if there is no whole frame, and [`TraceError::Io`] if the index cannot
/// be written; the one that is there stays then.
pub fn reindex(path: &Path, full: bool) -> Result<Reindexed, TraceError> {
    let _lock = lock(path)?;
    let Scan { tables, identity, first, closed, bytes, notices, .. } = scan(path, full)?;
    let (Some(first), Some(last)) = (first, tables.frames.last()) else {
        let (offset, what) = (HEADER_BYTES as u64, "there is no whole frame");
        return Err(TraceError::Corrupt { offset, what });
    };
    // Without its first frame a trace has lost its UUID.
    let identity = identity.unwrap_or(Identity { salt: first.salt, uuid: 0 });
    let covered = if closed { last.end } else { bytes };
    let stamp = Stamp { identity, first_crc: first.crc(), covered };
    let index_bytes = replace::write(path, &tables, &stamp)?;
    let cells = (index_bytes - HEADER_BYTES as u64) / CELL_BYTES as u64;
    Ok(Reindexed { index_bytes, cells, notices })
}

/// Keeps recorders from the data file, as far as the file system has locks: one would go on writing
/// an index that no longer has a name.
fn lock(path: &Path) -> Result<Option<Flock<File>>, TraceError> {
    let read = |source| TraceError::read(path, source);
    // A pipe would block.
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(TraceError::NotATrace { path: path.to_owned() });
    }
    match Flock::lock(File::open(path).map_err(read)?, FlockArg::LockSharedNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Err(TraceError::Busy { path: path.to_owned() }),
        Err(_) => Ok(None),
    }
}
