//! Entrances for fuzzing: bytes in, and what must hold whatever they are.
//!
//! Each function panics where an invariant is broken, and only there.

use std::path::{Path, PathBuf};

use super::checkpoint::{BlockEntry, Ends};
use super::codec::Codec;
use super::frame::{FrameHeader, LAST, Section};
use super::frames::Frames;
use super::index::{self, CELL_BYTES};
use super::kind::Kind;
use super::output::Identity;
use super::scan::scan_frames;
use super::scanned::Scan;
use super::{
    DATA_MAGIC, INDEX_MAGIC, LazyTrace, LoadLimits, LoadedTrace, ThreadId, TraceError, Window,
    file_header, load_within, output,
};

/// What a file of a few kilobytes may take.
const LIMITS: LoadLimits = LoadLimits { memory_bytes: 64 << 20 };

/// A whole data file, its header excepted: bytes as they are, so that little gets past a checksum.
pub fn frame(bytes: &[u8]) {
    let file = [&file_header(DATA_MAGIC)[..], bytes].concat();
    agree(&file);
}

/// The content of frames with everything else put right: per frame two lengths, of the neutral
/// block and of the block of a thread, then the objects of both.
pub fn block(bytes: &[u8]) {
    agree(&put_right(bytes));
}

/// The cells of an index file beside a data file that is right. With an odd first byte they are put
/// into a group of a journal with everything else right, else they are the file behind its
/// identity.
pub fn index(bytes: &[u8]) {
    let Ok(place) = Place::new() else { return };
    let path = place.0.join("data");
    let data = put_right(SMALL);
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
        // What has its checksums right may lie; then it is only asked not to do harm.
        read_lazily(&path, if sealed { None } else { agree(&data) });
    }
}

/// A GROUP cell with the right checksum before cells as they are.
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

/// The content of frames, as for [`block`], read piece by piece.
pub fn lazy(bytes: &[u8]) {
    let Ok(place) = Place::new() else { return };
    let path = place.0.join("data");
    let data = put_right(bytes);
    if std::fs::write(&path, &data).is_ok() {
        read_lazily(&path, agree(&data));
    }
}

/// A directory of this thread's own, for as long as it is used.
struct Place(PathBuf);

impl Place {
    fn new() -> std::io::Result<Self> {
        let thread = std::thread::current().id();
        let name = format!("traceprof-probe-{}-{thread:?}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Of a directory that stays the next one makes use.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The content of a frame of one thread.
const SMALL: &[u8] = include_bytes!("../../tests/fuzz/corpus/block/one-frame");

/// Puts directories, checksums and headers around contents.
pub(super) fn put_right(bytes: &[u8]) -> Vec<u8> {
    let mut file = file_header(DATA_MAGIC).to_vec();
    let mut rest = bytes;
    let mut thread = BlockEntry::neutral(0);
    thread.stream = 0;
    let mut previous = 0;
    let mut walk = super::walk::Walk::new(false);
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
        // What the points say decides what the directory must say; if they are wrong, so be it.
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
        let sections = [&directory, &neutral, &block].map(|section| Section {
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
        file.extend_from_slice(&output::trailer(&header, &encoded));
        let Some(end) = end else { break };
        thread.begin = end;
    }
    file
}

/// The eager reader and the scan agree about a file.
fn agree(file: &[u8]) -> Option<(LoadedTrace, Scan)> {
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

/// A lazy reader of the file at `path` finds the samples that the eager one found.
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
