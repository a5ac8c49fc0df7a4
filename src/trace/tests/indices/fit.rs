//! Tests of indexes against matching and other data.

use super::*;

/// Any change in a sorted index is detected, even with recomputed checksums.
#[test]
fn a_forged_cell_does_not_fit_the_data() {
    for compress in CODECS {
        let files = Files::written(options(compress), 120);
        let state = || verify(&files.path).unwrap().index;
        assert_eq!(state(), IndexState::Sound);
        let sound = files.index();
        for at in forge::cells(&sound) {
            let fields: &[usize] = match Kind::from_number(sound[at]) {
                Some(Kind::Page | Kind::Seal | Kind::Eof) => continue,
                // The identity and the covered size; only readers use the UUID.
                Some(Kind::Identity) if at == HEADER_BYTES => &[0, 1, 2],
                Some(Kind::Identity) => continue,
                Some(Kind::Frame | Kind::BlockStart | Kind::BlockPart) => &[0, 1, 2, 3],
                Some(Kind::BlockSpan | Kind::Call | Kind::CallSummary) => &[0, 1, 2, 3],
                // The end is unused.
                _ => &[0, 1, 2],
            };
            for field in fields {
                let mut forged = sound.clone();
                forged[at + [0, 4, 12, 20][*field]] ^= 1;
                forge::reseal(&mut forged);
                files.put_index(&forged);
                assert!(matches!(state(), IndexState::Broken(_)), "{at} {field}");
            }
        }
        reindex(&files.path, true).unwrap();
        assert_eq!(state(), IndexState::Sound);
        fs::remove_file(index_path(&files.path)).unwrap();
        assert_eq!(state(), IndexState::Missing);
    }
}

/// A journal is compared as far as it reaches.
#[test]
fn a_torn_journal_fits_the_data() {
    let (data, journal) = journaled(options(CODECS[0]), 300);
    let files = Files::new(&data, &journal);
    assert_eq!(verify(&files.path).unwrap().index, IndexState::Sound);
    for len in (HEADER_BYTES..journal.len()).rev().step_by(77) {
        files.put_index(&journal[..len]);
        assert_eq!(verify(&files.path).unwrap().index, IndexState::Journal, "{len}");
    }
}

#[test]
fn an_index_of_all_calls_has_them() {
    let files = Files::written(options(Compression::None), 900);
    let counts = || {
        let index = files.open().unwrap().unwrap();
        index.check().unwrap();
        (0..2).map(|stream| index.call_count(stream).unwrap()).sum::<u64>()
    };
    let few = counts();
    reindex(&files.path, true).unwrap();
    let all = counts();
    let objects = dump_objects(&files.path).unwrap().map(Result::unwrap);
    let mut main = false;
    let mut calls = 0;
    for object in objects {
        if object.kind == "BLOCK_START" {
            let number = |name| {
                let found = object.fields.iter().find(|(field, _)| *field == name);
                found.map(|(_, value)| value.clone())
            };
            let threads = [0, 1].map(|id| Some(FieldValue::Unsigned(id)));
            main = number("side") == threads[0] && threads.contains(&number("thread"));
        }
        calls += u64::from(main && object.kind == "TRACEPOINT_CALL");
    }
    // The two streams have cells of their own.
    assert_eq!(all, calls + 2);
    assert!(few < all, "{few} {all}");
    let bytes = files.index();
    reindex(&files.path, true).unwrap();
    assert!(files.index() == bytes);
    reindex(&files.path, false).unwrap();
    assert_eq!(counts(), few);
}

