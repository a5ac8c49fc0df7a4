//! Tests of indexes of complete traces: those that the writer leaves, and rebuilt ones.

mod fit;
mod journal;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};

use super::*;
use crate::trace::frame::FrameHeader;
use crate::trace::index::tables::IndexTables;
use crate::trace::index::{Index, forge, index_path};

/// A data file and its index, and the header of the first frame.
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

    /// Creates the files of a finished writer.
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

    fn tables(&self) -> IndexTables {
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

/// Writes threads that exit, are renamed and pause, and calls that contain many blocks.
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

/// Returns the data and the journal of a writer into memory.
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
        // The temporary file was removed.
        assert_eq!(sorted.names(), ["a.trace", "a.trace.idx"]);
    }
}

#[test]
fn a_rebuilt_index_equals_the_original() {
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

/// Returns the end of each frame.
fn frame_ends(data: &[u8]) -> Vec<usize> {
    let mut frames = frames::Frames::new(data, Path::new("data")).unwrap();
    let mut ends = Vec::new();
    while let Some(frame) = frames.next_frame().unwrap() {
        ends.push((frame.header.offset + frame.header.total_bytes()) as usize);
    }
    ends
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
    // The obstacle is not a file that a writer left.
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
    // The file of a killed writer is no obstacle.
    let (_dir, path, written) = finish(&|path| fs::write(temporary(path), b"left").unwrap());
    assert_eq!(written.unsorted, None);
    assert!(!temporary(&path).exists());
    // The file of a live writer is one.
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
fn files_without_a_complete_frame_get_no_index() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    for (bytes, expected) in [
        (&file_header(DATA_MAGIC)[..], "no complete frame"),
        (b"not a trace, but long enough", "is not a trace"),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = reindex(&path, false).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!index_path(&path).exists());
    }
}

#[test]
fn equal_input_makes_equal_indexes() {
    let [one, other] = [0, 1].map(|_| Files::written(options(CODECS[0]), 500));
    let mut bytes = Vec::new();
    fs::File::open(index_path(&one.path)).unwrap().read_to_end(&mut bytes).unwrap();
    assert!(bytes == other.index());
}
