//! Replays the corpora of the fuzz targets.

use std::fs;

use proptest::prelude::*;

use super::crash::{all, small_trace};
use super::*;
use crate::trace::fuzz_entry;
use crate::trace::object::{Neutral, SampleFields, TracePoint};

const CORPORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus");

fn replay(target: &str, probe: fn(&[u8])) {
    let mut count = 0;
    for file in fs::read_dir(Path::new(CORPORA).join(target)).unwrap() {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        // The name identifies the file if the probe panics.
        let held = std::panic::catch_unwind(|| probe(&bytes));
        assert!(held.is_ok(), "{}", path.display());
        count += 1;
    }
    assert!(count > 2, "the corpus of {target} is not there");
}

#[test]
fn frames_that_were_found_hold() {
    replay("frame", fuzz_entry::frame);
}

#[test]
fn blocks_that_were_found_hold() {
    replay("block", fuzz_entry::block);
}

#[test]
fn indices_that_were_found_hold() {
    replay("index", fuzz_entry::index);
}

#[test]
fn lazy_reads_that_were_found_hold() {
    replay("lazy", fuzz_entry::lazy);
}

/// Detects a change of the format that the writer and the readers make together: old traces must
/// read like current ones.
#[test]
fn traces_that_were_written_once_read_as_those_of_today() {
    for (name, compress) in [("plain", Compression::None), ("zstd", Compression::Zstd(3))] {
        let kept = fs::read(Path::new(CORPORA).join("frame").join(name)).unwrap();
        let kept = load_bytes(&[&file_header(DATA_MAGIC)[..], &kept].concat()).unwrap();
        let today = load_bytes(&small_trace(compress).0).unwrap();
        assert!(kept.closed && kept.notices.is_empty(), "{name}: {:?}", kept.notices);
        assert_eq!(all(&kept), all(&today), "{name}");
        assert_eq!(kept.locations, today.locations, "{name}");
    }
}

#[test]
fn files_built_from_contents_are_readable() {
    for content in &contents() {
        let bytes = fuzz_entry::build_file(content);
        let trace = load_bytes(&bytes).unwrap();
        assert!(trace.closed && trace.threads[0].sample_count() >= 2);
    }
}

/// Returns valid contents of frames: one frame with all common objects, three with calls that
/// continue, one with samples that wait, one with samples that have contexts.
fn contents() -> [Vec<u8>; 4] {
    let mut neutral = Vec::new();
    for object in [
        Neutral::String { id: 0, text: "m".into() },
        Neutral::Module { id: 0, path: 0, build_id: vec![1] },
        Neutral::Method { id: 0, module: 0, start_svma: 1, name: 0, line: 9, column: 8 },
        Neutral::Location {
            id: 0,
            method: 0,
            svma: 2,
            file: 0,
            line: 3,
            column: 200,
            inline_parent: NONE,
            frame_kind: 16,
        },
        first_thread(),
        Neutral::Metadata { id: 0, key: "k".into(), value: Value::Unsigned(1) },
        Neutral::StackNode { id: 0, parent: NONE, location: 0 },
        Neutral::CallTrace { id: 0, trace_id: 9, node: 0, end_reason: 0 },
    ] {
        object.encode(&mut neutral);
    }
    let sample =
        |time| TracePoint::Sample(SampleFields { time, slot: Some(3), ..Default::default() });
    let call = TracePoint::Call { location: 0 };
    let frame = |neutral: &[u8], points: &[TracePoint]| {
        let mut bytes = Vec::new();
        points.iter().for_each(|point| point.encode(&mut bytes));
        [&[neutral.len() as u8, bytes.len() as u8], neutral, &bytes].concat()
    };
    let one = [
        TracePoint::ThreadStart { time_ns: 1 },
        call,
        sample(5),
        TracePoint::Site { location: 0 },
        sample(2),
        TracePoint::Footer { run: 1, unfinished: false },
        TracePoint::Gap { before: 0, length: 4 },
        TracePoint::ThreadExit { time_ns: 20 },
    ];
    let first = frame(&neutral, &one);
    let second = [
        frame(&neutral, &[call, call, sample(1)]),
        frame(&[], &[sample(1), TracePoint::OuterSite { up: 1, location: 0 }, sample(4)]),
        frame(&[], &[TracePoint::Footer { run: 2, unfinished: true }]),
    ];
    let third =
        [call, TracePoint::Sample(waiting(3, Some(1))), TracePoint::Sample(waiting(4, None))];
    let fourth = [call, TracePoint::Sample(in_span(3)), sample(4), TracePoint::Sample(in_span(5))];
    [first, second.concat(), frame(&neutral, &third), frame(&neutral, &fourth)]
}

