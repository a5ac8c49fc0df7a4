//! Entry points for fuzzing: they take any bytes and check the invariants.
//!
//! Each function panics if an invariant is broken, and only then.

use std::path::{Path, PathBuf};

use super::checkpoint::{BlockEntry, Ends};
use super::codec::Codec;
use super::frame::{FrameHeader, LAST, StoredSection, trailer};
use super::frames::Frames;
use super::index::{self, CELL_BYTES};
use super::kind::Kind;
use super::output::Identity;
use super::scan::scan_frames;
use super::scanned::Scan;
use super::{
    DATA_MAGIC, INDEX_MAGIC, LazyTrace, LoadLimits, LoadedTrace, ThreadId, TraceError, Window,
    file_header, load_within,
};

/// The memory limit for a file of a few kilobytes.
const LIMITS: LoadLimits = LoadLimits { memory_bytes: 64 << 20 };

/// Probes a complete data file without its header: unchanged bytes, so little passes a checksum.
pub fn frame(bytes: &[u8]) {
    let file = [&file_header(DATA_MAGIC)[..], bytes].concat();
    check_readers_agree(&file);
}

/// Probes the content of frames, with valid headers and checksums around it. Each frame has two
/// lengths, of the neutral block and of the block of a thread, and then the objects of both.
pub fn block(bytes: &[u8]) {
    check_readers_agree(&build_file(bytes));
}

/// Probes the cells of an index file beside a valid data file. If the first byte is odd, the cells
/// form a valid group of a journal; else they follow the identity unchanged.
pub fn index(bytes: &[u8]) {
    let Ok(place) = ProbeDirectory::new() else { return };
    let path = place.0.join("data");
    let data = build_file(SMALL);
    let Ok(mut frames) = Frames::new(&data[..], &path) else { return };
    let Ok(Some(first)) = frames.next_frame() else { return };
    let identity = Identity { salt: first.header.salt, uuid: 0 };
    let mut file = file_header(INDEX_MAGIC).to_vec();
    let cells = index::identity(identity, first.header.crc(), None);
    cells.iter().for_each(|cell| cell.encode(&mut file));
    let (sealed, rest) = match bytes.split_first() {
        Some((first, rest)) => (first % 2 == 1, rest),
        None => (false, bytes),
    };
    let cells = &rest[..rest.len() / CELL_BYTES * CELL_BYTES];
    if sealed {
        file.extend_from_slice(&sealed_group(first.header.offset, cells));
    } else {
        file.extend_from_slice(rest);
    }
    let written =
        std::fs::write(&path, &data).and_then(|()| std::fs::write(index::index_path(&path), file));
    if written.is_ok() {
        // An index with valid checksums may contain false statements; then it only must do no harm.
        read_lazily(&path, if sealed { None } else { check_readers_agree(&data) });
    }
}

/// Returns a GROUP cell with a valid checksum, and the unchanged cells.
fn sealed_group(frame_offset: u64, cells: &[u8]) -> Vec<u8> {
    let head = |crc: u32| {
        let count = (cells.len() / CELL_BYTES) as u64;
        let mut head = Vec::new();
        let kind = Kind::Group;
        index::Cell { kind, id: crc, start: frame_offset, end: count }.encode(&mut head);
        head
    };
    let crc = crc32fast::hash(&[&head(0), cells].concat());
    [&head(crc), cells].concat()
}

/// Probes the content of frames, as for [`block`], with the lazy reader.
pub fn lazy(bytes: &[u8]) {
    let Ok(place) = ProbeDirectory::new() else { return };
    let path = place.0.join("data");
    let data = build_file(bytes);
    if std::fs::write(&path, &data).is_ok() {
        read_lazily(&path, check_readers_agree(&data));
    }
}

/// A temporary directory of this thread.
struct ProbeDirectory(PathBuf);

