//! The full scan against the writer's index and the eager reader.

use std::collections::HashMap;

use proptest::prelude::*;

use super::roundtrip::{any_step, write};
use super::*;
use crate::trace::index::tables::{BlockRow, CallRow, FrameRow, Tables};
use crate::trace::scan::{Scan, scan_frames};

pub(super) fn scan_bytes(bytes: &[u8], full: bool) -> Result<Scan, TraceError> {
    scan_frames(frames::Frames::new(bytes, Path::new("data"))?, full, 2)
}

/// The tables that the journal of a writer stands for.
pub(super) fn journal(index: &[u8]) -> Tables {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("idx");
    std::fs::write(&path, index).unwrap();
    let cells: Vec<_> = dump_index(&path).unwrap().map(Result::unwrap).collect();
    let mut tables = Tables::default();
    for (place, cell) in cells.iter().enumerate() {
        let (start, end) = (cell.start as u64, cell.end as u64);
        let next = cells.get(place + 1);
        match Kind::from_number(cell.kind).unwrap() {
            Kind::Frame => tables.frames.push(FrameRow { offset: start, end, crc: cell.id }),
            Kind::BlockStart | Kind::BlockPart if cell.id != NO_THREAD => {
                let span = next.unwrap();
                let row = BlockRow {
                    first: cell.kind == Kind::BlockStart as u8,
                    start,
                    end,
                    logical: span.start as u64,
                    first_ns: span.end as u64,
                    samples: span.id,
                };
                tables.streams.entry(cell.id).or_default().blocks.push(row);
            }
            Kind::Call => {
                let summary = next.unwrap();
                let (children, samples) = (summary.id, summary.start as u64);
                let last_ns = summary.end as u64;
                tables.add_call(cell.id, CallRow { start, end, children, samples, last_ns });
            }
            kind => tables.add_neutral(kind, cell.id, start),
        }
    }
    tables.sort();
    tables
}

/// The samples and calls that an eager load finds.
fn count_nodes(trace: &LoadedTrace) -> (u64, u64) {
    let mut counts = (0, 0);
    for thread in &trace.threads {
        let mut rest: Vec<_> = thread.roots().collect();
        while let Some(node) = rest.pop() {
            match node {
                Node::Call(call) => {
                    counts.1 += 1;
                    rest.extend(call.children());
                }
                Node::Sample(_) => counts.0 += 1,
                _ => {}
            }
        }
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_scan_makes_the_index_that_the_writer_wrote(
        steps in prop::collection::vec(any_step(), 0..120),
        frame_bytes in prop_oneof![Just(1usize), 20usize..400, Just(256 << 10)],
        plain in any::<bool>(),
        collect in any::<bool>(),
    ) {
        let compress = if plain { Compression::None } else { Compression::Zstd(1) };
        let mode = if collect { WriteMode::Collect } else { WriteMode::Streaming };
        let options = WriterOptions {
            frame_bytes, compress, mode, buffer_bytes: 3000, ..WriterOptions::default()
        };
        let (mut writer, data, index) = memory_writer(options);
        writer.set_metadata("period_ns", Value::Unsigned(1000)).unwrap();
        write(&mut writer, &steps);
        writer.finish().unwrap();
        let scan = scan_bytes(&data.bytes(), false).unwrap();
        let expected = journal(&index.bytes());
        prop_assert_eq!(&scan.tables.streams, &expected.streams);
        prop_assert_eq!(&scan.tables, &expected);
        prop_assert!(scan.closed && scan.bad.is_empty() && scan.losses.is_empty());
        prop_assert_eq!(scan.checked, data.bytes().len() as u64);
        let trace = load_bytes(&data.bytes()).unwrap();
        prop_assert_eq!(&scan.metadata, &trace.metadata);
        prop_assert_eq!(scan.threads as usize, trace.threads.len());
        let (samples, calls) = count_nodes(&trace);
        prop_assert_eq!(scan.samples, samples);
        let full = scan_bytes(&data.bytes(), true).unwrap();
        let rows: Vec<_> = full.tables.streams.values().flat_map(|stream| &stream.calls).collect();
        let streams = rows.iter().filter(|row| row.start == 0).count() as u64;
        prop_assert_eq!(rows.len() as u64 - streams, calls);
        // The short list is part of the full one.
        for (stream, tables) in &scan.tables.streams {
            let all: HashMap<_, _> =
                full.tables.streams[stream].calls.iter().map(|row| (row.start, row)).collect();
            prop_assert!(tables.calls.iter().all(|row| all.get(&row.start) == Some(&row)));
        }
    }
}
