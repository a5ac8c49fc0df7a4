//! Tests of what samples wait on: written once, stated when it changes, refused if it does not
//! exist.

use super::*;
use crate::trace::fuzz_entry;
use crate::trace::object::{Neutral, SampleFields, TracePoint};
use traceprof_abi::storage::log::flags::WALL;

/// Creates a sample of time that a thread sleeps in a system call.
fn sleeping(time_ns: u64, waits_on: Option<TextId>) -> Sample {
    let state = RunState::Sleeping as u8;
    Sample { flags: WALL, weight: 20_000, state, syscall: Some(232), waits_on, ..sample(time_ns) }
}

/// Returns the size and the content of the trace of a thread that sleeps and runs in turn.
fn in_turn(waits: bool, compress: Compression) -> (usize, LoadedTrace) {
    let (mut writer, data, _) = memory_writer(WriterOptions { compress, ..Default::default() });
    let ids = locations(&mut writer, 1);
    let id = writer.thread(&thread(1)).unwrap();
    let text = writer.text("eventpoll").unwrap();
    assert_eq!(writer.text("eventpoll").unwrap(), text);
    for n in 0..300 {
        writer.sample(id, &sleeping(2 * n, waits.then_some(text)), &ids[..1]).unwrap();
        writer.sample(id, &sample(2 * n + 1), &ids[..1]).unwrap();
    }
    writer.finish().unwrap();
    (data.bytes().len(), load_bytes(&data.bytes()).unwrap())
}

#[test]
fn what_a_sample_waits_on_costs_bytes_when_it_changes_only() {
    for compress in [Compression::None, Compression::Zstd(3)] {
        let [(with, trace), (without, empty)] = [true, false].map(|it| in_turn(it, compress));
        // One more byte in the presence word of the first sample, and its id.
        assert!(with - without <= 8, "{with} {without}");
        let text = |waits_on: Option<TextId>| waits_on.map(|id| trace.texts[&id].as_str());
        let waited: Vec<_> = samples_of(&trace.threads[0])
            .iter()
            .map(|(sample, _)| (sample.state, text(sample.waits_on)))
            .collect();
        assert_eq!(waited, [(2, Some("eventpoll")), (0, None)].repeat(300));
        assert_eq!((trace.texts.len(), empty.texts.len()), (1, 0));
    }
}

#[test]
fn a_sample_that_waits_on_nothing_says_so_after_one_that_does() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let id = writer.thread(&thread(1)).unwrap();
    let [pipe, file] = ["pipe", "/var/x"].map(|text| Some(writer.text(text).unwrap()));
    let without_call = Sample { syscall: None, ..sleeping(5, file) };
    let mut expected: Vec<_> = [pipe, pipe, None, None, file, pipe]
        .iter()
        .zip(0..)
        .map(|(waits_on, time_ns)| sleeping(time_ns, *waits_on))
        .collect();
    expected.push(without_call);
    expected.push(sleeping(6, pipe));
    for sample in &expected {
        writer.sample(id, sample, &[]).unwrap();
    }
    writer.finish().unwrap();
    let read = samples_of(&load_bytes(&data.bytes()).unwrap().threads[0]);
    assert_eq!(read.into_iter().map(|(sample, _)| sample).collect::<Vec<_>>(), expected);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, data.bytes()).unwrap();
    let objects: Vec<_> = dump_objects(&path).unwrap().map(Result::unwrap).collect();
    let shown: Vec<_> = objects
        .iter()
        .flat_map(|object| &object.fields)
        .filter(|(name, _)| *name == "waits_on")
        .map(|(_, value)| value.clone())
        .collect();
    let number = |text: Option<TextId>| text.map_or(FieldValue::Signed(-1), |id| id.0.into());
    // Unchanged fields are absent.
    assert_eq!(shown, [pipe, None, file, pipe, file].map(number));
}

#[test]
fn measured_wall_clock_time_makes_no_gap_and_no_rhythm() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    writer.set_metadata("period_ns", Value::Unsigned(10)).unwrap();
    let ids = locations(&mut writer, 1);
    let id = writer.thread(&thread(1)).unwrap();
    // It ran without an expiry: nothing else distinguishes the pause from a gap.
    let unseen = |time_ns| Sample { flags: WALL, weight: 1, ..sample(time_ns) };
    for sample in [sample(10), sample(20), unseen(500), sample(900), sample(910)] {
        writer.sample(id, &sample, &ids[..1]).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(load_bytes(&data.bytes()).unwrap().threads[0].roots().count(), 1);
}

/// A thread waited for a processor between two samples; the next check of the wall clock will
/// record it.
#[test]
fn a_wait_that_the_next_check_records_is_no_gap() {
    let roots = |wall_interval_ns: u64, pause_ns: u64| {
        let (mut writer, data, _) = memory_writer(WriterOptions::default());
        for (key, ns) in [("period_ns", 10), ("wall_interval_ns", wall_interval_ns)] {
            writer.set_metadata(key, Value::Unsigned(ns)).unwrap();
        }
        let ids = locations(&mut writer, 1);
        let id = writer.thread(&thread(1)).unwrap();
        for time_ns in [10, 20, 30 + pause_ns, 40 + pause_ns] {
            writer.sample(id, &sample(time_ns), &ids[..1]).unwrap();
        }
        writer.finish().unwrap();
        load_bytes(&data.bytes()).unwrap().threads[0].roots().count()
    };
    assert_eq!((roots(0, 30), roots(0, 0)), (3, 1));
    assert_eq!((roots(40, 30), roots(40, 91), roots(5, 30)), (1, 3, 3));
}

/// Returns the content of a frame with one string and a sample that refers to the string with this
/// number.
fn referring(number: u32) -> Vec<u8> {
    let mut neutral = Vec::new();
    for object in [Neutral::String { id: 0, text: "pipe".into() }, first_thread()] {
        object.encode(&mut neutral);
    }
    let mut points = Vec::new();
    let waits_on = Some(number);
    TracePoint::Sample(SampleFields { time: 1, waits_on, ..Default::default() })
        .encode(&mut points);
    [&[neutral.len() as u8, points.len() as u8], &neutral[..], &points].concat()
}

#[test]
fn a_text_that_does_not_exist_is_found_by_every_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    for (number, exists) in [(0, true), (1, true), (2, false), (u32::MAX, false)] {
        let bytes = fuzz_entry::build_file(&referring(number));
        std::fs::write(&path, &bytes).unwrap();
        let output = dir.path().join(format!("out{number}"));
        for result in [
            load_bytes(&bytes).map(drop),
            verify(&path).map(drop),
            reindex(&path, false).map(drop),
            recover(&path, &output, WriterOptions::default()).map(drop),
        ] {
            match result {
                Ok(()) => assert!(exists, "{number}"),
                Err(TraceError::Corrupt { what, .. }) => {
                    assert!(!exists && what.contains("a missing object"), "{number}: {what}");
                }
                Err(error) => panic!("{number}: {error}"),
            }
        }
    }
    let trace = load_bytes(&fuzz_entry::build_file(&referring(1))).unwrap();
    assert_eq!(trace.texts, [(TextId(0), "pipe".to_owned())].into());
}
