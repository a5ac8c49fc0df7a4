//! Tests of the bytes: the index against the data, and the specification against the code.

use std::fs;

use super::*;

/// Writes a trace to files. Returns its path.
fn written(dir: &Path, compress: Compression) -> PathBuf {
    let path = dir.join("a.trace");
    let options =
        WriterOptions { frame_bytes: 150, compress, force: true, ..WriterOptions::default() };
    let mut writer = TraceWriter::create(&path, options).unwrap();
    let ids = locations(&mut writer, 5);
    let threads = [1, 2].map(|tid| writer.thread(&thread(tid)).unwrap());
    for round in 0..2000usize {
        let depth = round / 50 % 7;
        let stack: Vec<_> = (0..depth).map(|depth| ids[depth]).collect();
        let truncated = Sample { end_reason: u16::from(round % 9 == 0), ..sample(round as u64) };
        writer.sample(threads[round % 2], &truncated, &stack).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn field<'a>(object: &'a Object, name: &str) -> Option<&'a FieldValue> {
    object.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value)
}

fn count_of(objects: &[Object], kind: &str) -> usize {
    objects.iter().filter(|object| object.kind == kind).count()
}

#[test]
fn every_cell_leads_to_its_object() {
    let dir = tempfile::tempdir().unwrap();
    for compress in [Compression::Zstd(3), Compression::None] {
        let path = written(dir.path(), compress);
        let objects: Vec<_> = dump_objects(&path).unwrap().map(Result::unwrap).collect();
        let at = |offset: i64| {
            let found = objects
                .iter()
                .find(|object| object.kind != "FRAME" && object.offset == offset as u64);
            found.unwrap_or_else(|| panic!("nothing at {offset:#x}"))
        };
        let mut path_of_index = path.into_os_string();
        path_of_index.push(".idx");
        let cells: Vec<_> =
            dump_index(Path::new(&path_of_index)).unwrap().map(Result::unwrap).collect();
        // Blocks of thread-neutral objects have no cells in a sorted index.
        let mut blocks = count_of(&objects, "BLOCK_START")
            - objects.iter().filter(|object| field(object, "thread").is_some()).count();
        let mut neutral = 0;
        for cell in &cells {
            match Kind::from_number(cell.kind).unwrap() {
                Kind::BlockStart => {
                    blocks += 1;
                    let start = at(cell.start);
                    assert_eq!((start.kind, at(cell.end).kind), ("BLOCK_START", "BLOCK_END"));
                    let thread = FieldValue::from(cell.id & !SIDE);
                    assert_eq!(field(start, "thread"), Some(&thread));
                }
                Kind::Call => assert!(cell.start < cell.end),
                Kind::Identity | Kind::Eof | Kind::Frame | Kind::BlockSpan => {}
                Kind::CallSummary | Kind::Table | Kind::Page | Kind::Seal => {}
                kind => {
                    neutral += 1;
                    let object = at(cell.start);
                    assert_eq!(object.kind, kind.name());
                    assert_eq!(field(object, "id"), Some(&FieldValue::from(cell.id)));
                    assert_eq!(cell.end, -1);
                }
            }
        }
        assert_eq!(cells.last().map(|cell| cell.kind_name), Some("EOF"));
        let count = |kind| count_of(&objects, kind);
        assert_eq!(blocks, count("BLOCK_START"));
        let neutrals = ["STRING", "MODULE", "METHOD", "CODE_LOCATION", "THREAD", "METADATA"];
        assert_eq!(neutral, neutrals.map(count).iter().sum::<usize>());
        assert!(cells.iter().any(|cell| cell.kind == Kind::Call as u8));
    }
}

/// Finds each call's extent in its thread's stream by hand, and compares it with the cells of the
/// calls that contain a complete block.
#[test]
fn cells_of_calls_hold_their_logical_extents() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), Compression::None);
    let objects: Vec<_> = dump_objects(&path).unwrap().map(Result::unwrap).collect();
    let mut streams: std::collections::HashMap<u32, (u64, Vec<(u64, usize)>)> = Default::default();
    let mut crossing = Vec::new();
    let mut begun_and_ended = 0;
    let mut stream = NO_THREAD;
    let mut blocks = std::collections::HashMap::new();
    for (place, object) in objects.iter().enumerate() {
        let number = |name| match field(object, name) {
            Some(FieldValue::Unsigned(number)) => *number as u32,
            _ => NO_THREAD,
        };
        if object.kind == "BLOCK_START" {
            stream = number("thread") | if number("side") == 1 { SIDE } else { 0 };
            *blocks.entry(stream).or_default() += 1;
            continue;
        }
        let known = ["FRAME", "BLOCK_END", "EOF"];
        if known.contains(&object.kind) || stream == NO_THREAD {
            continue;
        }
        let block: usize = blocks[&stream];
        let (logical, open) = streams.entry(stream).or_default();
        if object.kind == "TRACEPOINT_FOOTER" {
            for _ in 0..number("run") {
                let (start, begun) = open.pop().unwrap();
                if begun + 1 < block {
                    crossing.push((stream, start as i64, *logical as i64));
                }
                begun_and_ended += 1;
            }
        }
        // In a plain file, the distance to the next object is the size of this one.
        *logical += objects[place + 1].offset - object.offset;
        if object.kind == "TRACEPOINT_CALL" {
            open.push((*logical, block));
        }
    }
    let cells: Vec<_> = dump_index(&dir.path().join("a.trace.idx"))
        .unwrap()
        .map(Result::unwrap)
        .filter(|cell| cell.kind == Kind::Call as u8)
        .map(|cell| (cell.id, cell.start, cell.end))
        .collect();
    let sorted = |mut cells: Vec<_>| {
        cells.sort_unstable();
        cells
    };
    assert!(crossing.len() > 3 && crossing.len() < begun_and_ended);
    // Each stream as a whole.
    crossing.extend(streams.iter().map(|(stream, (logical, _))| (*stream, 0, *logical as i64)));
    assert_eq!(sorted(cells), sorted(crossing));
}

