//! Tests of the memory use for hostile files of a few kilobytes.
//!
//! # Safety
//! The allocator passes every call to the system's allocator, with unchanged arguments. In addition
//! it only counts, in a cell of the calling thread.
#![allow(unsafe_code, reason = "an allocator that counts is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use super::crash::small_trace;
use super::scan::scan_bytes;
use super::*;
use crate::trace::bytes::put_varint;
use crate::trace::codec::Codec;
use crate::trace::frame::{FrameHeader, StoredSection};

thread_local! {
    /// The number of bytes that this thread holds, and the most that it held.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
    /// The number of allocations of this thread.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(change: isize) {
    // An exiting thread has no cell any more, and nobody reads the count.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + change, most.max(now + change)));
    });
    if change > 0 {
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    }
}

// SAFETY: All calls go to the system's allocator with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: The caller keeps the contract of `alloc`, which is that of the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: As for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: `old` came from the system's allocator with this layout.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `old` came from the system's allocator with this layout.
        unsafe { System.dealloc(old, layout) }
    }
}

/// Returns the number of allocations of this thread during `f`.
pub(crate) fn allocations(f: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    f();
    CALLS.get() - before
}

/// Returns the most bytes held during `f`, beyond those held before.
fn most_held(f: impl FnOnce()) -> u64 {
    let (before, _) = HELD.get();
    HELD.set((before, before));
    f();
    let (_, most) = HELD.get();
    (most - before) as u64
}

/// Creates a file of frames with hostile content and valid checksums, after the first frame of a
/// small trace.
fn forged(frames: &[(Codec, [Vec<u8>; 3], u32, u32)]) -> Vec<u8> {
    let (data, _, ends) = small_trace(Compression::Zstd(3));
    let mut file = data[..ends[0].0].to_vec();
    let mut real = frames::Frames::new(&data[..], Path::new("data")).unwrap();
    let mut last = real.next_frame().unwrap().unwrap().header;
    for (codec, sections, blocks, samples) in frames {
        let stored = sections.clone().map(|section| match codec {
            _ if section.is_empty() => section,
            Codec::Plain => section,
            _ => zstd::bulk::compress(&section, 3).unwrap(),
        });
        let mut described = [StoredSection::default(); 3];
        for ((described, section), stored) in described.iter_mut().zip(sections).zip(&stored) {
            let crc = crc32fast::hash(stored);
            let (bytes, stored) = (section.len() as u32, stored.len() as u32);
            *described = StoredSection { stored, bytes, crc };
        }
        let header = FrameHeader {
            offset: file.len() as u64,
            previous: last.offset,
            sequence: last.sequence + 1,
            sections: described,
            codec: *codec,
            blocks: *blocks,
            samples: *samples,
            ..last
        };
        let encoded = header.encode();
        file.extend_from_slice(&encoded);
        stored.iter().for_each(|stored| file.extend_from_slice(stored));
        file.extend_from_slice(&frame::trailer(&header, &encoded));
        last = header;
    }
    file
}

/// Encodes an entry of a directory: stream, ends, bytes and the numbers that follow.
fn entry(fields: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    fields.iter().for_each(|field| put_varint(&mut out, *field));
    out
}

/// Encodes a block of a stream with `points` between its ends.
fn block(stream: u32, points: &[u8]) -> Vec<u8> {
    [&[32], &stream.to_be_bytes()[..], points, &[33]].concat()
}

/// Returns hostile files by the name of their attack.
fn attacks() -> Vec<(&'static str, Vec<u8>)> {
    let first = NO_THREAD - 5;
    let mut attacks = Vec::new();
    let mut add = |name, sections, blocks, samples| {
        attacks.push((name, forged(&[(Codec::Zstd, sections, blocks, samples)])));
    };
    // As many samples of three bytes as fit.
    let count = 1_300_000u64;
    let samples = block(7, &[20, 0, 0].repeat(count as usize));
    let of_samples = entry(&[7, 3, samples.len() as u64, 0, 0, 0, 0, count, 0, 0, 0, 0]);
    add("samples", [of_samples, Vec::new(), samples], 1, count as u32);
    // Calls that are opened and closed.
    let calls = block(7, &[16, 0, 17, 2].repeat(1_000_000));
    let of_calls = entry(&[7, 3, calls.len() as u64, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    add("calls", [of_calls, Vec::new(), calls], 1, 0);
    // Deep stacks in a directory.
    let depth = 60_000u64;
    let mut deep = Vec::new();
    for _ in 0..20 {
        deep.extend(entry(&[u64::from(first), 2, 1, 0, 0, 0, 0, 0, 0, 0, depth, depth]));
        deep.extend([0, 1, 0].repeat(depth as usize));
    }
    add("depths", [deep, Vec::new(), vec![33; 20]], 20, 0);
    // Blocks of one byte.
    let tiny = entry(&[7, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]).repeat(300_000);
    add("blocks", [tiny, Vec::new(), vec![33; 300_000]], 300_000, 0);
    // Streams of many threads.
    let mut threads = Vec::new();
    for stream in 0..50_000u64 {
        threads.extend(entry(&[stream + 10, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    }
    add("threads", [threads, Vec::new(), vec![33; 50_000]], 50_000, 0);
    // A list that claims to be long; ids that are large.
    let list = [9, 0, 0, 0, 9, 0, 0, 0, 0, 3, 0xff, 0xff, 0xff, 0xff].repeat(2);
    let neutral = block(NO_THREAD, &list);
    let of_neutral = entry(&[NO_THREAD.into(), 3, neutral.len() as u64]);
    add("list", [of_neutral.clone(), neutral, Vec::new()], 1, 0);
    let id = [&[2][..], &(1u32 << 31).to_be_bytes(), &[0; 6]].concat();
    let neutral = block(NO_THREAD, &id);
    let of_neutral = entry(&[NO_THREAD.into(), 3, neutral.len() as u64]);
    add("id", [of_neutral, neutral, Vec::new()], 1, 0);
    // Values in lists.
    let mut list = vec![9, 0, 0, 0, 9, 0, 0, 0, 0, 3];
    list.extend(800_000u32.to_be_bytes());
    list.extend([3, 0, 0, 0, 0].repeat(800_000));
    let neutral = block(NO_THREAD, &list);
    let of_neutral = entry(&[NO_THREAD.into(), 3, neutral.len() as u64]);
    add("values", [of_neutral, neutral, Vec::new()], 1, 0);
    attacks
}

#[test]
fn a_small_file_takes_bounded_memory() {
    const LOAD: u64 = 64 << 20;
    for (name, file) in attacks() {
        assert!(file.len() < 200 << 10, "{name}: {} bytes", file.len());
        let limits = LoadLimits { memory_bytes: LOAD };
        let held = most_held(|| {
            let _ = load_within(&file[..], Path::new("data"), limits);
        });
        // Twice the limit, since vectors grow by doubling, plus the memory for reading one frame.
        assert!(held < 2 * LOAD + (300 << 20), "{name}: {} MiB for loading", held >> 20);
        let held = most_held(|| {
            let _ = scan_bytes(&file, false);
        });
        assert!(held < 350 << 20, "{name}: {} MiB for scanning", held >> 20);
    }
}
