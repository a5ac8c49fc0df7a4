//! Indexes of whole traces: what the writer leaves, what is made anew, and what is not believed.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};

use super::*;
use crate::trace::frame::FrameHeader;
use crate::trace::index::tables::{NEUTRAL_KINDS, StreamTables, Tables};
use crate::trace::index::{Index, forge, index_path};

/// A data file and its index, and what is known of the first frame.
struct Files {
    dir: tempfile::TempDir,
    path: PathBuf,
    first: FrameHeader,
}

impl Files {
    fn new(data: &[u8], index: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.trace");
        let first = frames::Frames::new(data, &path).unwrap().next_frame().unwrap().unwrap().header;
        fs::write(&path, data).unwrap();
        fs::write(index_path(&path), index).unwrap();
        Self { dir, path, first }
    }

    /// What a finished writer leaves.
    fn written(options: WriterOptions, rounds: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.trace");
        let mut writer = TraceWriter::create(&path, options).unwrap();
        fill(&mut writer, rounds);
        let written = writer.finish().unwrap();
        assert_eq!(written.unsorted, None);
        assert_eq!(written.index_bytes, fs::metadata(index_path(&path)).unwrap().len());
        Self::new(&fs::read(&path).unwrap(), &fs::read(index_path(&path)).unwrap())
    }

