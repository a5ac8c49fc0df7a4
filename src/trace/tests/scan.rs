//! Tests of the full scan against the writer's index and the eager reader.

use std::collections::HashMap;

use proptest::prelude::*;

use super::roundtrip::{any_step, write};
use super::*;
use crate::trace::index::tables::{BlockRow, CallRow, FrameRow, IndexTables};
use crate::trace::scan::scan_frames;
use crate::trace::scanned::Scan;

pub(super) fn scan_bytes(bytes: &[u8], full: bool) -> Result<Scan, TraceError> {
    // With one worker no threads start.
    scan_frames(frames::Frames::new(bytes, Path::new("data"))?, full, 1)
}

/// Reads the journal of a writer into tables.
pub(super) fn journal(index: &[u8]) -> IndexTables {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("idx");
    std::fs::write(&path, index).unwrap();
    let cells: Vec<_> = dump_index(&path).unwrap().map(Result::unwrap).collect();
    let mut tables = IndexTables::default();
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

/// Counts the samples and calls of an eager load.
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
        let bytes = data.bytes();
        let frames = frames::Frames::new(&bytes[..], Path::new("data")).unwrap();
        let full = scan_frames(frames, true, 3).unwrap();
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

/// Writes a trace of eight threads whose stacks change by a random walk over thousands of
/// addresses.
fn large_trace(samples: u64) -> Vec<u8> {
    let (mut writer, memory, _) = memory_writer(WriterOptions::default());
    let ids = super::size::symbols(&mut writer, 20_000);
    let threads: Vec<_> = (0..8).map(|tid| writer.thread(&thread(tid)).unwrap()).collect();
    let mut random = super::size::Random(7);
    let mut stacks = vec![vec![ids[0]; 3]; threads.len()];
    for round in 0..samples / threads.len() as u64 {
        for (thread, stack) in threads.iter().zip(&mut stacks) {
            super::size::walk(stack, &mut random, &ids);
            let time_ns = (1 << 45) + round * 5_025_125 + random.skewed(1 << 17);
            let trace_id = (round / 199 + 1) << 32 | random.below(1 << 16);
            let sample = Sample { trace_id, ..sample(time_ns) };
            writer.sample(*thread, &sample, stack).unwrap();
        }
        if round % 199 == 198 {
            writer.flush().unwrap();
        }
    }
    writer.finish().unwrap();
    memory.bytes()
}

/// Prints the number of decoded bytes that are scanned per second.
/// `cargo test --release --lib scan_speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "the measurement is what it prints")]
fn scan_speed() {
    let bytes = large_trace(4_000_000);
    for (workers, full) in [(1, false), (2, false), (2, true), (4, false)] {
        let frames = frames::Frames::new(&bytes[..], Path::new("data")).unwrap();
        let begin = std::time::Instant::now();
        let scan = scan_frames(frames, full, workers).unwrap();
        let spent = begin.elapsed();
        let mb = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "{workers} workers, all calls {full}: {:.0} MB stored, {:.0} MB decoded, {:.0?}: {:.0} \
             MB/s",
            mb(scan.bytes),
            mb(scan.decoded_bytes),
            spent,
            mb(scan.decoded_bytes) / spent.as_secs_f64(),
        );
    }
}

/// Prints the time of each part of a scan.
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "the measurement is what it prints")]
fn scan_parts() {
    let bytes = large_trace(2_000_000);
    let mut frames = frames::Frames::new(&bytes[..], Path::new("data")).unwrap();
    let mut spent = [std::time::Duration::ZERO; 4];
    let mut walk = crate::trace::walk::BlockWalk::new(false);
    let mut survey = crate::trace::survey::Survey::default();
    let mut objects = 0;
    loop {
        let begin = std::time::Instant::now();
        let Some(stored) = frames.next_stored().unwrap() else { break };
        spent[0] += begin.elapsed();
        let begin = std::time::Instant::now();
        let frame = frame::Frame::decode(stored.header, &stored.body).unwrap();
        spent[1] += begin.elapsed();
        let begin = std::time::Instant::now();
        let blocks = frame.blocks().unwrap();
        spent[2] += begin.elapsed();
        let begin = std::time::Instant::now();
        for (at, entry) in &blocks {
            if entry.stream != NO_THREAD {
                let bytes = &frame.payload[*at..*at + entry.bytes as usize];
                objects += walk.block(entry, bytes, *at, &mut survey).unwrap().children.len();
            }
        }
        spent[3] += begin.elapsed();
    }
    println!(
        "{objects} read {:?}, decode {:?}, directory {:?}, walk {:?}",
        spent[0], spent[1], spent[2], spent[3]
    );
}
