//! Tests of sorted indexes: written, read, damaged, forged.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use proptest::prelude::*;

use super::cell::CELL_BYTES;
use super::paged::SortedIndex;
use super::pages::{CACHED_BYTES, PAGE_BYTES, Pages};
use super::sorted::{self, Stamp};
use super::tables::{
    BlockRow, CallRow, FrameRow, IndexTables, NEUTRAL_KINDS, StreamTables, neutral_kind_index,
};
use super::{Broken, Index, forge};
use crate::trace::codec::Codec;
use crate::trace::frame::{FrameHeader, StoredSection};
use crate::trace::kind::Kind;
use crate::trace::output::Identity;
use crate::trace::{HEADER_BYTES, SIDE};

const FRAME_BYTES: u64 = 1000;

fn first() -> FrameHeader {
    FrameHeader {
        salt: 7,
        offset: 16,
        previous: 0,
        sequence: 0,
        codec: Codec::Zstd,
        flags: 0,
        sections: [StoredSection::default(); 3],
        blocks: 0,
        samples: 0,
        first_ns: 0,
        last_ns: 0,
    }
}

fn offset(frame: u64) -> u64 {
    HEADER_BYTES as u64 + frame * FRAME_BYTES
}

fn position(frame: u64, at: u64) -> u64 {
    offset(frame) << 24 | at
}

/// Creates tables of `frames` frames, `objects` objects of each kind, and a stream for each number
/// of blocks in `streams`.
fn tables(frames: u64, objects: u32, streams: &[u64]) -> IndexTables {
    let mut tables = IndexTables::default();
    for n in 0..frames {
        let end = offset(n) + FRAME_BYTES;
        tables.frames.push(FrameRow { offset: offset(n), end, crc: n as u32 ^ 0x55 });
    }
    for (place, kind) in NEUTRAL_KINDS.iter().enumerate() {
        for id in 0..objects {
            let kind = if *kind == Kind::String && id % 5 == 4 { Kind::LongString } else { *kind };
            // Every third object is there twice.
            for again in 0..=u64::from(id % 3 == 0) {
                let frame = (u64::from(id) + again * 2) % frames;
                let row = (kind, id, position(frame, u64::from(id) * 10 + again));
                tables.neutral[place].push(row);
            }
        }
    }
    for (n, blocks) in streams.iter().enumerate() {
        let id = (n as u32 / 2) | if n % 2 == 1 { SIDE } else { 0 };
        let mut stream = StreamTables::default();
        for block in 0..(*blocks).min(frames) {
            let start = position(block, n as u64 * 100);
            stream.blocks.push(BlockRow {
                first: block % 4 == 0,
                start,
                end: start + 99,
                logical: block * 90,
                first_ns: block * 1000 + n as u64,
                samples: n as u32 * 3,
            });
            let nested = CallRow {
                start: 1 + block * 3,
                end: blocks * 90 - block,
                children: 5,
                samples: block,
                last_ns: 17,
            };
            stream.calls.push(nested);
        }
        let whole = CallRow { start: 0, end: blocks * 90, children: 1, samples: 9, last_ns: 3 };
        stream.calls.push(whole);
        tables.streams.insert(id, stream);
    }
    tables.sort();
    tables
}

fn stamp(tables: &IndexTables) -> Stamp {
    let identity = Identity { salt: 7, uuid: 8 };
    let covered = tables.frames.last().map_or(HEADER_BYTES as u64, |frame| frame.end);
    Stamp { identity, first_crc: first().crc(), covered }
}

fn bytes_of(tables: &IndexTables) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = sorted::write(tables, &stamp(tables), &mut bytes).unwrap();
    assert_eq!(written, bytes.len() as u64);
    bytes
}

/// A file for many variants of an index.
struct ScratchFile(File);

impl ScratchFile {
    fn new() -> Self {
        Self(tempfile::tempfile().unwrap())
    }

    fn put(&mut self, bytes: &[u8]) -> File {
        self.0.set_len(0).unwrap();
        self.0.seek(SeekFrom::Start(0)).unwrap();
        self.0.write_all(bytes).unwrap();
        self.0.try_clone().unwrap()
    }

    fn open(&mut self, bytes: &[u8]) -> Result<Index, Broken> {
        SortedIndex::open(self.put(bytes), bytes.len() as u64, &first()).map(Index::Sorted)
    }
}

