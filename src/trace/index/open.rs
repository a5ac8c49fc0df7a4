//! Opens the index file of a data file.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::broken::Broken;
use super::cell::{CELL_BYTES, RawCell};
use super::journal::{self, Journal};
use super::paged::SortedIndex;
use super::sorted::TABLES_AT;
use super::tables::{FrameRow, IndexTables};
use super::{Index, check_header};
use crate::trace::frame::{self, FrameHeader, LAST};
use crate::trace::frames::read_up_to;
use crate::trace::kind::Kind;
use crate::trace::{HEADER_BYTES, INDEX_MAGIC, TraceError};

const IDENTITY_BYTES: usize = 2 * CELL_BYTES;

/// Returns the path of a data file's index: the data file's path with `.idx` appended.
pub fn index_path(data: &Path) -> PathBuf {
    let mut name = data.as_os_str().to_owned();
    name.push(".idx");
    name.into()
}

/// An open index file.
#[derive(Debug)]
pub(in crate::trace) struct OpenedIndex {
    /// The index.
    pub(in crate::trace) index: Index,
    /// Whether the index covers a complete trace.
    pub(in crate::trace) complete: bool,
}

impl Index {
    /// Opens the index of the data file at `data`, if there is one. `first` is the header of the
    /// first frame, `data_bytes` the length of the data file. A journal is used up to its last
    /// valid group: the data continues at [`Index::reach`].
    pub(in crate::trace) fn open(
        data: &Path,
        first: &FrameHeader,
        data_bytes: u64,
    ) -> Result<Option<Index>, Broken> {
        Ok(open(data, first, data_bytes)?.map(|opened| opened.index))
    }
}

/// Like [`Index::open`], but also returns whether the index is complete.
pub(in crate::trace) fn open(
    data: &Path,
    first: &FrameHeader,
    data_bytes: u64,
) -> Result<Option<OpenedIndex>, Broken> {
    let path = index_path(data);
    let unreadable = |_| Broken { offset: 0, what: "the index cannot be read" };
    // Opening a pipe would block.
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Ok(meta) if !meta.is_file() => return Broken::at(0, "the index is not a regular file"),
        other => other.map_err(unreadable)?,
    };
    let file = File::open(&path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    let mut input = BufReader::with_capacity(1 << 16, &file);
    let header = read_up_to(&mut input, HEADER_BYTES as u64).map_err(unreadable)?;
    match check_header(&header, INDEX_MAGIC, &path) {
        Ok(()) => {}
        Err(TraceError::NewerVersion { .. }) => {
            return Broken::at(0, "the index has a newer version");
        }
        Err(_) => return Broken::at(0, "the file is not an index"),
    }
    let identity = read_up_to(&mut input, IDENTITY_BYTES as u64).map_err(unreadable)?;
    if identity.len() < IDENTITY_BYTES {
        // The recording has just started.
        let index = Index::Tables(IndexTables::default());
        return Ok(Some(OpenedIndex { index, complete: false }));
    }
    check_identity(&identity, first)?;
    let mut next = [0; 1];
    let read = input.read(&mut next).map_err(unreadable)?;
    let opened = match next[..read].first().map(|number| Kind::from_number(*number)) {
        Some(Some(Kind::Table)) => {
            let index = Index::Sorted(SortedIndex::open(file, bytes, first)?);
            OpenedIndex { index, complete: true }
        }
        None | Some(Some(Kind::Group | Kind::Eof)) => {
            let mut groups = next[..read].chain(input);
            let Journal { tables, complete } =
                journal::read(&mut groups, first, data_bytes).map_err(unreadable)?;
            OpenedIndex { index: Index::Tables(tables), complete }
        }
        _ => return Broken::at(TABLES_AT, "the index has neither groups nor tables"),
    };
    check_end(&opened, data, first, data_bytes)?;
    Ok(Some(opened))
}

/// Compares the identity with that of the data file.
fn check_identity(identity: &[u8], first: &FrameHeader) -> Result<(), Broken> {
    let [frame, uuid] = [0, CELL_BYTES].map(|from| RawCell::decode(&identity[from..]));
    let offset = HEADER_BYTES as u64;
    if !frame.is(Kind::Identity) || !uuid.is(Kind::Identity) {
        return Broken::at(offset, "the index does not say which trace it belongs to");
    }
    if (frame.start, frame.id) != (first.salt, first.crc()) {
        return Broken::at(offset, "the index belongs to another trace");
    }
    Ok(())
}

/// Compares the last frame with that of the data file.
fn check_end(
    opened: &OpenedIndex,
    data: &Path,
    first: &FrameHeader,
    data_bytes: u64,
) -> Result<(), Broken> {
    let Some(last) = opened.index.last_frame()? else {
        return match opened.index {
            Index::Tables(_) => Ok(()),
            Index::Sorted(_) => Broken::at(0, "the index has no frames"),
        };
    };
    if last.end > data_bytes {
        return Broken::at(0, "the index extends beyond the data");
    }
    let Some(header) = header_of(data, &last).filter(|header| header.salt == first.salt) else {
        return Broken::at(0, "the last frame of the index is not in the data");
    };
    let Index::Sorted(index) = &opened.index else { return Ok(()) };
    let closed = header.flags & LAST != 0;
    if index.covered() < last.end || (!closed && data_bytes > index.covered()) {
        return Broken::at(0, "the index is older than the data");
    }
    Ok(())
}

/// Returns the header of a frame in the data file, if it matches the row.
fn header_of(data: &Path, row: &FrameRow) -> Option<FrameHeader> {
    let mut bytes = [0; frame::HEADER_BYTES];
    File::open(data).ok()?.read_exact_at(&mut bytes, row.offset).ok()?;
    let header = FrameHeader::decode(&bytes).ok()?;
    let same = header.offset == row.offset
        && header.crc() == row.crc
        && header.offset + header.total_bytes() == row.end;
    same.then_some(header)
}
