//! Tests of invalid files and of outputs that fail.

use std::fs;

use proptest::prelude::*;

use super::*;

/// The end of a frame in the file, and the number of samples of each thread before that.
pub(super) type FrameEnd = (usize, [usize; 2]);

/// Creates a small trace of two threads with several frames. Returns both files and the end of each
/// frame.
pub(super) fn small_trace(compress: Compression) -> (Vec<u8>, Vec<u8>, Vec<FrameEnd>) {
    salted_trace(compress, 1)
}

fn salted_trace(compress: Compression, salt: u64) -> (Vec<u8>, Vec<u8>, Vec<FrameEnd>) {
    let salt = Some(salt);
    let options = WriterOptions { frame_bytes: 1 << 20, compress, salt, ..Default::default() };
    let (mut writer, data, index) = memory_writer(options);
    let ids = locations(&mut writer, 3);
    let threads = [1, 2].map(|tid| writer.thread(&thread(tid)).unwrap());
    let mut ends = Vec::new();
    let mut counts = [0; 2];
    for round in 0..4 {
        for place in 0..12 {
            let which = place % 2;
            let stack: Vec<_> = (0..place % 5).map(|depth| ids[depth * 7 + round]).collect();
            let truncated = Sample { end_reason: u16::from(place == 7), ..sample(place as u64) };
            writer.sample(threads[which], &truncated, &stack).unwrap();
            counts[which] += 1;
        }
        writer.flush().unwrap();
        ends.push((data.bytes().len(), counts));
    }
    writer.finish().unwrap();
    (data.bytes(), index.bytes(), ends)
}

pub(super) fn counts(trace: &LoadedTrace) -> [usize; 2] {
    let count = |place| trace.threads.get(place).map_or(0, ThreadTrace::sample_count);
    [count(0), count(1)]
}

/// Returns the samples of the complete trace, per thread.
pub(super) fn all(trace: &LoadedTrace) -> Vec<Vec<(Sample, Vec<LocationId>)>> {
    trace.threads.iter().map(samples_of).collect()
}

/// Checks that the samples of `part` are the first ones of `whole`.
fn assert_prefix(part: &LoadedTrace, whole: &LoadedTrace) {
    for (part, whole) in all(part).iter().zip(all(whole)) {
        assert_eq!(part[..], whole[..part.len()]);
    }
}

#[test]
fn truncated_anywhere_all_whole_frames_are_there() {
    for compress in [Compression::Zstd(3), Compression::None] {
        let (data, _, ends) = small_trace(compress);
        let whole = load_bytes(&data).unwrap();
        assert!(whole.closed && whole.notices.is_empty());
        for len in 0..data.len() {
            if len < HEADER_BYTES {
                assert!(matches!(load_bytes(&data[..len]), Err(TraceError::NotATrace { .. })));
                continue;
            }
            let trace = load_bytes(&data[..len]).unwrap();
            let last = ends.iter().rev().find(|(end, _)| *end <= len);
            assert_eq!(counts(&trace), last.map_or([0; 2], |(_, counts)| *counts), "at {len}");
            assert!(!trace.closed);
            assert_eq!(trace.notices.len(), 1);
            assert_prefix(&trace, &whole);
        }
    }
}

#[test]
fn a_tail_of_garbage_or_zeros_is_ignored_with_a_notice() {
    let (data, _, ends) = small_trace(Compression::Zstd(3));
    let whole = load_bytes(&data).unwrap();
    for (end, expected) in &ends {
        for tail in [vec![0; 5000], vec![0xff; 7], data[HEADER_BYTES..].to_vec()] {
            let bytes = [&data[..*end], &tail].concat();
            let trace = load_bytes(&bytes).unwrap();
            assert_eq!(counts(&trace), *expected);
            assert!(!trace.closed);
            let ignored = format!("the last {} bytes", tail.len());
            assert!(trace.notices[0].contains(&ignored), "{:?}", trace.notices);
            assert_prefix(&trace, &whole);
        }
    }
    let trace = load_bytes(&[&data[..], b"more"].concat()).unwrap();
    assert!(trace.closed);
    assert_eq!(trace.notices, ["4 bytes after the end of the trace are ignored"]);
}