/// Reads an index back into tables, row by row.
fn read_back(index: &Index) -> Result<IndexTables, Broken> {
    let mut tables = IndexTables::default();
    for n in 0..index.frame_count() {
        tables.frames.push(index.frame(n)?);
    }
    for (place, kind) in NEUTRAL_KINDS.into_iter().enumerate() {
        for n in 0..index.neutral_rows(kind) {
            tables.neutral[place].push(index.neutral_row(kind, n)?);
        }
    }
    for stream in index.streams()? {
        let mut rows = StreamTables::default();
        for n in 0..index.block_count(stream)? {
            rows.blocks.push(index.block(stream, n)?);
        }
        for n in 0..index.call_count(stream)? {
            rows.calls.push(index.call_row(stream, n)?);
        }
        tables.streams.insert(stream, rows);
    }
    Ok(tables)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_and_found(
        frames in 1u64..40,
        objects in 0u32..60,
        streams in prop::collection::vec(0u64..40, 0..20),
    ) {
        let tables = tables(frames, objects, &streams);
        let index = ScratchFile::new().open(&bytes_of(&tables)).unwrap();
        index.check().unwrap();
        prop_assert_eq!(&read_back(&index).unwrap(), &tables);
        // Both forms give the same results.
        let memory = Index::Tables(tables.clone());
        memory.check().unwrap();
        prop_assert_eq!(index.reach().unwrap(), memory.reach().unwrap());
        for kind in [Kind::String, Kind::Thread, Kind::LongString, Kind::Sample] {
            prop_assert_eq!(index.neutral_count(kind).unwrap(), memory.neutral_count(kind).unwrap());
            for id in 0..objects + 2 {
                let found = index.neutral(kind, id).unwrap();
                prop_assert_eq!(found, memory.neutral(kind, id).unwrap());
                let place = neutral_kind_index(kind).map(|place| &tables.neutral[place]);
                let by_hand = place.and_then(|rows| rows.iter().rfind(|row| row.1 == id));
                prop_assert_eq!(found, by_hand.map(|row| (row.0, row.2)));
            }
        }
        for (stream, rows) in &tables.streams {
            for logical in 0..400 {
                let found = index.block_at(*stream, logical).unwrap();
                prop_assert_eq!(found, memory.block_at(*stream, logical).unwrap());
                let by_hand = rows.blocks.iter().rposition(|block| block.logical <= logical);
                prop_assert_eq!(found, by_hand.map(|n| n as u64));
                let call = index.call(*stream, logical).unwrap();
                prop_assert_eq!(call, rows.calls.iter().find(|call| call.start == logical).copied());
            }
            let time_ns = 5500;
            let found = index.block_at_time(*stream, time_ns).unwrap();
            let by_hand = rows.blocks.iter().rposition(|block| block.first_ns <= time_ns);
            prop_assert_eq!(found, by_hand.map(|n| n as u64));
        }
        for at in (0..offset(frames) + 5).step_by(333) {
            let by_hand = tables.frames.iter().find(|row| row.offset <= at && at < row.end);
            prop_assert_eq!(index.frame_at(at).unwrap(), by_hand.copied());
        }
        prop_assert_eq!(index.block_count(99).unwrap(), 0);
        prop_assert!(index.frame(frames).is_err() && index.block(99, 0).is_err());
    }

    #[test]
    fn forged_cells_never_panic(
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), 0usize..4, prop_oneof![0u64..100, any::<u64>()]), 1..5),
    ) {
        let mut bytes = bytes_of(&tables(6, 7, &[3, 0, 6]));
        let cells: Vec<_> = forge::cells(&bytes).collect();
        let pages = bytes.len() - 8 - 3 * CELL_BYTES;
        for (place, field, value) in edits {
            let at = cells[place.index(cells.len())];
            if at < pages {
                forge::set(&mut bytes, at, field, value);
            }
        }
        forge::reseal(&mut bytes);
        let mut place = ScratchFile::new();
        if let Ok(index) = place.open(&bytes) {
            let sound = index.check();
            if let Ok(rows) = read_back(&index) {
                // Rows that pass the check are in order, so they can be found.
                for (stream, rows) in rows.streams.iter().filter(|_| sound.is_ok()) {
                    for call in &rows.calls {
                        prop_assert_eq!(index.call(*stream, call.start), Ok(Some(*call)));
                    }
                }
            }
        }
    }
}