fn waiting(time: i64, waits_on: Option<u32>) -> SampleFields {
    SampleFields {
        time,
        flags: Some(32),
        state: Some(2),
        syscall: Some(1),
        waits_on,
        ..SampleFields::default()
    }
}

fn in_span(time: i64) -> SampleFields {
    SampleFields {
        time,
        span: Some(u64::MAX),
        root_span: Some(1 << 40),
        root_high: Some(300),
        tags: Some([Some(1), None, Some(u32::MAX), None, None, None, None, None, None, Some(0)]),
        ..SampleFields::default()
    }
}

/// Writes the seeds; findings of the fuzzers are added by hand.
/// `cargo test --lib seeds_of_the_corpora -- --ignored`
#[test]
#[ignore = "writes into the source tree"]
fn seeds_of_the_corpora() {
    let put = |target: &str, name: &str, bytes: &[u8]| {
        fs::write(Path::new(CORPORA).join(target).join(name), bytes).unwrap();
    };
    let [first, second, waiting, contexts] = contents();
    for target in ["block", "lazy"] {
        put(target, "waiting", &waiting);
        put(target, "contexts", &contexts);
        put(target, "one-frame", &first);
        put(target, "three-frames", &second);
        put(target, "cut-off", &second[..second.len() / 2]);
    }
    for (name, compress) in [("plain", Compression::None), ("zstd", Compression::Zstd(3))] {
        let (data, journal, ends) = small_trace(compress);
        put("frame", name, &data[HEADER_BYTES..]);
        put("frame", &format!("{name}-cut-off"), &data[HEADER_BYTES..ends[1].0 - 9]);
        let cells = &journal[HEADER_BYTES + 2 * index::CELL_BYTES..];
        put("index", &format!("{name}-journal"), &[&[0], cells].concat());
        // The cells after the GROUP of the first frame.
        put("index", &format!("{name}-cells"), &[&[1], &cells[index::CELL_BYTES..800]].concat());
    }
    put("frame", "content", &fuzz_entry::build_file(&second)[HEADER_BYTES..]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Does briefly what the fuzzers do, for hosts on which they cannot be built.
    #[test]
    fn seeds_with_a_few_other_bytes_hold(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4), 1..8),
        which in any::<prop::sample::Index>(),
    ) {
        type Probe = fn(&[u8]);
        let targets: [(&str, Probe); 4] = [
            ("frame", fuzz_entry::frame),
            ("block", fuzz_entry::block),
            ("index", fuzz_entry::index),
            ("lazy", fuzz_entry::lazy),
        ];
        let (target, probe) = which.get(&targets);
        let files = fs::read_dir(Path::new(CORPORA).join(target)).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        let mut bytes = fs::read(edits[0].0.get(&files)).unwrap();
        for (place, value, edit) in &edits {
            let at = place.index(bytes.len() + 1);
            match edit {
                0 => bytes.insert(at, *value),
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 => bytes.truncate(at.max(2)),
                _ if at < bytes.len() => bytes[at] = *value,
                _ => {}
            }
        }
        probe(&bytes);
    }
}
