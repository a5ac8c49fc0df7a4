//! Tests of what additions say: the kinds of frames, and the lines of methods.

use std::collections::HashSet;
use std::fs;

use proptest::prelude::*;

use super::crash::all;
use super::*;

/// A location in words: the name of its method and the line at which that begins, its address, its
/// kind, and whether it is inlined.
type Place = (String, u32, u64, FrameKind, bool);

/// The numbers that a place is made of: its method, the line of that, its address, its kind.
type Numbers = (u8, u32, u64, prop::sample::Index);

fn any_place() -> impl Strategy<Value = Numbers> {
    (0u8..3, prop_oneof![Just(0), 1u32..4, Just(u32::MAX)], 0u64..3, any::<prop::sample::Index>())
}

/// A stack: whether each frame is inlined into the frame before.
fn any_stacks() -> impl Strategy<Value = Vec<Vec<(Numbers, bool)>>> {
    let frame = (any_place(), prop::bool::weighted(0.2));
    prop::collection::vec(prop::collection::vec(frame, 0..6), 1..60)
}

/// Interns a stack, and returns it with its description.
fn intern(series: &mut TraceSeries, stack: &[(Numbers, bool)]) -> (Vec<LocationId>, Vec<Place>) {
    let (mut ids, mut places) = (Vec::<LocationId>::new(), Vec::new());
    for ((name, line, svma, kind), inlined) in stack {
        let (name, kind) = (format!("f{name}"), *kind.get(FrameKind::ALL));
        let method = Method { line: *line, ..Method::named(&name) };
        let method = series.method(&method).unwrap();
        let inline_parent = ids.last().copied().filter(|_| *inlined);
        let place = Location { inline_parent, kind, ..Location::at(method, *svma) };
        let id = series.location(&place).unwrap();
        assert_eq!(series.location(&place).unwrap(), id);
        places.push((name, *line, *svma, kind, inline_parent.is_some()));
        ids.push(id);
    }
    (ids, places)
}

fn options(compress: Compression) -> WriterOptions {
    WriterOptions {
        block_bytes: 100,
        frame_bytes: 200,
        compress,
        durability: Durability::None,
        ..WriterOptions::default()
    }
}

/// Returns the stacks of all samples in words, by time.
fn described(path: &Path) -> Vec<(u64, Vec<Place>)> {
    let trace = LazyTrace::open(path).unwrap();
    let objects = trace.load_objects().unwrap();
    let loaded = load(path).unwrap();
    assert_eq!(loaded.locations, objects.locations);
    assert_eq!(loaded.methods, objects.methods);
    let named = Thread { runtime_name: Some(NAME.to_owned()), ..thread(1) };
    assert!(loaded.threads.iter().all(|it| *it.thread() == named));
    assert!(trace.threads().iter().all(|it| it.thread == named));
    let mut stacks = Vec::new();
    trace
        .for_each_sample(&Window::default(), &mut |_, sample, stack| {
            stacks.push((sample.time_ns, stack.to_vec()));
        })
        .unwrap();
    let place = |id: LocationId| {
        let location = trace.location(id).unwrap();
        assert_eq!(location, objects.locations[id.0 as usize]);
        let method = trace.method(location.method).unwrap();
        assert_eq!(method, objects.methods[location.method.0 as usize]);
        let inlined = location.inline_parent.is_some();
        (method.name, method.line, location.svma, location.kind, inlined)
    };
    stacks
        .into_iter()
        .map(|(time_ns, stack)| (time_ns, stack.into_iter().map(place).collect()))
        .collect()
}

fn parts_in(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "trace"));
    paths.sort();
    paths
}

