//! Conversion of a recording's journal into a sorted index, at the end of the recording.
//!
//! # Invariants
//! - If anything fails, the journal stays unchanged: it is valid and only slower to open.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::open::{self, OpenedIndex};
use super::sorted::Stamp;
use super::{Index, replace};
use crate::trace::frame::{self, FrameHeader};
use crate::trace::output::Identity;
use crate::trace::{HEADER_BYTES, TraceError};

/// The reason why the index of a finished trace is still a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsorted {
    /// The disk has no space for a second index file.
    NoRoom,
    /// The index would exceed the size limit of a sorted index.
    TooLarge,
    /// The files were moved, or were changed by others.
    Moved,
    /// The new index file cannot be written.
    Unwritable(ErrorKind),
}

impl fmt::Display for Unsorted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the index was not sorted, which makes opening slower: ")?;
        match self {
            Self::NoRoom => write!(f, "no space is left for it"),
            Self::TooLarge => write!(f, "it is too large"),
            Self::Moved => write!(f, "the files were moved or changed"),
            Self::Unwritable(kind) => write!(f, "it cannot be written ({kind})"),
        }
    }
}

impl From<TraceError> for Unsorted {
    fn from(error: TraceError) -> Self {
        match error {
            TraceError::Io { writing: true, source, .. } => match source.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                    Self::NoRoom
                }
                kind => Self::Unwritable(kind),
            },
            TraceError::LimitExceeded { .. } => Self::TooLarge,
            _ => Self::Moved,
        }
    }
}

/// Replaces the complete journal of the data file at `data` by a sorted index. Returns the size of
/// the index in bytes.
pub(in crate::trace) fn consolidate(data: &Path, identity: Identity) -> Result<u64, Unsorted> {
    let (first, data_bytes) = first_header(data).ok_or(Unsorted::Moved)?;
    let opened = open::open(data, &first, data_bytes).map_err(|_| Unsorted::Moved)?;
    let Some(OpenedIndex { index, complete: true }) = opened else { return Err(Unsorted::Moved) };
    if index.reach() != Ok(data_bytes) || first.salt != identity.salt {
        return Err(Unsorted::Moved);
    }
    let Index::Tables(tables) = index else { return Err(Unsorted::Moved) };
    let stamp = Stamp { identity, first_crc: first.crc(), covered: data_bytes };
    Ok(replace::write(data, &tables, &stamp)?)
}

/// Returns the header of a data file's first frame, and the file's length.
fn first_header(data: &Path) -> Option<(FrameHeader, u64)> {
    let file = File::open(data).ok()?;
    let mut bytes = [0; frame::HEADER_BYTES];
    file.read_exact_at(&mut bytes, HEADER_BYTES as u64).ok()?;
    Some((FrameHeader::decode(&bytes).ok()?, file.metadata().ok()?.len()))
}