#[test]
fn an_index_that_is_cut_off_is_refused() {
    let bytes = bytes_of(&tables(5, 4, &[2, 5, 1]));
    let mut place = ScratchFile::new();
    for len in 0..bytes.len() {
        assert!(place.open(&bytes[..len]).is_err(), "{len}");
    }
    place.open(&bytes).unwrap().check().unwrap();
    assert!(place.open(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn an_index_that_is_cut_off_while_it_is_open_is_an_error() {
    let tables = tables(40, 300, &[30; 40]);
    let bytes = bytes_of(&tables);
    let mut place = ScratchFile::new();
    for len in (0..bytes.len()).step_by(9001) {
        let file = place.put(&bytes);
        let index = SortedIndex::open(file, bytes.len() as u64, &first()).unwrap();
        place.0.set_len(len as u64).unwrap();
        match read_back(&Index::Sorted(index)) {
            // Only the checksums and the end are cut off, and they were read before.
            Ok(read) => assert!(read == tables && len + 21 * 99 > bytes.len(), "{len}"),
            Err(broken) => assert_eq!(broken.what, "the index cannot be read"),
        }
    }
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let mut bytes = bytes_of(&tables(5, 4, &[2, 5, 1]));
    let mut place = ScratchFile::new();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let noticed = place.open(&bytes).is_err_and(|broken| broken.offset <= bytes.len() as u64);
        assert!(noticed, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(place.open(&bytes).is_ok());
}

/// Edits that an attacker may make to a sorted index, with the checksums recomputed.
#[test]
fn a_forged_index_is_found_out_by_the_check() {
    let bytes = bytes_of(&tables(6, 7, &[3, 4, 6]));
    let cell = |at: usize| super::cell::RawCell::decode(&bytes[at..]);
    let of_kind =
        |kind: Kind| forge::cells(&bytes).filter(move |at| cell(*at).is(kind)).collect::<Vec<_>>();
    let mut place = ScratchFile::new();
    let mut refused = |what: &str, edit: &dyn Fn(&mut Vec<u8>)| {
        let mut forged = bytes.clone();
        edit(&mut forged);
        forge::reseal(&mut forged);
        assert!(forged != bytes, "{what}");
        let found = place.open(&forged).and_then(|index| index.check());
        assert!(found.is_err(), "{what}");
    };
    let swap = |bytes: &mut Vec<u8>, a: usize, b: usize, len: usize| {
        for n in 0..len {
            bytes.swap(a + n, b + n);
        }
    };
    let tables_at = of_kind(Kind::Table);
    let (frames, blocks) = (of_kind(Kind::Frame), of_kind(Kind::BlockStart));
    let (parts, calls) = (of_kind(Kind::BlockPart), of_kind(Kind::Call));
    let methods = of_kind(Kind::Method);
    for at in &tables_at {
        refused("another kind of table", &|bytes| forge::set(bytes, *at, 0, 42));
        refused("a moved table", &|bytes| forge::set(bytes, *at, 2, cell(*at).start + 21));
        for cells in [1, 2, u64::MAX, 1 << 60, 1 << 40] {
            let more = cell(*at).end.wrapping_add(cells);
            refused("a long table", &|bytes| forge::set(bytes, *at, 3, more));
        }
    }
    refused("shuffled tables", &|bytes| swap(bytes, tables_at[12], tables_at[14], 2 * CELL_BYTES));
    refused("shuffled frames", &|bytes| swap(bytes, frames[1], frames[3], CELL_BYTES));
    refused("a frame twice", &|bytes| bytes.copy_within(frames[1]..frames[2], frames[2]));
    refused("overlapping frames", &|bytes| forge::set(bytes, frames[1], 3, offset(2) + 1));
    refused("a frame beyond the data", &|bytes| forge::set(bytes, frames[5], 3, offset(7)));
    refused("a frame of nothing", &|bytes| forge::set(bytes, frames[1], 3, offset(1)));
    refused("a frame backwards", &|bytes| forge::set(bytes, frames[1], 3, 0));
    refused("shuffled objects", &|bytes| swap(bytes, methods[1], methods[3], CELL_BYTES));
    refused("an object twice", &|bytes| bytes.copy_within(methods[1]..methods[2], methods[2]));
    refused("an object in no frame", &|bytes| forge::set(bytes, methods[1], 2, 5));
    refused("an object beyond all", &|bytes| forge::set(bytes, methods[1], 2, u64::MAX));
    refused("a missing id", &|bytes| forge::set(bytes, methods[2], 1, 0));
    refused("another kind of object", &|bytes| {
        forge::set(bytes, methods[1], 0, Kind::Module as u64);
    });
    refused("shuffled blocks", &|bytes| swap(bytes, parts[0], parts[1], 2 * CELL_BYTES));
    refused("a block of another stream", &|bytes| forge::set(bytes, blocks[0], 1, 77));
    refused("a block backwards", &|bytes| forge::set(bytes, parts[0], 3, position(0, 0)));
    refused("overlapping blocks", &|bytes| forge::set(bytes, blocks[0], 3, cell(parts[0]).start));
    refused("a block in no frame", &|bytes| {
        forge::set(bytes, parts[0], 2, cell(parts[0]).start - 1);
    });
    refused("a block without its span", &|bytes| {
        forge::set(bytes, parts[0] + CELL_BYTES, 0, Kind::BlockPart as u64);
    });
    refused("a block back in its stream", &|bytes| forge::set(bytes, parts[1] + CELL_BYTES, 2, 1));
    refused("a block back in time", &|bytes| forge::set(bytes, parts[1] + CELL_BYTES, 3, 1));
    refused("shuffled calls", &|bytes| swap(bytes, calls[1], calls[2], 2 * CELL_BYTES));
    refused("a call twice", &|bytes| {
        bytes.copy_within(calls[1]..calls[1] + 2 * CELL_BYTES, calls[2]);
    });
    refused("a call backwards", &|bytes| forge::set(bytes, calls[2], 3, 0));
    refused("overlapping calls", &|bytes| forge::set(bytes, calls[2], 3, cell(calls[1]).end + 1));
}

#[test]
fn false_counts_allocate_nothing() {
    let tables = tables(3, 2, &[1]);
    let bytes = bytes_of(&tables);
    let seal_at = bytes.len() - 8 - 2 * CELL_BYTES;
    let mut place = ScratchFile::new();
    for field in [2, 3] {
        for value in [0, 1, 2, 1 << 20, 1 << 40, u64::MAX / 21, u64::MAX] {
            let mut forged = bytes.clone();
            forge::set(&mut forged, seal_at, field, value);
            if forged != bytes {
                assert!(place.open(&forged).is_err(), "{field} {value}");
            }
        }
    }
}

#[test]
fn ten_thousand_streams_are_found_in_little_memory() {
    let tables = tables(12, 3000, &vec![11; 10_000]);
    let bytes = bytes_of(&tables);
    assert!(bytes.len() > 2 * CACHED_BYTES);
    let index = ScratchFile::new().open(&bytes).unwrap();
    index.check().unwrap();
    assert_eq!(index.streams().unwrap().len(), 10_000);
    for (stream, rows) in tables.streams.iter().rev().step_by(97) {
        assert_eq!(index.block_count(*stream), Ok(11));
        assert_eq!(index.block(*stream, 10).unwrap(), rows.blocks[10]);
        assert_eq!(index.call(*stream, 0).unwrap(), Some(rows.calls[0]));
    }
    let Index::Sorted(index) = index else { unreachable!() };
    assert!(index.cached_bytes() <= CACHED_BYTES);
}

#[test]
fn pages_read_the_same_at_any_offset() {
    let bytes = bytes_of(&tables(40, 300, &[30; 40]));
    assert!(bytes.len() > 5 * 4 * PAGE_BYTES);
    let pages = Pages::open(ScratchFile::new().put(&bytes), bytes.len() as u64).unwrap();
    let end = pages.end() as usize;
    for at in (0..end - 99).step_by(61).chain(end - 120..end - 98) {
        assert_eq!(pages.read::<99>(at as u64).unwrap(), bytes[at..at + 99], "{at}");
    }
    assert!(pages.read::<99>(end as u64 - 98).is_err());
    assert!(pages.read::<99>(u64::MAX - 3).is_err());
}

#[test]
#[ignore = "a measurement, for release builds"]
#[expect(clippy::print_stdout, reason = "it is there to be read")]
fn time_of_opening_and_of_rows() {
    use std::time::Instant;
    let tables = tables(12_000, 300_000, &[10_000; 40]);
    let begun = Instant::now();
    let bytes = bytes_of(&tables);
    println!("writing {} bytes: {:?}", bytes.len(), begun.elapsed());
    let mut place = ScratchFile::new();
    place.put(&bytes);
    let begun = Instant::now();
    let file = place.0.try_clone().unwrap();
    let index = SortedIndex::open(file, bytes.len() as u64, &first()).map(Index::Sorted).unwrap();
    println!("opening: {:?}", begun.elapsed());
    let time = |what: &str, count: u64, read: &dyn Fn(u64)| {
        let begun = Instant::now();
        (0..count).for_each(read);
        println!("{what}: {:?}", begun.elapsed() / count as u32);
    };
    time("a block, cached", 1_000_000, &|n| {
        index.block(3, n % 300).unwrap();
    });
    time("a block, anywhere", 100_000, &|n| {
        index.block(n as u32 % 20, n * 7919 % 10_000).unwrap();
    });
    time("an object by its id", 100_000, &|n| {
        index.neutral(Kind::Location, (n * 7919 % 300_000) as u32).unwrap();
    });
    time("a call by its start", 10_000, &|n| {
        index.call(3, 1 + 3 * (n * 7919 % 10_000)).unwrap();
    });
    let begun = Instant::now();
    index.check().unwrap();
    println!("checking all: {:?}", begun.elapsed());
}