/// The name of the thread in its language's runtime.
const NAME: &str = "größe";

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn kinds_and_lines_survive_everything(stacks in any_stacks(), compressed in any::<bool>()) {
        let compress = if compressed { Compression::Zstd(3) } else { Compression::None };
        let dir = tempfile::tempdir().unwrap();
        let parts = dir.path().join("parts");
        fs::create_dir(&parts).unwrap();
        let name = {
            let parts = parts.clone();
            Box::new(move |number| parts.join(format!("{number:04}.trace")))
        };
        let rotate_after = RotateAfter::Bytes(4_000);
        let plan = SeriesPlan { name, rotate_after, keep: None, ring: None };
        let mut series = TraceSeries::create(plan, options(compress)).unwrap();
        let id = series.thread(&thread(1)).unwrap();
        series.set_runtime_name(id, NAME).unwrap();
        let mut expected = Vec::new();
        for (number, stack) in stacks.iter().enumerate() {
            let (ids, places) = intern(&mut series, stack);
            let time_ns = 1 + number as u64;
            series.sample(id, &sample(time_ns), &ids).unwrap();
            expected.push((time_ns, places));
            if number % 10 == 9 {
                series.flush().unwrap();
            }
        }
        series.finish().unwrap();
        let is_interpreter = |(_, places): &(u64, Vec<Place>)| {
            places.iter().any(|(.., kind, _)| *kind == FrameKind::Interpreter)
        };
        let announced = expected.iter().any(is_interpreter);

        let parts = parts_in(&parts);
        let of_parts: Vec<_> = parts.iter().flat_map(|path| described(path)).collect();
        prop_assert_eq!(&of_parts, &expected);
        let joint = dir.path().join("joint.trace");
        join(&parts, &joint, options(compress)).unwrap();
        prop_assert_eq!(&described(&joint), &expected);
        let is_announced = |path: &Path| load(path).unwrap().metadata.contains_key(INTERPRETERS);
        prop_assert_eq!(is_announced(&joint), announced);
        let recovered = dir.path().join("recovered.trace");
        recover(&joint, &recovered, options(compress)).unwrap();
        prop_assert_eq!(&described(&recovered), &expected);
        prop_assert_eq!(is_announced(&recovered), announced);
        let (one, other) = (load(&joint).unwrap(), load(&recovered).unwrap());
        prop_assert_eq!(all(&one), all(&other));
        prop_assert_eq!(&one.locations, &other.locations);
        prop_assert_eq!(&one.methods, &other.methods);
        // Without an index, and with one that was made from the data.
        fs::remove_file(index_path(&recovered)).unwrap();
        prop_assert_eq!(&described(&recovered), &expected);
        reindex(&recovered, false).unwrap();
        prop_assert_eq!(&described(&recovered), &expected);
        let verification = verify(&recovered).unwrap();
        prop_assert_eq!(verification.state(), FileState::Clean);
        prop_assert_eq!(verification.index, IndexState::Sound);
    }
}

/// Writes a plain trace with a location of Python code, and returns its bytes.
fn of_python() -> Vec<u8> {
    let options = WriterOptions { compress: Compression::None, ..WriterOptions::default() };
    let (mut writer, data, _) = memory_writer(options);
    let method = writer.method(&Method { line: 7, ..Method::named("f") }).unwrap();
    let place = Location { kind: FrameKind::Python, ..Location::at(method, 0) };
    let place = writer.location(&place).unwrap();
    let id = writer.thread(&thread(1)).unwrap();
    writer.sample(id, &sample(5), &[place]).unwrap();
    writer.finish().unwrap();
    data.bytes()
}

/// Returns a plain file with the bytes of the only place where `from` is in it replaced, and with
/// valid checksums.
fn replaced(data: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut frames = frames::Frames::new(data, Path::new("data")).unwrap();
    let mut out = data[..HEADER_BYTES].to_vec();
    let mut found = 0;
    while let Some(frame) = frames.next_frame().unwrap() {
        let mut header = frame.header;
        let mut sections = Vec::new();
        for section in
            [codec::SectionKind::Directory, codec::SectionKind::Neutral, codec::SectionKind::Points]
        {
            let start = header.section_offset(section) as usize;
            let mut bytes = data[start..start + header.section(section).stored as usize].to_vec();
            if let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
                bytes[at..at + to.len()].copy_from_slice(to);
                found += 1;
            }
            header.sections[section as usize].crc = crc32fast::hash(&bytes);
            sections.push(bytes);
        }
        let head = header.encode();
        out.extend_from_slice(&head);
        sections.iter().for_each(|bytes| out.extend_from_slice(bytes));
        out.extend_from_slice(&frame::trailer(&header, &head));
    }
    assert_eq!((found, out.len()), (1, data.len()));
    out
}

/// Returns what all readers say about a file.
fn read_by_all(bytes: &[u8]) -> [Result<(), TraceError>; 5] {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    fs::write(&path, bytes).unwrap();
    let lazy = || LazyTrace::open(&path)?.load_objects();
    let options = || WriterOptions { force: true, ..WriterOptions::default() };
    [
        load(&path).map(drop),
        verify(&path).map(drop),
        lazy().map(drop),
        recover(&path, &dir.path().join("b.trace"), options()).map(drop),
        dump_objects(&path).unwrap().try_for_each(|object| object.map(drop)),
    ]
}

