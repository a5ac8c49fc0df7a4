//! How far this process is with the trace that it works on.
//!
//! Reading a large trace takes a while, deep below what a view asks for, and what it comes to does
//! not depend on how far it is. So there is one account for all, to be looked at from another
//! thread. Work that goes over a trace more than once is so many passes, each of which begins at
//! nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a pass is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Stored bytes that were read, of those of the data file.
    Bytes,
    /// Samples that were looked at.
    Samples,
}

/// How far a pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// What is done, such as "reading".
    pub doing: &'static str,
    /// Which time that is done: from 1.
    pub turn: u32,
    /// What follows is in this.
    pub unit: Unit,
    /// How much is done.
    pub done: u64,
    /// Of how much; 0 if nobody knows.
    pub whole: u64,
}

/// The pass, and what was counted before it.
struct Begun {
    pass: Pass,
    before: u64,
}

static READ: AtomicU64 = AtomicU64::new(0);
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
static BEGUN: Mutex<Option<Begun>> = Mutex::new(None);

/// Work on another trace begins: what is done, to a data file of so many bytes.
pub fn begin(doing: &'static str, bytes: u64) {
    *begun() = None;
    pass(doing, Unit::Bytes, bytes);
}

/// A pass begins: what is done, and how much there is of it (0 if nobody knows).
pub fn pass(doing: &'static str, unit: Unit, whole: u64) {
    let mut begun = begun();
    let same = begun.as_ref().map(|it| it.pass).filter(|it| (it.doing, it.unit) == (doing, unit));
    let turn = same.map_or(0, |before| before.turn) + 1;
    let pass = Pass { doing, turn, unit, done: 0, whole };
    *begun = Some(Begun { pass, before: counted(unit) });
}

/// The pass goes over all of it once more.
pub(super) fn again() {
    let last = begun().as_ref().map(|it| it.pass);
    if let Some(Pass { doing, unit, whole, .. }) = last {
        pass(doing, unit, whole);
    }
}

/// The pass that goes on; `None` if nothing was begun.
pub fn current() -> Option<Pass> {
    let begun = begun();
    let Begun { pass, before } = begun.as_ref()?;
    Some(Pass { done: counted(pass.unit).saturating_sub(*before), ..*pass })
}

/// Bytes of data files were read.
pub(super) fn note_read(bytes: u64) {
    // Relaxed, as in `counted`.
    READ.fetch_add(bytes, Ordering::Relaxed);
}

/// A sample was looked at.
pub(super) fn note_sample() {
    // Relaxed, as in `counted`.
    LOOKED_AT.fetch_add(1, Ordering::Relaxed);
}

fn counted(unit: Unit) -> u64 {
    let count = match unit {
        Unit::Bytes => &READ,
        Unit::Samples => &LOOKED_AT,
    };
    // Relaxed, as in `note_read` and `note_sample`: the count carries nothing with it.
    count.load(Ordering::Relaxed)
}

fn begun() -> MutexGuard<'static, Option<Begun>> {
    BEGUN.lock().unwrap_or_else(PoisonError::into_inner)
}
