//! The full scan: reads and checks a whole data file once and makes its index.
//!
//! Frames are decoded and walked over by several threads, since with its checkpoints each can be
//! understood alone; what they find is put together in the order of the file.
//!
//! # Invariants
//! - What lies between reading and putting together is bounded, whatever the file says.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};

use super::TraceError;
use super::codec::Part;
use super::frame::FrameHeader;
use super::frames::Frames;
use super::merge::Merge;
use super::scanned::{FrameScan, Scan};
use super::walk::Walk;

/// Most frames that are read but not put together.
const FRAMES_AHEAD: u64 = 16;
/// Decoded bytes of these, beyond which no further one is read.
const BYTES_AHEAD: u64 = 64 << 20;
/// What an entry of a directory takes in memory, relative to what it may take in the file.
const ENTRY_EXPANSION: u64 = 16;

/// Scans the data file at `path`. The index has the calls that hold a whole block or part, or with
/// `full_calls` all.
///
/// # Errors
/// Those of [`load`](super::load()).
pub(super) fn scan(path: &Path, full_calls: bool) -> Result<Scan, TraceError> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    scan_frames(Frames::open(path)?, full_calls, workers)
}

/// Scans what `frames` has, with so many threads.
pub(super) fn scan_frames<R: Read + Send>(
    mut frames: Frames<R>,
    full_calls: bool,
    workers: usize,
) -> Result<Scan, TraceError> {
    if workers <= 1 {
        let mut merge = Merge::new(full_calls);
        let mut walk = Walk::new(full_calls);
        while let Some(stored) = frames.next_stored()? {
            merge.frame(&FrameScan::new(stored, &mut walk)?)?;
        }
        return merge.finish(&frames);
    }
    let queue = Queue {
        state: Mutex::new(State { frames, read: 0, merged: 0, bytes: 0, stop: false }),
        room: Condvar::new(),
    };
    let mut merge = Merge::new(full_calls);
    std::thread::scope(|scope| {
        // As many as can be on their way, so that nobody waits in sending.
        let (sender, results) = mpsc::sync_channel(FRAMES_AHEAD as usize + workers);
        for _ in 0..workers.max(1) {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || work(queue, full_calls, &sender));
        }
        drop(sender);
        let _stop = Stop(&queue);
        put_together(&queue, &mut merge, results)
    })?;
    let State { frames, .. } = queue.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    merge.finish(&frames)
}

/// Frames on their way from the file to the result.
struct Queue<R> {
    state: Mutex<State<R>>,
    room: Condvar,
}

struct State<R> {
    frames: Frames<R>,
    /// Frames that were read.
    read: u64,
    /// Frames that were put together with those before them.
    merged: u64,
    /// Weight of those between.
    bytes: u64,
    stop: bool,
}

impl<R> Queue<R> {
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the work of all when it is dropped.
struct Stop<'a, R>(&'a Queue<R>);

impl<R> Drop for Stop<'_, R> {
    fn drop(&mut self) {
        self.0.lock().stop = true;
        self.0.room.notify_all();
    }
}

/// A frame's number and what is in it.
type Numbered = (u64, Result<Box<FrameScan>, TraceError>);

/// What a frame weighs while it is on its way.
fn weight(header: &FrameHeader) -> u64 {
    let directory = u64::from(header.section(Part::Directory).bytes);
    header.payload_bytes() as u64 + directory * ENTRY_EXPANSION
}

fn work<R: Read>(queue: &Queue<R>, full_calls: bool, results: &mpsc::SyncSender<Numbered>) {
    // A worker that fails must not leave the others waiting.
    let _stop = StopOnPanic(queue);
    let mut walk = Walk::new(full_calls);
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

struct StopOnPanic<'a, R>(&'a Queue<R>);

impl<R> Drop for StopOnPanic<'_, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            drop(Stop(self.0));
        }
    }
}

fn put_together<R>(
    queue: &Queue<R>,
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