/// The bytes of an addition: its kind, its length, its number.
const KIND: [u8; 3] = [addition::FRAME_KIND, 1, FrameKind::Python as u8];
const LINE: [u8; 3] = [addition::FIRST_LINE, 1, 7];

#[test]
fn a_dump_shows_additions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    fs::write(&path, of_python()).unwrap();
    let objects: Vec<Object> = dump_objects(&path).unwrap().map(Result::unwrap).collect();
    let field = |kind: &str, name: &str| {
        let object = objects.iter().find(|object| object.kind == kind).unwrap();
        object.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.clone())
    };
    let python = FieldValue::Text("python".to_owned());
    assert_eq!(field("CODE_LOCATION", "frame_kind"), Some(python));
    assert_eq!(field("METHOD", "first_line"), Some(FieldValue::Unsigned(7)));
    fs::write(&path, replaced(&of_python(), &KIND, &[KIND[0], 1, 100])).unwrap();
    let objects: Vec<Object> = dump_objects(&path).unwrap().map(Result::unwrap).collect();
    let of_later = objects.iter().flat_map(|object| &object.fields);
    let of_later = of_later.filter(|(name, _)| *name == "frame_kind");
    assert_eq!(of_later.map(|(_, kind)| kind).collect::<Vec<_>>(), [&FieldValue::Unsigned(100)]);
}

#[test]
fn a_kind_of_a_later_version_is_another_one() {
    let bytes = replaced(&of_python(), &KIND, &[KIND[0], 1, 100]);
    let trace = load_bytes(&bytes).unwrap();
    assert_eq!(trace.locations[0].kind, FrameKind::Other);
    assert!(read_by_all(&bytes).iter().all(Result::is_ok));
}

#[test]
fn an_addition_is_only_where_it_belongs() {
    assert!(read_by_all(&of_python()).iter().all(Result::is_ok));
    for (from, to, expected) in [
        (KIND, [LINE[0], 1, 7], "a FIRST_LINE does not follow a METHOD"),
        (LINE, [KIND[0], 1, 7], "a FRAME_KIND does not follow a CODE_LOCATION"),
        (KIND, [KIND[0], 0, 0], "extends beyond"),
        (KIND, [KIND[0], 1, 0x80], "extends beyond"),
        (KIND, [KIND[0], 200, 1], "extends beyond"),
    ] {
        for read in read_by_all(&replaced(&of_python(), &from, &to)) {
            let Err(TraceError::Corrupt { what, .. }) = read else { panic!("{to:?}: {read:?}") };
            assert!(what.contains(expected), "{to:?}: {what}");
        }
    }
}

#[test]
fn an_addition_stays_what_it_is() {
    let of = |frame_kind, column| object::Neutral::Location {
        id: 0,
        method: 0,
        svma: 2,
        file: NONE,
        line: 0,
        column,
        inline_parent: NONE,
        frame_kind,
    };
    let object = |frame_kind| of(frame_kind, 0);
    let survey = |objects: &[object::Neutral]| {
        let mut bytes = vec![Kind::BlockStart as u8, 0xff, 0xff, 0xff, 0xff];
        objects.iter().for_each(|object| object.encode(&mut bytes));
        bytes.push(Kind::BlockEnd as u8);
        let entry = checkpoint::BlockEntry::neutral(bytes.len() as u32);
        let mut survey = survey::Survey::default();
        scanned::neutral_block(&entry, &bytes, 0, &mut survey).unwrap();
        survey.objects.iter().map(|row| row.crc).collect::<Vec<_>>()
    };
    let crcs = survey(&[object(16), object(0), object(16), object(2)]);
    assert_eq!(crcs[0], crcs[2]);
    assert!(crcs[0] != crcs[1] && crcs[0] != crcs[3] && crcs[1] != crcs[3]);
    let crcs = survey(&[of(16, 7), of(0, 7), of(7, 16), of(16, 0), of(16, 7)]);
    assert_eq!(crcs[0], crcs[4]);
    assert_eq!(crcs.iter().collect::<HashSet<_>>().len(), 4);
    // What later versions append to an addition does not count.
    let mut cursor = bytes::Cursor::new(b"\x82\x03\x10ab\x82\x01\x02\x21");
    assert_eq!(addition::read(&mut cursor, addition::FRAME_KIND), Ok(16));
    assert_eq!(addition::read(&mut cursor, addition::FIRST_LINE), Ok(0));
    assert_eq!(addition::read(&mut cursor, addition::FRAME_KIND), Ok(2));
    assert_eq!(cursor.peek(), Some(Kind::BlockEnd as u8));
}
