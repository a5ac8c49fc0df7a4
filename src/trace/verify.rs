//! Verification: reads and compares everything in a trace once.

use std::path::Path;

use super::index::tables::{IndexTables, NEUTRAL_KINDS};
use super::index::{self, Index, OpenedIndex};
use super::loss::{self, BadRange, Loss};
use super::scan::scan;
use super::scanned::Scan;
use super::{Metadata, TraceError};

/// The result of [`verify`].
#[derive(Debug, Clone, PartialEq)]
pub struct Verification {
    /// The size of the data file in bytes.
    pub bytes: u64,
    /// The number of checked bytes: the header and all complete frames.
    pub checked: u64,
    /// The number of bytes of these frames when decoded.
    pub decoded: u64,
    /// The number of complete frames.
    pub frames: u64,
    /// The ranges that belong to no complete frame though complete frames follow.
    pub bad: Vec<BadRange>,
    /// The number of samples in the file.
    pub samples: u64,
    /// The number of threads, including those of which only the samples are there.
    pub threads: u32,
    /// The losses of the file.
    pub losses: Vec<Loss>,
    /// Whether the recording was finished.
    pub closed: bool,
    /// The state of its index.
    pub index: IndexState,
    /// Notices for the user.
    pub notices: Vec<String>,
    /// The last value of each key.
    pub metadata: Metadata,
}

/// The state of a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileState {
    /// The file is complete.
    Clean,
    /// Everything that was written is there, but the recording was not finished, or is still
    /// running.
    Unfinished,
    /// Something inside the file is lost.
    Lossy,
}

impl FileState {
    pub(super) fn of(bad: &[BadRange], losses: &[Loss], closed: bool) -> Self {
        match closed {
            _ if loss::is_lossy(bad, losses) => Self::Lossy,
            true => Self::Clean,
            false => Self::Unfinished,
        }
    }
}

/// The state of an index file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexState {
    /// There is no index; readers make one in memory.
    Missing,
    /// The index matches the data file.
    Sound,
    /// The index is the journal of a recording that was not finished, and matches the data file.
    Journal,
    /// The index cannot be used, for this reason; readers make one in memory.
    Broken(String),
}

impl Verification {
    /// Returns the state of the data file.
    pub fn state(&self) -> FileState {
        FileState::of(&self.bad, &self.losses, self.closed)
    }
}

/// Reads and checks all of the data file at `path`, and compares its index with it.
///
/// # Errors
/// Those of [`load`](fn@super::load). Damage is no error.
///
/// ```
/// use traceprof::trace::{self, FileState, IndexState, TraceWriter, WriterOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("out.trace");
/// TraceWriter::create(&path, WriterOptions::default())?.finish()?;
/// let verification = trace::verify(&path)?;
/// assert_eq!(verification.state(), FileState::Clean);
/// assert_eq!(verification.index, IndexState::Sound);
/// assert_eq!(verification.checked, verification.bytes);
/// # Ok(())
/// # }
/// ```
pub fn verify(path: &Path) -> Result<Verification, TraceError> {
    let scan = scan(path, false)?;
    let index = index_state(path, &scan);
    Ok(Verification {
        bytes: scan.bytes,
        checked: scan.checked,
        decoded: scan.decoded_bytes,
        frames: scan.tables.frames.len() as u64,
        bad: scan.bad,
        samples: scan.samples,
        threads: scan.threads,
        losses: scan.losses,
        closed: scan.closed,
        index,
        notices: scan.notices,
        metadata: scan.metadata,
    })
}

fn index_state(path: &Path, scan: &Scan) -> IndexState {
    let Some(first) = &scan.first else {
        // Without a frame there is nothing to compare an index with.
        return match index::index_path(path).exists() {
            true => IndexState::Journal,
            false => IndexState::Missing,
        };
    };
    let compared = index::open(path, first, scan.bytes).and_then(|opened| {
        let Some(OpenedIndex { index, complete }) = opened else { return Ok(IndexState::Missing) };
        index.check()?;
        Ok(match differs(&index, &scan.tables, complete)? {
            Some(what) => IndexState::Broken(what.into()),
            None if complete => IndexState::Sound,
            None => IndexState::Journal,
        })
    });
    compared.unwrap_or_else(|broken| IndexState::Broken(broken.to_string()))
}

/// Returns how an index differs from its data.
fn differs(
    index: &Index,
    tables: &IndexTables,
    complete: bool,
) -> Result<Option<&'static str>, index::Broken> {
    let frames = index.frame_count();
    if frames > tables.frames.len() as u64 || complete && frames < tables.frames.len() as u64 {
        return Ok(Some("the frames of the index differ from the data"));
    }
    for (n, row) in (0..frames).zip(&tables.frames) {
        if index.frame(n)? != *row {
            return Ok(Some("the frames of the index differ from the data"));
        }
    }
    let whole = frames == tables.frames.len() as u64;
    for (kind, rows) in NEUTRAL_KINDS.into_iter().zip(&tables.neutral) {
        let count = index.neutral_rows(kind);
        if whole && count != rows.len() as u64 {
            return Ok(Some("the objects of the index differ from the data"));
        }
        for n in 0..count {
            // In a journal with missing frames, the rows may have other numbers.
            let row = index.neutral_row(kind, n)?;
            if !rows
                .binary_search_by_key(&(row.1, row.2), |row| (row.1, row.2))
                .is_ok_and(|at| rows[at] == row)
            {
                return Ok(Some("the objects of the index differ from the data"));
            }
        }
    }
    for stream in index.streams()? {
        let Some(of_stream) = tables.streams.get(&stream) else {
            return Ok(Some("the index has a stream that is not in the data"));
        };
        let count = index.block_count(stream)?;
        if count > of_stream.blocks.len() as u64 || whole && count < of_stream.blocks.len() as u64 {
            return Ok(Some("the blocks of the index differ from the data"));
        }
        for (n, row) in (0..count).zip(&of_stream.blocks) {
            if index.block(stream, n)? != *row {
                return Ok(Some("the blocks of the index differ from the data"));
            }
        }
        for row in of_stream.calls.iter().filter(|_| whole) {
            if index.call(stream, row.start)? != Some(*row) {
                return Ok(Some("the calls of the index differ from the data"));
            }
        }
    }
    let all_streams = !whole || index.streams()?.len() == tables.streams.len();
    Ok((!all_streams).then_some("the index is missing a stream"))
}