#[test]
fn the_index_of_another_or_an_older_trace_is_refused() {
    let twin = |salt| Files::written(WriterOptions { salt: Some(salt), ..options(CODECS[0]) }, 300);
    let (one, other) = (twin(1), twin(2));
    one.put_index(&other.index());
    assert!(one.open().unwrap_err().what.contains("another trace"));
    // The salt matches, the first frame does not.
    let longer = Files::written(
        WriterOptions { salt: Some(1), frame_bytes: 900, ..options(CODECS[0]) },
        300,
    );
    one.put_index(&longer.index());
    assert!(one.open().unwrap_err().what.contains("another trace"));

    // The data file continues after the covered part.
    let (data, _) = journaled(options(CODECS[0]), 300);
    let ends: Vec<_> = frame_ends(&data);
    let middle = ends[ends.len() / 2];
    let older = Files::new(&data[..middle], b"");
    let done = reindex(&older.path, false).unwrap();
    assert_eq!(done.notices.len(), 1);
    assert_eq!(older.open().unwrap().unwrap().reach(), Ok(middle as u64));
    let index = older.index();
    fs::write(&older.path, &data).unwrap();
    assert!(older.open().unwrap_err().what.contains("older"));
    // The index does not cover the torn frame.
    let torn = Files::new(&data[..middle + 50], &index);
    assert!(torn.open().unwrap_err().what.contains("older"));
    reindex(&torn.path, false).unwrap();
    assert_eq!(torn.open().unwrap().unwrap().reach(), Ok(middle as u64));

    // The data file is shorter.
    let whole = Files::written(options(CODECS[0]), 300);
    fs::write(&whole.path, &data[..data.len() - 1]).unwrap();
    assert!(whole.open().unwrap_err().what.contains("beyond"));
    // Data after the end of a closed trace does not count.
    fs::write(&whole.path, [&data[..], b"tail"].concat()).unwrap();
    assert!(whole.open().unwrap().is_some());
    // Another last frame of the same length.
    let mut changed = data.clone();
    changed[ends[ends.len() - 2] + 60] ^= 1;
    fs::write(&whole.path, &changed).unwrap();
    assert!(whole.open().unwrap_err().what.contains("not in the data"));
}

/// A trace with a damaged middle gets an index of the rest.
#[test]
fn a_lossy_trace_gets_an_index_of_its_readable_part() {
    for compress in CODECS {
        let files = Files::written(options(compress), 900);
        let mut data = files.data();
        let ends = frame_ends(&data);
        let (from, to) = (ends[ends.len() / 2], ends[ends.len() / 2 + 3]);
        data[from + 150..to - 30].fill(0);
        fs::write(&files.path, &data).unwrap();
        let done = reindex(&files.path, false).unwrap();
        assert!(!done.notices.is_empty());
        let index = files.open().unwrap().unwrap();
        index.check().unwrap();
        assert_eq!(index.frame_count() as usize, ends.len() - 3);
        let bytes = files.index();
        reindex(&files.path, false).unwrap();
        assert!(files.index() == bytes);
    }
}

/// A sorted index of an incomplete trace is used as far as possible.
#[test]
fn an_unfinished_or_lossy_trace_says_so_with_an_index_of_its_own() {
    let (data, _) = journaled(options(CODECS[0]), 900);
    let ends = frame_ends(&data);
    for tail in [0, 50] {
        let end = ends[ends.len() / 2] + tail;
        let files = Files::new(&data[..end], b"");
        reindex(&files.path, false).unwrap();
        let lazy = LazyTrace::open(&files.path).unwrap();
        assert!(!lazy.closed() && lazy.notices().len() == 1, "{:?}", lazy.notices());
        assert!(lazy.notices()[0].contains("not finished"), "{:?}", lazy.notices());
        assert_eq!(lazy.notices()[0].contains("50 bytes"), tail == 50, "{:?}", lazy.notices());
        let eager = load(&files.path).unwrap();
        let samples = eager.threads.iter().map(|thread| thread.sample_count() as u64);
        assert!(lazy.threads().iter().map(|thread| thread.samples).eq(samples));
    }
    let mut lossy = data.clone();
    lossy[ends[ends.len() / 2] + 9] ^= 1;
    let files = Files::new(&lossy, b"");
    reindex(&files.path, false).unwrap();
    let lazy = LazyTrace::open(&files.path).unwrap();
    assert!(lazy.closed() && !lazy.losses().is_empty() && !lazy.notices().is_empty());
}
