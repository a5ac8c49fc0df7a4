//! The full scan: reads and checks a complete data file once and makes its index.
//!
//! Several threads decode and check frames, since each frame can be understood alone with its
//! checkpoints. One thread merges their results in file order.
//!
//! # Invariants
//! - The data between reading and merging is bounded, whatever the file says.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};

use super::TraceError;
use super::codec::SectionKind;
use super::frame::FrameHeader;
use super::frames::Frames;
use super::merge::Merge;
use super::scanned::{FrameScan, Scan};
use super::walk::BlockWalk;

/// The most frames that are read but not merged.
const FRAMES_AHEAD: u64 = 16;
/// The decoded bytes of these frames, above which no further frame is read.
const BYTES_AHEAD: u64 = 32 << 20;
/// The memory of a directory entry, relative to its least size in the file.
const ENTRY_EXPANSION: u64 = 16;
/// The memory of what is listed of an object, relative to its least size in the file.
const OBJECT_EXPANSION: u64 = 5;

/// Scans the data file at `path`. The index has the calls that contain a complete block or part of
/// a block, or all calls with `full_calls`.
///
/// # Errors
/// Those of [`load`](super::load()).
pub(super) fn scan(path: &Path, full_calls: bool) -> Result<Scan, TraceError> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    scan_frames(Frames::open(path)?, full_calls, workers)
}

/// Scans all frames of `frames`, with this many worker threads.
pub(super) fn scan_frames<R: Read + Send>(
    mut frames: Frames<R>,
    full_calls: bool,
    workers: usize,
) -> Result<Scan, TraceError> {
    if workers <= 1 {
        let mut merge = Merge::new(full_calls);
        let mut walk = BlockWalk::new(full_calls);
        while let Some(stored) = frames.next_stored()? {
            merge.frame(&FrameScan::new(stored, &mut walk)?)?;
        }
        return merge.finish(&frames);
    }
    let queue = FrameQueue {
        state: Mutex::new(QueueState { frames, read: 0, merged: 0, bytes: 0, stop: false }),
        room: Condvar::new(),
    };
    let mut merge = Merge::new(full_calls);
    std::thread::scope(|scope| {
        // Capacity for all frames in flight, so that no sender waits.
        let (sender, results) = mpsc::sync_channel(FRAMES_AHEAD as usize + workers);
        for _ in 0..workers.max(1) {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || work(queue, full_calls, &sender));
        }
        drop(sender);
        let _stop = StopGuard(&queue);
        merge_results(&queue, &mut merge, results)
    })?;
    let QueueState { frames, .. } =
        queue.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    merge.finish(&frames)
}

/// The frames in flight between the file and the result.
struct FrameQueue<R> {
    state: Mutex<QueueState<R>>,
    room: Condvar,
}

/// The state of the queue.
struct QueueState<R> {
    frames: Frames<R>,
    /// The number of frames that were read.
    read: u64,
    /// The number of frames that were merged.
    merged: u64,
    /// The weight of the frames in between.
    bytes: u64,
    stop: bool,
}

impl<R> FrameQueue<R> {
    fn lock(&self) -> MutexGuard<'_, QueueState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stops all workers when it is dropped.
struct StopGuard<'a, R>(&'a FrameQueue<R>);

impl<R> Drop for StopGuard<'_, R> {
    fn drop(&mut self) {
        self.0.lock().stop = true;
        self.0.room.notify_all();
    }
}

/// A frame's number and its scan.
type Numbered = (u64, Result<Box<FrameScan>, TraceError>);

/// Returns the weight of a frame in flight, in bytes.
fn weight(header: &FrameHeader) -> u64 {
    let directory = u64::from(header.section(SectionKind::Directory).bytes);
    let objects = u64::from(header.section(SectionKind::Neutral).bytes);
    header.payload_bytes() as u64 + directory * ENTRY_EXPANSION + objects * OBJECT_EXPANSION
}

fn work<R: Read>(queue: &FrameQueue<R>, full_calls: bool, results: &mpsc::SyncSender<Numbered>) {
    // A failed worker must not leave the others waiting.
    let _stop = StopOnPanic(queue);
    let mut walk = BlockWalk::new(full_calls);
    loop {
        let (number, stored) = {
            let mut state = queue.lock();
            while !state.stop
                && state.read > state.merged
                && (state.read >= state.merged + FRAMES_AHEAD || state.bytes > BYTES_AHEAD)
            {
                state = queue.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.stop {
                return;
            }
            let stored = state.frames.next_stored();
            if let Ok(Some(stored)) = &stored {
                state.bytes += weight(&stored.header);
            }
            let number = state.read;
            if !matches!(stored, Ok(None)) {
                state.read += 1;
            }
            (number, stored)
        };
        let result = match stored {
            Ok(Some(stored)) => FrameScan::new(stored, &mut walk).map(Box::new),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        if results.send((number, result)).is_err() {
            return;
        }
    }
}

/// Stops all workers if its owner panics.
struct StopOnPanic<'a, R>(&'a FrameQueue<R>);

impl<R> Drop for StopOnPanic<'_, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            drop(StopGuard(self.0));
        }
    }
}

fn merge_results<R>(
    queue: &FrameQueue<R>,
    merge: &mut Merge,
    results: mpsc::Receiver<Numbered>,
) -> Result<(), TraceError> {
    let mut waiting = HashMap::new();
    let mut next = 0;
    for (number, result) in results {
        waiting.insert(number, result);
        while let Some(result) = waiting.remove(&next) {
            let frame = result?;
            merge.frame(&frame)?;
            next += 1;
            let mut state = queue.lock();
            state.merged = next;
            state.bytes -= weight(&frame.header);
            drop(state);
            queue.room.notify_all();
        }
    }
    Ok(())
}