    fn data(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    fn index(&self) -> Vec<u8> {
        fs::read(index_path(&self.path)).unwrap()
    }

    fn put_index(&self, bytes: &[u8]) {
        fs::write(index_path(&self.path), bytes).unwrap();
    }

    fn open(&self) -> Result<Option<Index>, index::Broken> {
        Index::open(&self.path, &self.first, fs::metadata(&self.path).unwrap().len())
    }

    fn tables(&self) -> Tables {
        match self.open().unwrap().unwrap() {
            Index::Tables(tables) => tables,
            Index::Sorted(_) => panic!("the index is sorted"),
        }
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn options(compress: Compression) -> WriterOptions {
    WriterOptions {
        frame_bytes: 300,
        block_bytes: 100,
        compress,
        salt: Some(9),
        ..WriterOptions::default()
    }
}

/// Threads that end, are renamed and pause, calls that hold many blocks.
fn fill(writer: &mut TraceWriter, rounds: usize) {
    let ids = locations(writer, 5);
    let threads = [1, 2, 3].map(|tid| writer.thread(&thread(tid)).unwrap());
    for round in 0..rounds {
        let depth = round / 50 % 7;
        let stack: Vec<_> = (0..depth).map(|depth| ids[depth]).collect();
        let truncated = Sample { end_reason: u16::from(round % 9 == 0), ..sample(round as u64) };
        writer.sample(threads[round % 2], &truncated, &stack).unwrap();
        if round % 100 == 7 {
            writer.sample(threads[2], &sample(round as u64), &ids[..4]).unwrap();
            writer.rename_thread(threads[2], &format!("renamed {round}")).unwrap();
        }
    }
    writer.thread_exit(threads[1], rounds as u64).unwrap();
}

/// Data and journal of a writer into memory.
fn journaled(options: WriterOptions, rounds: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut writer, data, index) = memory_writer(options);
    fill(&mut writer, rounds);
    writer.finish().unwrap();
    (data.bytes(), index.bytes())
}

const CODECS: [Compression; 2] = [Compression::Zstd(3), Compression::None];

#[test]
fn a_journal_and_its_sorted_form_say_the_same() {
    for compress in CODECS {
        let (data, journal) = journaled(options(compress), 900);
        let files = Files::new(&data, &journal);
        let tables = files.tables();
        assert!(tables.streams.len() == 5 && tables.frames.len() > 20);
        assert!(tables.streams.values().all(|stream| stream.calls[0].start == 0));
        assert!(tables.streams[&0].calls.len() > 3 && tables.streams[&0].blocks.len() > 9);
        let sorted = Files::written(options(compress), 900);
        assert_eq!(sorted.data(), data);
        let index = sorted.open().unwrap().unwrap();
        index.check().unwrap();
        assert!(matches!(index, Index::Sorted(_)));
        assert_eq!(index.reach(), Ok(data.len() as u64));
        for (stream, rows) in &tables.streams {
            for (n, block) in rows.blocks.iter().enumerate() {
                assert_eq!(index.block(*stream, n as u64), Ok(*block));
            }
            for call in &rows.calls {
                assert_eq!(index.call(*stream, call.start), Ok(Some(*call)));
            }
        }
        assert_eq!(index.neutral(Kind::Thread, 2).unwrap(), {
            let last = tables.neutral[6].iter().rfind(|(_, id, _)| *id == 2).unwrap();
            Some((Kind::Thread, last.2))
        });
        // The temporary file is gone.
        assert_eq!(sorted.names(), ["a.trace", "a.trace.idx"]);
    }
}

#[test]
fn an_index_made_anew_equals_the_one_that_was_left() {
    let collect = |compress| WriterOptions { mode: WriteMode::Collect, ..options(compress) };
    for compress in CODECS {
        for options in [options(compress), collect(compress)] {
            let files = Files::written(options, 900);
            let left = files.index();
            let again = || {
                let done = reindex(&files.path, false).unwrap();
                assert_eq!(done.index_bytes, files.index().len() as u64);
                assert!(done.notices.is_empty());
                let index = index_path(&files.path);
                let dumped = dump_index(&index).unwrap();
                assert_eq!(dumped.map(Result::unwrap).count() as u64, done.cells);
                files.index()
            };
            assert!(again() == left);
            fs::remove_file(index_path(&files.path)).unwrap();
            assert!(again() == left && again() == left);
            files.put_index(b"garbage");
            assert!(again() == left);
        }
    }
}

fn scan_of(files: &Files, full_calls: bool) -> Tables {
    crate::trace::scan::scan(&files.path, full_calls).unwrap().tables
}

/// Whether all rows of an index are those that a scan found, of a journal up to where it reaches.
fn fits(index: &Index, scanned: &Tables, first: &FrameHeader) -> Result<bool, index::Broken> {
    index.check()?;
    let sorted = matches!(index, Index::Sorted(_));
    let reach = index.reach()?;
    let is_covered = |position| first.codec.offset_of(position) < reach;
    let mut expected = Tables::default();
    let frames = scanned.frames.iter().filter(|frame| sorted || frame.offset < reach);
    expected.frames.extend(frames);
    let mut read = Tables::default();
    for n in 0..index.frame_count() {
        read.frames.push(index.frame(n)?);
    }
    for (place, kind) in NEUTRAL_KINDS.into_iter().enumerate() {
        let found = scanned.neutral[place].iter().filter(|(_, _, position)| is_covered(*position));
        expected.neutral[place].extend(found);
        for n in 0..index.neutral_rows(kind) {
            read.neutral[place].push(index.neutral_row(kind, n)?);
        }
    }
    for (stream, rows) in &scanned.streams {
        let blocks: Vec<_> =
            rows.blocks.iter().filter(|block| is_covered(block.start)).copied().collect();
        if !blocks.is_empty() {
            // The calls of a journal are those that ended in its frames.
            let calls = if sorted { rows.calls.clone() } else { Vec::new() };
            expected.streams.insert(*stream, StreamTables { blocks, calls });
        }
    }
    for stream in index.streams()? {
        let mut rows = StreamTables::default();
        for n in 0..index.block_count(stream)? {
            rows.blocks.push(index.block(stream, n)?);
        }
        for n in 0..index.call_count(stream)? {
            let call = index.call_row(stream, n)?;
            match scanned.streams.get(&stream) {
                Some(scanned) if !sorted && scanned.calls.contains(&call) => {}
                _ => rows.calls.push(call),
            }
        }
        read.streams.insert(stream, rows);
    }
    Ok(read == expected)
}

/// Whatever is changed in a sorted index, all checksums made right again: what the scan finds differs.
#[test]
fn a_forged_cell_does_not_fit_the_data() {
    for compress in CODECS {
        let files = Files::written(options(compress), 300);
        let [few, all] = [false, true].map(|full| scan_of(&files, full));
        let compare = |tables| {
            let index = files.open()?.unwrap();
            fits(&index, tables, &files.first)
        };
        assert_eq!(compare(&few), Ok(true));
        assert_eq!(compare(&all), Ok(false));
        let sound = files.index();
        for at in forge::cells(&sound) {
            let cell = |at: usize| Kind::from_number(sound[at]);
            let fields: &[usize] = match cell(at) {
                Some(Kind::Page | Kind::Seal | Kind::Eof) => continue,
                // Whose index it is, and how far it goes; the UUID is for those who read it.
                Some(Kind::Identity) if at == HEADER_BYTES => &[0, 1, 2],
                Some(Kind::Identity) => continue,
                Some(Kind::Frame | Kind::BlockStart | Kind::BlockPart) => &[0, 1, 2, 3],
                Some(Kind::BlockSpan | Kind::Call | Kind::CallSummary) => &[0, 1, 2, 3],
                // An end that is not used.
                _ => &[0, 1, 2],
            };
            for field in fields {
                let at_byte = at + [0, 4, 12, 20][*field];
                let mut forged = sound.clone();
                forged[at_byte] ^= 1;
                forge::reseal(&mut forged);
                files.put_index(&forged);
                assert!(compare(&few) != Ok(true), "{at} {field} {:?}", cell(at));
            }
        }
        reindex(&files.path, true).unwrap();
        assert_eq!(compare(&all), Ok(true));
    }
}

/// A journal is compared as far as it goes.
#[test]
fn a_torn_journal_fits_the_data() {
    let (data, journal) = journaled(options(CODECS[0]), 300);
    let files = Files::new(&data, &journal);
    let tables = scan_of(&files, false);
    for len in (HEADER_BYTES..=journal.len()).rev().step_by(77) {
        files.put_index(&journal[..len]);
        let index = files.open().unwrap().unwrap();
        assert_eq!(fits(&index, &tables, &files.first), Ok(true), "{len}");
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
    // And the two streams themselves.
    assert_eq!(all, calls + 2);
    assert!(few < all, "{few} {all}");
    let bytes = files.index();
    reindex(&files.path, true).unwrap();
    assert!(files.index() == bytes);
    reindex(&files.path, false).unwrap();
    assert_eq!(counts(), few);
}

/// However much of it is there, a journal is taken up to its last whole group, and what it says is
/// what the whole one says of these frames.
#[test]
fn a_torn_journal_says_how_far_it_reaches() {
    let (data, journal) = journaled(options(Compression::Zstd(3)), 120);
    let files = Files::new(&data, &journal);
    let whole = files.tables();
    let mut frames = whole.frames.len();
    let file = fs::OpenOptions::new().write(true).open(index_path(&files.path)).unwrap();
    for len in (HEADER_BYTES..journal.len()).rev().step_by(3) {
        file.set_len(len as u64).unwrap();
        let opened = index::open(&files.path, &files.first, data.len() as u64).unwrap().unwrap();
        let Index::Tables(tables) = opened.index else { panic!("the index is sorted") };
        assert!(!opened.complete);
        assert!(tables.frames.len() == frames || tables.frames.len() + 1 == frames, "{len}");
        frames = tables.frames.len();
        assert_eq!(tables.frames, whole.frames[..frames]);
        for (stream, rows) in &tables.streams {
            let blocks = &whole.streams[stream].blocks;
            assert_eq!(rows.blocks, blocks[..rows.blocks.len()]);
        }
    }
    assert_eq!(frames, 0);
    for len in 0..HEADER_BYTES {
        files.put_index(&journal[..len]);
        assert!(files.open().is_err(), "{len}");
    }
    fs::remove_file(index_path(&files.path)).unwrap();
    assert!(files.open().unwrap().is_none());
}

#[test]
fn a_flipped_bit_shortens_a_journal_and_never_changes_it() {
    let (mut writer, data, journal) = memory_writer(options(Compression::Zstd(3)));
    let ids = locations(&mut writer, 1);
    let threads = [1, 2].map(|tid| writer.thread(&thread(tid)).unwrap());
    for time_ns in 0..8 {
        writer.sample(threads[time_ns % 2], &sample(time_ns as u64), &ids[..time_ns]).unwrap();
        writer.flush().unwrap();
    }
    writer.finish().unwrap();
    let journal = journal.bytes();
    let files = Files::new(&data.bytes(), &journal);
    let whole = files.tables();
    assert!(whole.frames.len() > 8 && whole.streams[&1].calls.len() > 2);
    let file = fs::OpenOptions::new().write(true).open(index_path(&files.path)).unwrap();
    for bit in 0..journal.len() * 8 {
        let byte = journal[bit / 8] ^ 1 << (bit % 8);
        file.write_all_at(&[byte], bit as u64 / 8).unwrap();
        match files.open() {
            Ok(Some(Index::Tables(tables))) => {
                let frames = tables.frames.len();
                assert_eq!(tables.frames, whole.frames[..frames], "bit {bit}");
                for (rows, known) in tables.neutral.iter().zip(&whole.neutral) {
                    assert!(rows.iter().all(|row| known.contains(row)), "bit {bit}");
                }
                for (stream, rows) in &tables.streams {
                    let known = &whole.streams[stream];
                    assert_eq!(rows.blocks, known.blocks[..rows.blocks.len()], "bit {bit}");
                    assert!(rows.calls.iter().all(|row| known.calls.contains(row)), "bit {bit}");
                }
            }
            Ok(_) => panic!("bit {bit} made another kind of index"),
            // Nothing before the groups can be mended.
            Err(_) => assert!(bit / 8 < HEADER_BYTES + 2 * index::CELL_BYTES + 1, "bit {bit}"),
        }
        file.write_all_at(&journal[bit / 8..bit / 8 + 1], bit as u64 / 8).unwrap();
    }
}

#[test]
fn forged_groups_end_a_journal() {
    let (data, journal) = journaled(options(Compression::Zstd(3)), 120);
    let files = Files::new(&data, &journal);
    let whole = files.tables();
    let kind_at = |at: usize| Kind::from_number(journal[at]);
    let cells: Vec<_> = forge::cells(&journal).collect();
    let forged = |at: usize, field: usize, value: u64| {
        let mut forged = journal.clone();
        forge::set(&mut forged, at, field, value);
        forge::reseal(&mut forged);
        files.put_index(&forged);
        files.open().map(|index| index.unwrap().frame_count() as usize)
    };
    let mut group = 0;
    for at in cells {
        let refused: &[(usize, u64)] = match kind_at(at).unwrap() {
            Kind::Group => {
                group += 1;
                &[(0, 42), (2, 5), (3, 0), (3, 1 << 22), (3, u64::MAX)]
            }
            Kind::Frame => &[(0, 1), (2, 7), (3, 0), (3, 1 << 40)],
            Kind::BlockStart | Kind::BlockPart => &[(0, 0), (2, 0), (3, 0), (3, u64::MAX)],
            Kind::BlockSpan | Kind::CallSummary => &[(0, 16), (0, 0)],
            Kind::Call => &[(0, 0), (2, u64::MAX), (1, u64::MAX)],
            Kind::Identity | Kind::Eof => &[],
            _ => &[(0, 0), (0, 18), (2, 3), (2, u64::MAX)],
        };
        for (field, value) in refused {
            let frames = forged(at, *field, *value).unwrap_or(0);
            assert!(frames < whole.frames.len(), "{at} {field} {value}");
            assert_eq!(frames, group - 1, "{at} {field} {value}");
        }
    }
    assert_eq!(group, whole.frames.len());
}

#[test]
fn the_index_of_another_or_an_older_trace_is_refused() {
    let twin = |salt| Files::written(WriterOptions { salt: Some(salt), ..options(CODECS[0]) }, 300);
    let (one, other) = (twin(1), twin(2));
    one.put_index(&other.index());
    assert!(one.open().unwrap_err().what.contains("another trace"));
    // Its salt is right, its first frame is not.
    let longer = Files::written(
        WriterOptions { salt: Some(1), frame_bytes: 900, ..options(CODECS[0]) },
        300,
    );
    one.put_index(&longer.index());
    assert!(one.open().unwrap_err().what.contains("another trace"));

    // The data file goes on behind what was looked at.
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
    // With a torn frame behind it was all looked at.
    let torn = Files::new(&data[..middle + 50], &index);
    assert!(torn.open().unwrap_err().what.contains("older"));
    reindex(&torn.path, false).unwrap();
    assert_eq!(torn.open().unwrap().unwrap().reach(), Ok(middle as u64));

    // Or is shorter.
    let whole = Files::written(options(CODECS[0]), 300);
    fs::write(&whole.path, &data[..data.len() - 1]).unwrap();
    assert!(whole.open().unwrap_err().what.contains("beyond"));
    // What follows the end of a closed trace is nothing.
    fs::write(&whole.path, [&data[..], b"tail"].concat()).unwrap();
    assert!(whole.open().unwrap().is_some());
    // Another last frame of the same length.
    let mut changed = data.clone();
    changed[ends[ends.len() - 2] + 60] ^= 1;
    fs::write(&whole.path, &changed).unwrap();
    assert!(whole.open().unwrap_err().what.contains("not in the data"));
}

/// Where each frame ends.
fn frame_ends(data: &[u8]) -> Vec<usize> {
    let mut frames = frames::Frames::new(data, Path::new("data")).unwrap();
    let mut ends = Vec::new();
    while let Some(frame) = frames.next_frame().unwrap() {
        ends.push((frame.header.offset + frame.header.total_bytes()) as usize);
    }
    ends
}

#[test]
fn a_journal_that_is_ahead_of_the_data_is_cut_to_it() {
    let (data, journal) = journaled(options(Compression::Zstd(3)), 300);
    let ends = frame_ends(&data);
    for (n, end) in ends.iter().enumerate().step_by(5) {
        for len in [*end, *end + 1] {
            let files = Files::new(&data[..len.min(data.len())], &journal);
            assert_eq!(files.tables().frames.len(), n + 1);
        }
    }
}

#[test]
fn an_index_that_cannot_be_sorted_stays_a_journal() {
    let finish = |spoil: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.trace");
        let mut writer = TraceWriter::create(&path, options(CODECS[0])).unwrap();
        fill(&mut writer, 200);
        spoil(&path);
        let written = writer.finish().unwrap();
        (dir, path, written)
    };
    let temporary = |path: &Path| PathBuf::from(format!("{}.tmp", index_path(path).display()));
    // What stands in the way is no file that a writer left.
    let (_dir, path, written) = finish(&|path| fs::create_dir(temporary(path)).unwrap());
    assert!(written.unsorted.is_some());
    let first = Files::new(&fs::read(&path).unwrap(), b"").first;
    let opened = index::open(&path, &first, written.data_bytes).unwrap().unwrap();
    assert!(opened.complete && matches!(opened.index, Index::Tables(_)));
    assert_eq!(written.index_bytes, fs::metadata(index_path(&path)).unwrap().len());
    assert!(load(&path).unwrap().closed);
    // Another file has its name.
    let (_dir, path, written) = finish(&|path| {
        fs::remove_file(index_path(path)).unwrap();
        fs::write(index_path(path), b"precious").unwrap();
    });
    assert_eq!(written.unsorted, Some(Unsorted::Moved));
    assert_eq!(fs::read(index_path(&path)).unwrap(), b"precious");
    let (_dir, path, written) = finish(&|path| fs::rename(path, path.with_extension("x")).unwrap());
    assert_eq!(written.unsorted, Some(Unsorted::Moved));
    assert!(!path.exists());
    // What a killed writer left is no obstacle.
    let (_dir, path, written) = finish(&|path| fs::write(temporary(path), b"left").unwrap());
    assert_eq!(written.unsorted, None);
    assert!(!temporary(&path).exists());
    // What another writer is writing is.
    let busy = finish(&|path| {
        let file = fs::File::create(temporary(path)).unwrap();
        let lock = nix::fcntl::FlockArg::LockExclusiveNonblock;
        std::mem::forget(nix::fcntl::Flock::lock(file, lock).unwrap());
    });
    assert!(busy.2.unsorted.is_some_and(|why| why.to_string().contains("busy")));
    assert!(temporary(&busy.1).exists());
}

#[test]
fn a_new_index_is_as_readable_as_its_data_and_never_follows_a_link() {
    let files = Files::written(options(CODECS[0]), 100);
    let precious = files.dir.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    let index = index_path(&files.path);
    for mode in [0o640, 0o600, 0o644] {
        fs::set_permissions(&files.path, fs::Permissions::from_mode(mode)).unwrap();
        reindex(&files.path, false).unwrap();
        assert_eq!(fs::metadata(&index).unwrap().permissions().mode() & 0o7777, mode);
    }
    let left = fs::read(&index).unwrap();
    fs::remove_file(&index).unwrap();
    std::os::unix::fs::symlink(&precious, &index).unwrap();
    reindex(&files.path, false).unwrap();
    let temporary = files.dir.path().join("a.trace.idx.tmp");
    std::os::unix::fs::symlink(&precious, &temporary).unwrap();
    let error = reindex(&files.path, false).unwrap_err();
    assert!(error.is_output_error(), "{error}");
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    assert!(!fs::symlink_metadata(&index).unwrap().is_symlink());
    assert!(fs::read(&index).unwrap() == left);
}

#[test]
fn a_trace_that_is_being_recorded_keeps_its_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    let mut writer = TraceWriter::create(&path, options(CODECS[0])).unwrap();
    fill(&mut writer, 200);
    writer.flush().unwrap();
    let journal = fs::read(index_path(&path)).unwrap();
    let error = reindex(&path, false).unwrap_err();
    assert!(matches!(error, TraceError::Busy { .. }), "{error}");
    assert!(fs::read(index_path(&path)).unwrap() == journal);
    assert_eq!(writer.finish().unwrap().unsorted, None);
    reindex(&path, false).unwrap();
}

#[test]
fn files_without_a_whole_frame_get_no_index() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    for (bytes, expected) in [
        (&file_header(DATA_MAGIC)[..], "no whole frame"),
        (b"no trace at all, though long enough", "is not a trace"),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = reindex(&path, false).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!index_path(&path).exists());
    }
}

/// A trace with a damaged middle gets an index of what is left.
#[test]
fn a_lossy_trace_gets_an_index_of_the_rest() {
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

/// An index in order of a trace that is not whole is used as far as it can be.
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

#[test]
fn equal_input_makes_equal_indexes() {
    let [one, other] = [0, 1].map(|_| Files::written(options(CODECS[0]), 500));
    let mut bytes = Vec::new();
    fs::File::open(index_path(&one.path)).unwrap().read_to_end(&mut bytes).unwrap();
    assert!(bytes == other.index());
}