#[test]
fn frames_of_another_trace_are_not_used() {
    let (data, _, ends) = small_trace(Compression::Zstd(3));
    // Equal except for its salt, so every frame is at the same offset.
    let (twin, _, _) = salted_trace(Compression::Zstd(3), 2);
    assert_eq!(twin.len(), data.len());
    let (end, expected) = ends[1];
    for tail in [&twin[end..], &data[ends[0].0..end]] {
        let trace = load_bytes(&[&data[..end], tail].concat()).unwrap();
        assert_eq!(counts(&trace), expected);
        assert!(trace.notices[0].contains("another file or offset"), "{:?}", trace.notices);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn forged_frames_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        directory in any::<bool>(),
    ) {
        let (data, _, _) = small_trace(Compression::None);
        let forged = forge(&data, &edits, directory);
        let scanned = super::scan::scan_bytes(&forged, false);
        match load_bytes(&forged) {
            Ok(trace) => {
                let loaded: usize = trace.threads.iter().map(ThreadTrace::sample_count).sum();
                let scanned = scanned.unwrap();
                prop_assert_eq!(scanned.samples, loaded as u64);
                prop_assert_eq!(scanned.losses, &trace.losses[..]);
                let _ = all(&trace);
            }
            Err(TraceError::Corrupt { offset, .. }) => {
                prop_assert!(offset < forged.len() as u64);
                prop_assert!(scanned.is_err(), "the scan accepts what the load refuses");
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn arbitrary_files_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = load_bytes(&bytes);
        let _ = load_bytes(&[&file_header(DATA_MAGIC)[..], &bytes].concat());
    }
}

/// Edits the directory or the payload of every frame of a plain file and recomputes the checksums.
fn forge(data: &[u8], edits: &[(prop::sample::Index, u8)], directory: bool) -> Vec<u8> {
    let mut frames = frames::Frames::new(data, Path::new("data")).unwrap();
    let mut forged = data[..HEADER_BYTES].to_vec();
    while let Some(mut frame) = frames.next_frame().unwrap() {
        for (place, value) in edits {
            let section = if directory { &mut frame.directory } else { &mut frame.payload };
            if !section.is_empty() {
                let at = place.index(section.len());
                section[at] = *value;
            }
        }
        forged.extend(sealed(&mut frame));
    }
    forged
}

/// Returns a frame of a plain file as it is stored, with the checksums of its contents.
fn sealed(frame: &mut frame::Frame) -> Vec<u8> {
    let neutral = frame.header.section(codec::SectionKind::Neutral).bytes as usize;
    let (neutral, points) = frame.payload.split_at(neutral);
    let sections = [&frame.directory, neutral, points];
    for (section, bytes) in frame.header.sections.iter_mut().zip(sections) {
        section.crc = crc32fast::hash(bytes);
    }
    let header = frame.header.encode();
    [&header[..], &sections.concat(), &frame::trailer(&frame.header, &header)].concat()
}

/// Other bytes with the right checksums are no damage: either all readers take them or none does,
/// also with an index from before.
#[test]
fn all_readers_agree_on_a_forged_frame() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    let (data, index, ends) = small_trace(Compression::None);
    fs::write(index_path(&path), index).unwrap();
    let mut frames = frames::Frames::new(&data[..], Path::new("data")).unwrap();
    let [_, frame] = [(); 2].map(|()| frames.next_frame().unwrap().unwrap());
    let [before, after] = [&data[..ends[0].0], &data[ends[1].0..]];
    let (mut taken, mut refused) = (0, 0);
    for at in 0..frame.payload.len() {
        let mut forged = frame.clone();
        forged.payload[at] ^= 0x15;
        fs::write(&path, [before, &sealed(&mut forged), after].concat()).unwrap();
        let verified = verify(&path).map(|verified| verified.samples);
        let read = LazyTrace::open(&path).and_then(|trace| {
            let mut samples = 0;
            trace.for_each_sample_as_written(&Window::default(), &mut |_, _, _| samples += 1)?;
            Ok(samples)
        });
        if verified.is_ok() {
            taken += 1
        } else {
            refused += 1
        };
        let text = |error: TraceError| error.to_string();
        assert_eq!(read.map_err(text), verified.map_err(text), "byte {at}");
    }
    assert!(taken > 0 && refused > 0, "{taken} {refused}");
}

#[test]
fn a_false_length_allocates_nothing() {
    let (data, _, _) = small_trace(Compression::Zstd(3));
    let mut frames = frames::Frames::new(&data[..], Path::new("data")).unwrap();
    let mut header = frames.next_frame().unwrap().unwrap().header;
    let limit = MAX_FRAME_BYTES as u32;
    header.sections = [0, 0, limit].map(|n| frame::StoredSection { stored: n, bytes: n, crc: 0 });
    let bytes = [&data[..HEADER_BYTES], &header.encode(), b"short"].concat();
    let trace = load_bytes(&bytes).unwrap();
    assert!(trace.notices[0].contains("truncated"), "{:?}", trace.notices);
    header.sections[1] = frame::StoredSection { stored: 1, bytes: 1, crc: 0 };
    let bytes = [&data[..HEADER_BYTES], &header.encode(), b"short"].concat();
    let trace = load_bytes(&bytes).unwrap();
    assert!(trace.notices[0].contains("too large"), "{:?}", trace.notices);
}

#[test]
fn a_bomb_is_refused_before_it_expands() {
    let bomb = zstd::bulk::compress(&vec![0; 8 << 20], 3).unwrap();
    let section = |bytes| frame::StoredSection {
        stored: bomb.len() as u32,
        bytes,
        crc: crc32fast::hash(&bomb),
    };
    let header = |bytes| frame::FrameHeader {
        salt: 0,
        offset: 16,
        previous: 0,
        sequence: 0,
        codec: codec::Codec::Zstd,
        flags: 0,
        sections: [
            frame::StoredSection::default(),
            frame::StoredSection::default(),
            section(bytes),
        ],
        blocks: 0,
        samples: 0,
        first_ns: 0,
        last_ns: 0,
    };
    // The header either states a false size, or states the true one and is refused.
    assert!(frame::Frame::decode(header(10), &bomb).is_err());
    let honest = header(8 << 20).encode().try_into().unwrap();
    assert!(frame::FrameHeader::decode(&honest).unwrap_err().what.contains("impossibly high"));
}

#[test]
fn files_that_are_no_traces_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let newer = (u128::from(DATA_MAGIC) << 64 | 9 << 32).to_be_bytes();
    for (bytes, expected) in [
        (&b""[..], "is not a trace"),
        (b"PERFILE2 and more than sixteen bytes", "is not a trace"),
        (&[0; 64], "is not a trace"),
        (&newer, "format version 9"),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = load(&path).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!error.is_output_error());
        assert!(dump_objects(&path).is_err() && dump_index(&path).is_err());
    }
    assert!(matches!(load(dir.path()), Err(TraceError::NotATrace { .. })));
    assert!(matches!(load(&dir.path().join("no")), Err(TraceError::Io { writing: false, .. })));
}