impl ProbeDirectory {
    fn new() -> std::io::Result<Self> {
        let thread = std::thread::current().id();
        let name = format!("traceprof-probe-{}-{thread:?}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ProbeDirectory {
    fn drop(&mut self) {
        // A directory that remains is reused by the next probe.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The content of a frame of one thread.
const SMALL: &[u8] = include_bytes!("../../tests/fuzz/corpus/block/one-frame");

/// Builds a data file with valid directories, checksums and headers around the contents.
pub(super) fn build_file(bytes: &[u8]) -> Vec<u8> {
    let mut file = file_header(DATA_MAGIC).to_vec();
    let mut rest = bytes;
    let mut thread = BlockEntry::neutral(0);
    thread.stream = 0;
    let mut previous = 0;
    let mut walk = super::walk::BlockWalk::new(false);
    let mut survey = super::survey::Survey::default();
    for sequence in 0..8 {
        let [neutral, points, content @ ..] = rest else { break };
        let take = |content: &[u8], at: usize, len: u8| {
            content.iter().skip(at).take(len.into()).copied().collect::<Vec<u8>>()
        };
        let neutral = take(content, 0, *neutral);
        let points = take(content, neutral.len(), *points);
        rest = content.get(neutral.len() + points.len()..).unwrap_or_default();
        let neutral = [&[32, 0xff, 0xff, 0xff, 0xff], &neutral[..], &[33]].concat();
        let mut block = [&[32, 0, 0, 0, 0], &points[..], &[33]].concat();
        thread.bytes = block.len() as u32;
        thread.ends = Ends::BOTH;
        // The directory is derived from the points; it may be wrong if they are invalid.
        let end = super::walk::measure(&mut walk, &mut thread, &block, &mut survey);
        let mut directory = Vec::new();
        let of_neutral = BlockEntry::neutral(neutral.len() as u32);
        let _ = super::scanned::neutral_block(&of_neutral, &neutral, 0, &mut survey);
        of_neutral.encode(&mut directory);
        thread.encode(&mut directory);
        let samples = thread.samples;
        let last = rest.len() < 2 || sequence == 7;
        if last {
            let total = thread.begin.samples + samples;
            block.push(34);
            block.extend_from_slice(&total.to_be_bytes());
            let threads = survey.objects.iter().filter(|object| object.kind == Kind::Thread);
            let threads = threads.map(|object| object.id.saturating_add(1)).max().unwrap_or(1);
            block.extend_from_slice(&threads.to_be_bytes());
            block.extend_from_slice(&(survey.objects.len() as u32).to_be_bytes());
        }
        let sections = [&directory, &neutral, &block].map(|section| StoredSection {
            stored: section.len() as u32,
            bytes: section.len() as u32,
            crc: crc32fast::hash(section),
        });
        let header = FrameHeader {
            salt: 1,
            offset: file.len() as u64,
            previous,
            sequence,
            codec: Codec::Plain,
            flags: if last { LAST } else { 0 },
            sections,
            blocks: 2,
            samples: samples as u32,
            first_ns: thread.first_ns,
            last_ns: thread.last_ns,
        };
        previous = header.offset;
        let encoded = header.encode();
        file.extend_from_slice(&encoded);
        [&directory, &neutral, &block].into_iter().for_each(|it| file.extend_from_slice(it));
        file.extend_from_slice(&trailer(&header, &encoded));
        let Some(end) = end else { break };
        thread.begin = end;
    }
    file
}

/// Checks that the eager reader and the scan agree about a file.
fn check_readers_agree(file: &[u8]) -> Option<(LoadedTrace, Scan)> {
    let name = Path::new("fuzzed");
    let loaded = load_within(file, name, LIMITS);
    let frames = Frames::new(file, name).ok()?;
    let scanned = scan_frames(frames, true, 1);
    match (loaded, scanned) {
        (Ok(trace), Ok(scan)) => {
            let samples: usize = trace.threads.iter().map(|thread| thread.sample_count()).sum();
            assert_eq!(scan.samples, samples as u64);
            assert_eq!(scan.threads as usize, trace.threads.len());
            assert_eq!((scan.closed, &scan.losses), (trace.closed, &trace.losses));
            assert_eq!(scan.notices, trace.notices);
            assert_eq!(scan.metadata, trace.metadata);
            let of_depth = |stack: &[super::LocationId]| {
                stack.iter().all(|id| (id.0 as usize) < trace.locations.len())
            };
            for thread in &trace.threads {
                thread.for_each_sample(&mut |_, stack| assert!(of_depth(stack)));
            }
            Some((trace, scan))
        }
        (Err(TraceError::LimitExceeded { .. }), _) => None,
        (Err(_), Err(_)) => None,
        (Ok(_), Err(error)) => panic!("loaded, but not scanned: {error}"),
        (Err(error), Ok(_)) => panic!("scanned, but not loaded: {error}"),
    }
}

/// Checks that the lazy reader finds the samples that the eager reader found.
fn read_lazily(path: &Path, loaded: Option<(LoadedTrace, Scan)>) {
    let Ok(trace) = LazyTrace::open(path) else { return };
    let mut counts = vec![0; trace.threads().len()];
    let window = Window::default();
    let read = trace.for_each_sample(&window, &mut |thread: ThreadId, _, _| {
        counts[thread.0 as usize] += 1;
    });
    for thread in trace.threads().iter().map(|thread| thread.id) {
        let Ok(mut root) = trace.roots(thread) else { continue };
        let _ = trace.load_deep(&mut root);
        let _ = trace.stack_at(thread, u64::MAX);
    }
    if let (Ok(()), Some((loaded, scan))) = (read, loaded)
        && scan.bad.is_empty()
    {
        let expected: Vec<_> = loaded.threads.iter().map(|thread| thread.sample_count()).collect();
        assert_eq!(counts, expected);
    }
}
