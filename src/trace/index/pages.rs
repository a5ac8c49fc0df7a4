//! The pages of a sorted index file.
//!
//! Pages are read with `pread` into our own memory and not mapped: if a file is truncated while it
//! is mapped, the process gets SIGBUS; here that is an ordinary error.
//!
//! # Invariants
//! - No byte is returned before the checksum of its page was compared.
//! - The memory use is four bytes per page and at most 4 MiB of pages.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::broken::Broken;
use super::cell::{CELL_BYTES, RawCell, UNUSED};
use crate::trace::INDEX_MAGIC;
use crate::trace::kind::Kind;

/// The size of a page in bytes.
pub(in crate::trace) const PAGE_BYTES: usize = 4096;
/// The number of pages in one read.
const CHUNK_PAGES: usize = 4;
const CHUNK_BYTES: usize = CHUNK_PAGES * PAGE_BYTES;
/// The number of sets in the cache. A chunk may be in any of the `WAYS` slots of its set.
const SETS: usize = 64;
const WAYS: usize = 4;
/// The most bytes of pages in the cache.
#[cfg(test)]
pub(super) const CACHED_BYTES: usize = SETS * WAYS * CHUNK_BYTES;
/// The most pages of an index, 4 GiB in all: opening an index reads the checksums of all pages.
const MAX_PAGES: u64 = 1 << 20;
/// The most bytes before the checksums.
pub(super) const MAX_BYTES: u64 = MAX_PAGES * PAGE_BYTES as u64;
/// The size in bytes of the SEAL, the EOF and the magic.
pub(super) const TAIL_BYTES: u64 = 2 * CELL_BYTES as u64 + 8;

/// The pages of an open index file.
#[derive(Debug)]
pub(in crate::trace) struct Pages {
    file: File,
    /// The offset of the first PAGE cell, which is the end of the pages.
    end: u64,
    checksums: Vec<u32>,
    cache: Mutex<PageCache>,
}

impl Pages {
    /// Reads the end of an index file of `bytes` bytes and the checksums of its pages.
    pub(super) fn open(file: File, bytes: u64) -> Result<Self, Broken> {
        let Some(tail_at) = bytes.checked_sub(TAIL_BYTES) else {
            return Broken::at(0, "the index is too short");
        };
        let mut tail = [0; TAIL_BYTES as usize];
        read_at(&file, &mut tail, tail_at)?;
        let (seal, rest) = tail.split_at(CELL_BYTES);
        let eof = RawCell::decode(rest);
        let ends = eof.is(Kind::Eof) && (eof.id, eof.start, eof.end) == (u32::MAX, UNUSED, UNUSED);
        if !ends || rest[CELL_BYTES..] != INDEX_MAGIC.to_be_bytes() {
            return Broken::at(tail_at, "the index has no end");
        }
        let seal_cell = RawCell::decode(seal);
        let (end, pages) = (seal_cell.start, seal_cell.end);
        if !seal_cell.is(Kind::Seal) || pages > MAX_PAGES {
            return Broken::at(tail_at, "the index has no seal");
        }
        let sealed = end.checked_add(pages * CELL_BYTES as u64);
        if sealed != Some(tail_at) || pages != end.div_ceil(PAGE_BYTES as u64) {
            return Broken::at(tail_at, "the seal does not match the index");
        }
        let checksums = read_checksums(&file, end, pages, seal)?;
        Ok(Self { file, end, checksums, cache: Mutex::default() })
    }

    /// Returns the offset of the end of the pages.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Reads `N` bytes at `offset`.
    pub(super) fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Broken> {
        let end = offset.checked_add(N as u64).filter(|end| *end <= self.end);
        let Some(end) = end else {
            return Broken::at(offset, "a table extends beyond the index");
        };
        let mut read = [0; N];
        let mut at = offset;
        let mut cache = self.cache();
        while at < end {
            let chunk = cache.chunk(self, at / CHUNK_BYTES as u64)?;
            let within = (at % CHUNK_BYTES as u64) as usize;
            let taken = (CHUNK_BYTES - within).min((end - at) as usize);
            let to = (at - offset) as usize;
            // Only the last chunk is short, and `end` is not beyond the pages.
            read[to..to + taken].copy_from_slice(&chunk[within..within + taken]);
            at += taken as u64;
        }
        Ok(read)
    }

