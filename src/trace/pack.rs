//! The storage of sections: plain, as zstd frames, or in columns.
//!
//! # Invariants
//! - Unpacking returns exactly the length that a frame's header states, and allocates no more than
//!   a few times that.

use std::cell::RefCell;
use std::fmt;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

use super::Compression;
use super::bytes::{Cursor, Malformed, ParseResult, put_varint};
use super::codec::Codec;
use super::columns::{COLUMNS, Columns, GROWTH, SLACK, join};

/// The size up to which both codecs are tried. Above it, columns have always been smaller.
const SMALL_BYTES: usize = 1 << 14;
/// The size below which columns are stored uncompressed.
const TINY_BYTES: usize = 32;
const BAD_ZSTD: &str = "a compressed section cannot be decompressed";

/// Packs sections. Its tables are reused from one frame to the next.
pub(super) struct Packer {
    zstd: Option<Compressor<'static>>,
    columns: Columns,
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer").field("compresses", &self.zstd.is_some()).finish_non_exhaustive()
    }
}

impl Packer {
    pub(super) fn new(compression: Compression) -> io::Result<Self> {
        let zstd = match compression {
            Compression::None => None,
            Compression::Zstd(level) => Some(Compressor::new(level)?),
        };
        Ok(Self { zstd, columns: Columns::default() })
    }

    /// Returns the stored sections of a frame, and their codec.
    pub(super) fn sections(&mut self, sections: [&[u8]; 3]) -> io::Result<(Codec, [Vec<u8>; 3])> {
        let [directory, neutral, points] = sections;
        let Self { zstd: Some(zstd), columns } = self else {
            return Ok((Codec::Plain, sections.map(<[u8]>::to_vec)));
        };
        let (directory, neutral) = (compress(zstd, directory)?, compress(zstd, neutral)?);
        let mut packed = None;
        if columns.split(points) {
            packed = Some((Codec::Columns, pack_columns(zstd, columns)?));
        }
        // No section becomes much larger than before, whatever its content.
        let is_good = |stored: &[u8]| points.len() > SMALL_BYTES && stored.len() < points.len();
        if !packed.as_ref().is_some_and(|(_, stored)| is_good(stored)) {
            let other = compress(zstd, points)?;
            if packed.as_ref().is_none_or(|(_, stored)| stored.len() >= other.len()) {
                packed = Some((Codec::Zstd, other));
            }
        }
        let (codec, points) = packed.unwrap_or((Codec::Zstd, Vec::new()));
        Ok((codec, [directory, neutral, points]))
    }
}

fn compress(zstd: &mut Compressor<'_>, bytes: &[u8]) -> io::Result<Vec<u8>> {
    if bytes.is_empty() { Ok(Vec::new()) } else { zstd.compress(bytes) }
}

/// Concatenates the columns, each as a zstd frame or uncompressed, after a table of their lengths.
fn pack_columns(zstd: &mut Compressor<'_>, columns: &Columns) -> io::Result<Vec<u8>> {
    let mut table = Vec::new();
    let mut body = Vec::new();
    for column in columns.all() {
        let packed =
            if column.len() < TINY_BYTES { column.clone() } else { zstd.compress(column)? };
        let stored = if packed.len() < column.len() { &packed } else { column };
        put_varint(&mut table, column.len() as u64);
        put_varint(&mut table, stored.len() as u64);
        body.extend_from_slice(stored);
    }
    table.extend_from_slice(&body);
    Ok(table)
}

/// Restores a section of `bytes` bytes.
pub(super) fn unpack(codec: Codec, stored: &[u8], bytes: usize) -> ParseResult<Vec<u8>> {
    let bad = |what| Err(Malformed { at: 0, what });
    match codec {
        _ if stored.is_empty() && bytes == 0 => Ok(Vec::new()),
        Codec::Plain if stored.len() == bytes => Ok(stored.to_vec()),
        Codec::Plain => bad("a plain section has two different lengths"),
        Codec::Zstd => with_zstd(|zstd| decompress(zstd, stored, bytes, 1)),
        Codec::Columns => join(&unpack_columns(stored, bytes)?, bytes),
    }
}

thread_local! {
    /// A decompressor for each thread, since creating one takes as long as decompressing a small
    /// frame.
    static ZSTD: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Runs `f` with the thread's decompressor.
fn with_zstd<T>(f: impl FnOnce(&mut Decompressor<'static>) -> ParseResult<T>) -> ParseResult<T> {
    ZSTD.with_borrow_mut(|zstd| match zstd {
        Some(zstd) => f(zstd),
        none => {
            let new = Decompressor::new().map_err(|_| Malformed { at: 0, what: BAD_ZSTD })?;
            f(none.insert(new))
        }
    })
}

/// Decompresses a zstd frame. The buffer has capacity for `spare` extra bytes, at least 1, so that
/// a longer frame is noticed.
fn decompress(
    zstd: &mut Decompressor<'_>,
    stored: &[u8],
    bytes: usize,
    spare: usize,
) -> ParseResult<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes + spare);
    match zstd.decompress_to_buffer(stored, &mut out) {
        Ok(_) if out.len() == bytes => Ok(out),
        Ok(_) => {
            let what = "the length of a compressed section differs from its header";
            Err(Malformed { at: 0, what })
        }
        Err(_) => Err(Malformed { at: 0, what: BAD_ZSTD }),
    }
}

/// Restores the columns of a payload of `bytes` bytes, each followed by its zeros.
fn unpack_columns(stored: &[u8], bytes: usize) -> ParseResult<[Vec<u8>; COLUMNS]> {
    let mut cursor = Cursor::new(stored);
    let mut lengths = [(0, 0); COLUMNS];
    let mut left = bytes.saturating_mul(GROWTH).saturating_add(COLUMNS);
    for (bytes, stored) in &mut lengths {
        (*bytes, *stored) = (cursor.varint32()? as usize, cursor.varint32()? as usize);
        let Some(rest) = left.checked_sub(*bytes) else {
            return cursor.fail("the columns are larger than their payload can be");
        };
        left = rest;
    }
    let mut columns = [const { Vec::new() }; COLUMNS];
    with_zstd(|zstd| {
        for (column, (bytes, stored)) in columns.iter_mut().zip(lengths) {
            let packed = cursor.take(stored)?;
            if stored == bytes {
                column.reserve_exact(bytes + SLACK);
                column.extend_from_slice(packed);
            } else {
                *column = decompress(zstd, packed, bytes, SLACK)?;
            }
            column.resize(bytes + SLACK, 0);
        }
        Ok(())
    })?;
    if cursor.is_at_end() { Ok(columns) } else { cursor.fail("the columns have trailing bytes") }
}