#[test]
fn existing_files_are_kept_without_force() {
    let dir = tempfile::tempdir().unwrap();
    let (path, index) = (dir.path().join("a.trace"), dir.path().join("a.trace.idx"));
    let options = WriterOptions { force: true, ..WriterOptions::default() };
    for existing in [&path, &index] {
        fs::write(existing, "precious").unwrap();
        let error = TraceWriter::create(&path, WriterOptions::default()).unwrap_err();
        assert!(matches!(&error, TraceError::Exists { path } if path == existing), "{error}");
        assert!(error.is_output_error() && error.to_string().contains("--force"));
        assert_eq!(fs::read(existing).unwrap(), b"precious");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        TraceWriter::create(&path, options.clone()).unwrap().finish().unwrap();
        assert!(load(&path).unwrap().closed);
        fs::remove_file(&path).unwrap();
        fs::remove_file(&index).unwrap();
    }
}

#[test]
fn devices_and_links_are_never_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    let precious = dir.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    for path in [link.as_path(), Path::new("/dev/full"), dir.path()] {
        for force in [false, true] {
            let options = WriterOptions { force, ..WriterOptions::default() };
            let error = TraceWriter::create(path, options).unwrap_err();
            assert!(error.is_output_error(), "{error}");
        }
    }
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn what_was_flushed_survives_a_writer_that_vanishes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    let mut writer = TraceWriter::create(&path, WriterOptions::default()).unwrap();
    let ids = locations(&mut writer, 3);
    let id = writer.thread(&thread(1)).unwrap();
    for time_ns in 0..50 {
        writer.sample(id, &sample(time_ns), &ids[..4]).unwrap();
        if time_ns == 39 {
            writer.flush().unwrap();
        }
    }
    // Neither finished nor dropped, as after SIGKILL.
    std::mem::forget(writer);
    let trace = load(&path).unwrap();
    assert_eq!(counts(&trace), [40, 0]);
    assert!(!trace.closed && trace.notices.len() == 1);
    let Some(Node::Call(call)) = trace.threads[0].roots().next() else { panic!("no root") };
    assert!(call.unfinished() && call.samples() == 40);
    // The data file alone suffices.
    fs::remove_file(dir.path().join("a.trace.idx")).unwrap();
    assert_eq!(load(&path).unwrap(), trace);
}
