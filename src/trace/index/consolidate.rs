//! The end of a recording: its journal becomes a sorted index.
//!
//! # Invariants
//! - If anything goes wrong the journal stays as it is: it is sound, and only slower to open.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::open::{self, Opened};
use super::sorted::Stamp;
use super::{Index, replace};
use crate::trace::frame::{self, FrameHeader};
use crate::trace::output::Identity;
use crate::trace::{HEADER_BYTES, TraceError};

/// Why the index of a finished trace stayed a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsorted {
    /// There is no room for a second index file.
    NoRoom,
    /// It would be larger than a sorted index may be.
    TooLarge,
    /// The files are not where they were begun, or not as they were written.
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

/// Replaces the complete journal of the data file at `data` by a sorted index; gives its bytes.
pub(in crate::trace) fn consolidate(data: &Path, identity: Identity) -> Result<u64, Unsorted> {
    let (first, data_bytes) = first_header(data).ok_or(Unsorted::Moved)?;
    let opened = open::open(data, &first, data_bytes).map_err(|_| Unsorted::Moved)?;
    let Some(Opened { index, complete: true }) = opened else { return Err(Unsorted::Moved) };
    if index.reach() != Ok(data_bytes) || first.salt != identity.salt {
        return Err(Unsorted::Moved);
    }
    let Index::Tables(tables) = index else { return Err(Unsorted::Moved) };
    let stamp = Stamp { identity, first_crc: first.crc(), covered: data_bytes };
    Ok(replace::write(data, &tables, &stamp)?)
}

/// The header of a data file's first frame, and the file's length.
fn first_header(data: &Path) -> Option<(FrameHeader, u64)> {
    let file = File::open(data).ok()?;
    let mut bytes = [0; frame::HEADER_BYTES];
    file.read_exact_at(&mut bytes, HEADER_BYTES as u64).ok()?;
    Some((FrameHeader::decode(&bytes).ok()?, file.metadata().ok()?.len()))
}