#[test]
fn a_damaged_index_is_noticed_and_an_unfinished_one_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace.idx");
    let read = |bytes: &[u8]| -> Result<usize, TraceError> {
        fs::write(&path, bytes).unwrap();
        dump_index(&path)?.try_fold(0, |count, cell| cell.map(|_| count + 1))
    };
    written(dir.path(), Compression::Zstd(3));
    let sorted = fs::read(&path).unwrap();
    // The journal of a writer into memory.
    let (mut writer, _, memory) = memory_writer(WriterOptions::default());
    let ids = locations(&mut writer, 5);
    let thread = writer.thread(&thread(1)).unwrap();
    for time_ns in 0..9 {
        writer.sample(thread, &sample(time_ns), &ids[..3]).unwrap();
        writer.flush().unwrap();
    }
    writer.finish().unwrap();
    let journal = memory.bytes();
    for bytes in [&sorted, &journal] {
        let whole = read(bytes).unwrap();
        assert_eq!(whole, (bytes.len() - HEADER_BYTES - 8) / index::CELL_BYTES);
        // A journal without its footer is an unfinished one.
        let unfinished = read(&bytes[..bytes.len() - 8 - index::CELL_BYTES]);
        assert_eq!(unfinished.ok(), (bytes == &journal).then_some(whole - 1));
        assert!(read(&bytes[..bytes.len() - 1]).is_err());
        assert!(read(&[&bytes[..], b"x"].concat()).is_err());
        // In a journal the identity cells have no checksum: they are compared with the data.
        let covered = HEADER_BYTES + 2 * index::CELL_BYTES..bytes.len();
        for place in covered.step_by(11) {
            let mut flipped = bytes.clone();
            flipped[place] ^= 0x10;
            let cell = (place - HEADER_BYTES) % index::CELL_BYTES;
            // In the EOF cell of a journal only the kind is checked.
            if place < bytes.len() - 8 - index::CELL_BYTES || cell == 0 || bytes == &sorted {
                assert!(read(&flipped).is_err(), "byte {place}");
            }
        }
    }
}

#[test]
fn kinds_of_a_later_version_are_skipped() {
    let mut cursor = bytes::Cursor::new(b"\xc8\x03abc\x21");
    let unknown = object::Record::Unknown { kind: 200, bytes: 3 };
    assert_eq!(object::Record::decode(&mut cursor), Ok(unknown));
    assert_eq!(object::Record::decode(&mut cursor), Ok(object::Record::BlockEnd));
    assert!(cursor.is_at_end());
}

#[test]
fn the_specification_has_every_kind_with_its_number() {
    let manual = include_str!("../../../man/traceprof-data.5");
    for kind in Kind::ALL {
        let line = format!("{}\t{}\t", *kind as u8, kind.name());
        assert_eq!(manual.matches(&line).count(), 1, "{line:?}");
    }
    for kind in FrameKind::ALL.iter().filter(|kind| **kind != FrameKind::Other) {
        let line = format!("\n{}\t{}\t", *kind as u8, kind.name());
        assert_eq!(manual.matches(&line).count(), 1, "{line:?}");
    }
    for (number, name) in
        [(addition::FRAME_KIND, "FRAME_KIND"), (addition::FIRST_LINE, "FIRST_LINE")]
    {
        assert_eq!(manual.matches(&format!("\n{number}\t{name}\t")).count(), 1, "{name}");
    }
    for magic in [DATA_MAGIC, INDEX_MAGIC, FRAME_MAGIC] {
        let bytes: Vec<_> = magic.to_be_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let bytes = bytes.join(" ");
        assert!(manual.contains(&bytes), "{bytes}");
    }
    for size in [frame::HEADER_BYTES, frame::TRAILER_BYTES, index::CELL_BYTES, MAX_DEPTH] {
        let digits = size.to_string();
        let (short, long) = digits.split_at(digits.len().saturating_sub(3));
        let grouped = if short.is_empty() { long.into() } else { format!("{short},{long}") };
        assert!(manual.contains(&grouped), "{grouped}");
    }
    for (place, name) in
        object::SampleFields::default().named().map(|(name, _)| name).iter().enumerate()
    {
        let line = format!("{place}\t{name}\t");
        assert!(manual.contains(&line), "{line:?}");
    }
}

