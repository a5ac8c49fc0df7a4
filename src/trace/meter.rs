//! Progress of this process's work on a trace.
//!
//! Reading a large trace takes a while, deep below the code of a view, and its result does not
//! depend on the progress. So there is one global progress record, which other threads can poll.
//! Work that reads a trace repeatedly consists of several passes, each of which starts at 0.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The unit of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassUnit {
    /// Stored bytes of the data file that were read.
    Bytes,
    /// Samples that were read.
    Samples,
}

/// The progress of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// The name of the work, such as "reading".
    pub doing: &'static str,
    /// The number of the pass of this work, from 1.
    pub turn: u32,
    /// The unit of `done` and `whole`.
    pub unit: PassUnit,
    /// The amount that is done.
    pub done: u64,
    /// The total amount; 0 if unknown.
    pub whole: u64,
}

/// The current pass, and the count at its start.
struct RunningPass {
    pass: Pass,
    before: u64,
}

static BYTES_READ: AtomicU64 = AtomicU64::new(0);
static SAMPLES_READ: AtomicU64 = AtomicU64::new(0);
static RUNNING: Mutex<Option<RunningPass>> = Mutex::new(None);

/// Starts work on another trace, whose data file has `bytes` bytes.
pub fn begin(doing: &'static str, bytes: u64) {
    *running() = None;
    pass(doing, PassUnit::Bytes, bytes);
}

/// Starts a pass over `whole` units (0 if unknown).
pub fn pass(doing: &'static str, unit: PassUnit, whole: u64) {
    let mut running = running();
    let same = running.as_ref().map(|it| it.pass).filter(|it| (it.doing, it.unit) == (doing, unit));
    let turn = same.map_or(0, |before| before.turn) + 1;
    let pass = Pass { doing, turn, unit, done: 0, whole };
    *running = Some(RunningPass { pass, before: counted(unit) });
}

/// Starts the same pass again.
pub(super) fn again() {
    let last = running().as_ref().map(|it| it.pass);
    if let Some(Pass { doing, unit, whole, .. }) = last {
        pass(doing, unit, whole);
    }
}

/// Returns the current pass; `None` if none was started.
pub fn current() -> Option<Pass> {
    let running = running();
    let RunningPass { pass, before } = running.as_ref()?;
    Some(Pass { done: counted(pass.unit).saturating_sub(*before), ..*pass })
}

/// Counts bytes read from data files.
pub(super) fn note_read(bytes: u64) {
    // Relaxed, as in `counted`.
    BYTES_READ.fetch_add(bytes, Ordering::Relaxed);
}

/// Counts a sample that was read.
pub(super) fn note_sample() {
    // Relaxed, as in `counted`.
    SAMPLES_READ.fetch_add(1, Ordering::Relaxed);
}

fn counted(unit: PassUnit) -> u64 {
    let count = match unit {
        PassUnit::Bytes => &BYTES_READ,
        PassUnit::Samples => &SAMPLES_READ,
    };
    // Relaxed, as in `note_read` and `note_sample`: the count carries nothing with it.
    count.load(Ordering::Relaxed)
}

fn running() -> MutexGuard<'static, Option<RunningPass>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
