//! The cells of an index file, one by one in file order.

use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::broken::Broken;
use super::cell::{CELL_BYTES, RawCell};
use super::pages::{Pages, TAIL_BYTES};
use crate::trace::frames::{open_regular, read_up_to};
use crate::trace::kind::Kind;
use crate::trace::{HEADER_BYTES, INDEX_MAGIC, TraceError, check_header};

/// A cell of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexCell {
    /// The number of the kind.
    pub kind: u8,
    /// The name of the kind; `unknown` for a kind that this version does not know.
    pub kind_name: &'static str,
    /// The id of the object; for a block or a call the thread, for a group its checksum.
    pub id: u32,
    /// The start offset, -1 if unused.
    pub start: i64,
    /// The end offset, -1 if unused.
    pub end: i64,
}

impl From<RawCell> for IndexCell {
    fn from(cell: RawCell) -> Self {
        let RawCell { number: kind, id, start, end } = cell;
        let kind_name = cell.kind().map_or("unknown", Kind::name);
        Self { kind, kind_name, id, start: start as i64, end: end as i64 }
    }
}

/// Iterates over the cells of the index file at `path`, in file order. It compares all checksums; a
/// wrong one is the last item. The index of a killed recording ends without its EOF cell.
pub fn dump_index(
    path: &Path,
) -> Result<impl Iterator<Item = Result<IndexCell, TraceError>>, TraceError> {
    let mut input = open_regular(path)?;
    let read = |source| TraceError::read(path, source);
    let header = read_up_to(&mut input, HEADER_BYTES as u64).map_err(read)?;
    check_header(&header, INDEX_MAGIC, path)?;
    // The kind of the cell after the identity.
    let begin = read_up_to(&mut input, 2 * CELL_BYTES as u64 + 1).map_err(read)?;
    let form = match begin.get(2 * CELL_BYTES) {
        Some(number) if *number == Kind::Table as u8 => {
            let file = File::open(path).map_err(read)?;
            let bytes = file.metadata().map_err(read)?.len();
            let pages = Pages::open(file, bytes).map_err(|broken| broken_index(path, broken))?;
            Form::Sorted { pages, tail_at: bytes.saturating_sub(TAIL_BYTES) }
        }
        _ => Form::Journal { group: None },
    };
    input.seek(SeekFrom::Start(HEADER_BYTES as u64)).map_err(read)?;
    Ok(Cells { input, path: path.to_owned(), at: HEADER_BYTES as u64, form, ended: false })
}

fn broken_index(path: &Path, broken: Broken) -> TraceError {
    let Broken { offset, what } = broken;
    TraceError::BrokenIndex { path: path.to_owned(), offset, what }
}

/// The form of the index that is being read.
#[derive(Debug)]
enum Form {
    Journal {
        group: Option<OpenGroup>,
    },
    Sorted {
        pages: Pages,
        /// The offset of the SEAL.
        tail_at: u64,
    },
}

/// A group whose cells are being read.
#[derive(Debug)]
struct OpenGroup {
    left: u64,
    crc: u32,
    hasher: crc32fast::Hasher,
}

#[derive(Debug)]
struct Cells {
    input: BufReader<File>,
    path: PathBuf,
    at: u64,
    form: Form,
    ended: bool,
}

impl Iterator for Cells {
    type Item = Result<IndexCell, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let cell = self.read_cell();
        self.ended |= !matches!(cell, Ok(Some(_)));
        cell.map(|cell| cell.map(IndexCell::from)).transpose()
    }
}

impl Cells {
    fn read_cell(&mut self) -> Result<Option<RawCell>, TraceError> {
        let offset = self.at;
        let path = &self.path;
        if let Form::Sorted { pages, tail_at } = &self.form {
            if offset < pages.end() {
                let bytes = pages.read::<CELL_BYTES>(offset);
                self.at += CELL_BYTES as u64;
                return bytes
                    .map(|bytes| Some(RawCell::decode(&bytes)))
                    .map_err(|broken| broken_index(path, broken));
            }
            // The checksums and the seal were compared when the index was opened.
            self.ended = offset > *tail_at;
            if offset == pages.end() {
                let at = SeekFrom::Start(offset);
                self.input.seek(at).map_err(|source| TraceError::read(path, source))?;
            }
        }
        let bytes = read_up_to(&mut self.input, CELL_BYTES as u64)
            .map_err(|source| TraceError::read(path, source))?;
        self.at += bytes.len() as u64;
        match self.form {
            Form::Sorted { .. } => Ok(Some(RawCell::decode(&bytes))),
            Form::Journal { .. } => self.of_journal(offset, &bytes),
        }
    }

    /// Checks and returns the cell of a journal with these `bytes` at `offset`.
    fn of_journal(&mut self, offset: u64, bytes: &[u8]) -> Result<Option<RawCell>, TraceError> {
        let path = self.path.clone();
        let corrupt = |what| Err(TraceError::BrokenIndex { path: path.clone(), offset, what });
        let Form::Journal { group } = &mut self.form else { return Ok(None) };
        if bytes.is_empty() {
            return match group.as_ref().is_some_and(|group| group.left > 0) {
                true => corrupt("the index ends within a group"),
                false => Ok(None),
            };
        }
        if bytes.len() < CELL_BYTES {
            return corrupt("the index ends within a cell");
        }
        let cell = RawCell::decode(bytes);
        if cell.number == 0 {
            return corrupt("a cell has the kind 0");
        }
        match (&mut *group, cell.kind()) {
            (Some(group), _) if group.left > 0 => {
                group.hasher.update(bytes);
                group.left -= 1;
            }
            (_, Some(Kind::Group)) => *group = Some(OpenGroup::new(bytes, &cell)),
            (_, Some(Kind::Eof)) => {
                self.ended = true;
                let rest = read_up_to(&mut self.input, 9)
                    .map_err(|source| TraceError::read(&self.path, source))?;
                if rest != INDEX_MAGIC.to_be_bytes() {
                    return corrupt("the EOF cell is not followed by exactly the magic");
                }
            }
            (_, Some(Kind::Identity)) if offset <= (HEADER_BYTES + CELL_BYTES) as u64 => {}
            _ => return corrupt("a cell is outside of all groups"),
        }
        if let Some(group) = group.take_if(|group| group.left == 0)
            && group.hasher.finalize() != group.crc
        {
            return corrupt("the checksum of a group is wrong");
        }
        Ok(Some(cell))
    }
}

impl OpenGroup {
    /// Starts the group with the GROUP cell `bytes`.
    fn new(bytes: &[u8], cell: &RawCell) -> Self {
        let mut unsealed = bytes.to_vec();
        unsealed[1..5].fill(0);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&unsealed);
        Self { left: cell.end, crc: cell.id, hasher }
    }
}