    /// Returns the number of bytes of cached pages.
    #[cfg(test)]
    pub(super) fn cached_bytes(&self) -> usize {
        self.cache().ways.iter().map(|way| way.bytes.capacity()).sum()
    }

    fn cache(&self) -> MutexGuard<'_, PageCache> {
        // A way whose read panicked has no chunk, so the cache is consistent.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a chunk and compares its pages with their checksums.
    fn load(&self, chunk: u64, bytes: &mut Vec<u8>) -> Result<(), Broken> {
        let start = chunk * CHUNK_BYTES as u64;
        let len = (self.end - start).min(CHUNK_BYTES as u64) as usize;
        bytes.resize(len, 0);
        read_at(&self.file, bytes, start)?;
        let first = chunk as usize * CHUNK_PAGES;
        let pages = bytes.chunks(PAGE_BYTES).zip(&self.checksums[first..]);
        for (place, (page, checksum)) in pages.enumerate() {
            if crc32fast::hash(page) != *checksum {
                let offset = start + (place * PAGE_BYTES) as u64;
                return Broken::at(offset, "the checksum of a page is wrong");
            }
        }
        Ok(())
    }
}

/// Reads `pages` PAGE cells at `at` and compares them with the seal that follows.
fn read_checksums(file: &File, at: u64, pages: u64, seal: &[u8]) -> Result<Vec<u32>, Broken> {
    let unreadable = |_| Broken { offset: at, what: "the index cannot be read" };
    let mut input = BufReader::with_capacity(1 << 16, file);
    input.seek(SeekFrom::Start(at)).map_err(unreadable)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut checksums = Vec::with_capacity(pages as usize);
    for page in 0..pages {
        let mut bytes = [0; CELL_BYTES];
        input.read_exact(&mut bytes).map_err(unreadable)?;
        hasher.update(&bytes);
        let cell = RawCell::decode(&bytes);
        let start = page * PAGE_BYTES as u64;
        let expected = (start, (at - start).min(PAGE_BYTES as u64));
        if !cell.is(Kind::Page) || (cell.start, cell.end) != expected {
            let offset = at + page * CELL_BYTES as u64;
            return Broken::at(offset, "the checksum cell of a page is wrong");
        }
        checksums.push(cell.id);
    }
    let mut unsealed = seal.to_vec();
    unsealed[1..5].fill(0);
    hasher.update(&unsealed);
    if hasher.finalize() != RawCell::decode(seal).id {
        return Broken::at(at, "the seal of the index is wrong");
    }
    Ok(checksums)
}

fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<(), Broken> {
    let unreadable = |_| Broken { offset, what: "the index cannot be read" };
    file.read_exact_at(bytes, offset).map_err(unreadable)
}

/// The chunks that were read last.
#[derive(Debug, Default)]
struct PageCache {
    ways: Vec<Way>,
    clock: u64,
}

#[derive(Debug, Default)]
struct Way {
    chunk: Option<u64>,
    used: u64,
    bytes: Vec<u8>,
}

impl PageCache {
    /// Returns the bytes of a chunk. If it is not cached, reads it over the least recently used
    /// chunk of its set.
    fn chunk(&mut self, pages: &Pages, chunk: u64) -> Result<&[u8], Broken> {
        if self.ways.is_empty() {
            self.ways.resize_with(SETS * WAYS, Way::default);
        }
        self.clock += 1;
        let first = chunk as usize % SETS * WAYS;
        let set = &mut self.ways[first..first + WAYS];
        let found = set.iter().position(|way| way.chunk == Some(chunk));
        let place = found
            .unwrap_or_else(|| (0..WAYS).min_by_key(|place| set[*place].used).unwrap_or_default());
        let way = &mut set[place];
        if found.is_none() {
            way.chunk = None;
            pages.load(chunk, &mut way.bytes)?;
            way.chunk = Some(chunk);
        }
        way.used = self.clock;
        Ok(&way.bytes)
    }
}