#[test]
fn a_frame_says_when_its_first_and_last_samples_were_taken() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let ids = locations(&mut writer, 2);
    let [waiting, running] = [1, 2].map(|tid| writer.thread(&thread(tid)).unwrap());
    writer.sample(waiting, &sample(100), &ids[..2]).unwrap();
    writer.flush().unwrap();
    // A block without samples starts at the time of an earlier sample.
    writer.thread_exit(waiting, 150).unwrap();
    writer.sample(running, &sample(200), &ids[..1]).unwrap();
    writer.sample(running, &sample(300), &ids[..1]).unwrap();
    writer.flush().unwrap();
    writer.finish().unwrap();
    let data = data.bytes();
    let mut frames = frames::Frames::new(&data[..], Path::new("data")).unwrap();
    let mut times = Vec::new();
    while let Some(frame) = frames.next_frame().unwrap() {
        times.push((frame.header.samples, frame.header.first_ns, frame.header.last_ns));
    }
    times.retain(|(samples, ..)| *samples > 0);
    assert_eq!(times, [(1, 100, 100), (2, 200, 300)]);
}

/// Returns a plain file with the last bytes of its last frame replaced and with valid checksums.
fn with_last_bytes(data: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut frames = frames::Frames::new(data, Path::new("data")).unwrap();
    let mut last = None;
    while let Some(frame) = frames.next_frame().unwrap() {
        last = Some(frame.header);
    }
    let mut header = last.unwrap();
    let end = data.len() - frame::TRAILER_BYTES;
    let start = header.section_offset(codec::SectionKind::Points) as usize;
    let section = [&data[start..end - bytes.len()], bytes].concat();
    header.sections[codec::SectionKind::Points as usize].crc = crc32fast::hash(&section);
    let head = header.encode();
    let body = &data[header.offset as usize + head.len()..start];
    let trailer = frame::trailer(&header, &head);
    let forged = [&data[..header.offset as usize], &head, body, &section, &trailer].concat();
    assert_eq!(forged.len(), data.len());
    forged
}

/// 24 was once a change of a thread's state, which no recorder wrote.
#[test]
fn an_object_of_an_unknown_kind_is_refused() {
    let options = WriterOptions { compress: Compression::None, ..WriterOptions::default() };
    let (mut writer, data, _) = memory_writer(options);
    let ids = locations(&mut writer, 2);
    let thread = writer.thread(&thread(1)).unwrap();
    writer.sample(thread, &sample(100), &ids[..2]).unwrap();
    writer.finish().unwrap();
    let data = data.bytes();
    let eof = data.len() - frame::TRAILER_BYTES - (1 + 8 + 4 + 4);
    assert_eq!(data[eof], Kind::Eof as u8);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    for kind in [0, 24, 127] {
        let mut bytes = data[eof..data.len() - frame::TRAILER_BYTES].to_vec();
        bytes[0] = kind;
        fs::write(&path, with_last_bytes(&data, &bytes)).unwrap();
        let loaded = load(&path).map(drop);
        let Err(TraceError::Corrupt { what, .. }) = loaded else { panic!("{kind}: {loaded:?}") };
        assert!(what.contains("an unknown kind"), "{kind}: {what}");
    }
}

/// The test changes the EOF of a plain file and recomputes all checksums.
#[test]
fn an_end_that_contradicts_the_contents_is_refused() {
    let options = WriterOptions { compress: Compression::None, ..WriterOptions::default() };
    let (mut writer, data, _) = memory_writer(options);
    let ids = locations(&mut writer, 2);
    let thread = writer.thread(&thread(1)).unwrap();
    writer.sample(thread, &sample(100), &ids[..2]).unwrap();
    writer.flush().unwrap();
    writer.finish().unwrap();
    let data = data.bytes();
    let eof_bytes = 1 + 8 + 4 + 4;
    let eof = data.len() - frame::TRAILER_BYTES - eof_bytes;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    for (what, at) in [("samples", 8), ("threads", 12), ("objects", 16)] {
        for change in [1u8, 255] {
            let mut points = data[eof..eof + eof_bytes].to_vec();
            points[at] = points[at].wrapping_add(change);
            fs::write(&path, with_last_bytes(&data, &points)).unwrap();
            for result in [
                load(&path).map(drop),
                verify(&path).map(drop),
                LazyTrace::open(&path).map(drop),
                reindex(&path, false).map(drop),
            ] {
                let Err(TraceError::Corrupt { what: found, .. }) = result else {
                    panic!("{what}: {result:?}")
                };
                assert!(found.contains(what), "{what}: {found}");
            }
        }
    }
}
