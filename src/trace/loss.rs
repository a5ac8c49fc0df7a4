//! The losses of a damaged data file.

use super::ThreadId;
use super::checkpoint::{BlockEntry, Checkpoint, OpenCall};

/// The loss of a thread between two complete frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// The thread; `None` for thread-neutral objects, and if the thread of the lost samples is
    /// unknown.
    pub thread: Option<ThreadId>,
    /// The time of the last sample before the loss, 0 if there is none.
    pub from_ns: u64,
    /// The time of the first sample after the loss, [`u64::MAX`] if there is none.
    pub to_ns: u64,
    /// The number of lost samples, if later data states it.
    pub samples: Option<u64>,
}

/// A range of a data file that belongs to no complete frame though complete frames follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadRange {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; 0 if frames are missing between two adjacent ones.
    pub bytes: u64,
    /// The reason, as found at the first byte.
    pub what: &'static str,
}

/// Returns whether anything of a data file is lost, given the ranges without a complete frame and
/// the losses of threads. A lost frame without samples is no loss of a thread, but its objects are
/// missing all the same. All readers and commands decide by this.
pub(super) fn is_lossy(bad: &[BadRange], losses: &[Loss]) -> bool {
    !bad.is_empty() || !losses.is_empty()
}

/// The continuation of a stream after a loss of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resumption {
    /// The number of open calls, outermost first, that are still open.
    pub(super) survivors: usize,
    /// The time of the last sample before the loss, 0 if there is none.
    pub(super) from_ns: u64,
    /// The time of the first sample after the loss; if the block has no samples, that of the last
    /// lost sample.
    pub(super) to_ns: u64,
    /// The number of lost samples.
    pub(super) samples: u64,
}

const BROKEN_OFF: &str = "a block does not continue where the previous one ended";

/// Determines how a stream continues from the state `reached` with a block. Returns `None` if the
/// block continues without a loss. A difference between the two states is an error unless frames
/// are lost.
pub(super) fn resume(
    reached: &Checkpoint,
    entry: &BlockEntry,
    frames_are_lost: bool,
) -> Result<Option<Resumption>, &'static str> {
    let begin = &entry.begin;
    if reached == begin {
        return Ok(None);
    }
    let later = begin.logical > reached.logical
        && begin.samples >= reached.samples
        && begin.last_ns >= reached.last_ns
        && begin.main_before >= reached.main_before;
    if !frames_are_lost || !later {
        return Err(BROKEN_OFF);
    }
    let same = |(old, new): &(&OpenCall, &OpenCall)| old == new;
    let survivors = reached.calls.iter().zip(&begin.calls).take_while(same).count();
    if begin.calls.get(survivors).is_some_and(|call| call.start <= reached.logical) {
        return Err(BROKEN_OFF);
    }
    Ok(Some(Resumption {
        survivors,
        from_ns: reached.last_ns,
        to_ns: entry.first_ns,
        samples: begin.samples - reached.samples,
    }))
}

/// Returns how many ids of a kind may be missing if this many bytes are lost: more than any writer
/// puts into them, and few enough that their placeholders cost little.
pub(super) fn ids_in(lost_bytes: u64) -> u64 {
    lost_bytes.saturating_mul(16).saturating_add(1024)
}

/// Losses of frames whose effect on thread-neutral objects is unknown so far: it may show only much
/// later.
#[derive(Debug, Default)]
pub(super) struct PendingLoss {
    span_ns: Option<(u64, u64)>,
}

impl PendingLoss {
    /// Records that frames are lost between two times; 0 stands for an unknown time.
    pub(super) fn add(&mut self, from_ns: u64, to_ns: u64) {
        let to_ns = if to_ns == 0 { u64::MAX } else { to_ns };
        let (first_ns, last_ns) = self.span_ns.unwrap_or((from_ns, to_ns));
        self.span_ns = Some((first_ns.min(from_ns), last_ns.max(to_ns)));
    }

    /// Returns the loss of thread-neutral objects; `None` if it was returned before.
    pub(super) fn take(&mut self) -> Option<Loss> {
        let (from_ns, to_ns) = self.span_ns.take()?;
        // Threads are written one after the other, so the times of two frames may overlap.
        let from_ns = from_ns.min(to_ns);
        Some(Loss { thread: None, from_ns, to_ns, samples: None })
    }
}

/// Sorts losses by thread and time.
pub(super) fn sort(losses: &mut [Loss]) {
    losses.sort_by_key(|loss| (loss.thread, loss.from_ns, loss.to_ns));
}

/// The state of a thread at the end of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadEnd {
    pub(super) id: ThreadId,
    /// The time of its last sample, 0 without samples.
    pub(super) last_ns: u64,
    /// Whether frames are lost after its last block and its exit was not seen.
    pub(super) open: bool,
}

/// Returns the losses of threads without data after the last lost frames. `missing` is the total
/// number of missing samples, if the end of the file states it.
pub(super) fn at_end(threads: impl Iterator<Item = ThreadEnd>, missing: Option<u64>) -> Vec<Loss> {
    if missing == Some(0) {
        return Vec::new();
    }
    let loss = |thread: ThreadEnd| Loss {
        thread: Some(thread.id),
        from_ns: thread.last_ns,
        to_ns: u64::MAX,
        samples: None,
    };
    let mut losses: Vec<_> = threads.filter(|thread| thread.open).map(loss).collect();
    match &mut losses[..] {
        [only] => only.samples = missing,
        [] if missing.is_some() => {
            losses.push(Loss { thread: None, from_ns: 0, to_ns: u64::MAX, samples: missing });
        }
        _ => {}
    }
    losses
}

const OTHER_SAMPLES: &str = "the number of samples differs from that in the EOF object";
const OTHER_THREADS: &str = "the number of threads differs from that in the EOF object";
const OTHER_OBJECTS: &str = "the number of objects differs from that in the EOF object";

/// The contents of a file, as its EOF object states them.
#[derive(Debug, Clone, Copy)]
pub(super) struct EofCounts {
    /// The number of samples.
    pub(super) samples: u64,
    /// The number of threads.
    pub(super) threads: u32,
    /// The number of thread-neutral objects; an object that is written again counts again.
    pub(super) objects: u32,
}

/// The counts at the end of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileTotals {
    /// The counts that the EOF object states.
    pub(super) eof: Option<EofCounts>,
    /// The number of samples in the file.
    pub(super) samples: u64,
    /// The number of threads, including those that are only referred to.
    pub(super) threads: u32,
    /// The number of thread-neutral objects in the file; an object that is written again counts
    /// again.
    pub(super) objects: u64,
    /// The number of lost samples that later blocks state.
    pub(super) lost: u64,
    /// The number of times that frames were lost.
    pub(super) losses: u64,
}

impl FileTotals {
    /// Returns the number of missing samples that no later block states. Returns `None` if the end
    /// of the file, which would state it, is missing too.
    pub(super) fn missing(self) -> Result<Option<u64>, &'static str> {
        let Some(eof) = self.eof else {
            return Ok(if self.losses == 0 { Some(0) } else { None });
        };
        let known = self.samples.checked_add(self.lost).ok_or(OTHER_SAMPLES)?;
        let missing = self.missing_of(eof.samples, known).ok_or(OTHER_SAMPLES)?;
        self.missing_of(eof.threads.into(), self.threads.into()).ok_or(OTHER_THREADS)?;
        self.missing_of(eof.objects.into(), self.objects).ok_or(OTHER_OBJECTS)?;
        Ok(Some(missing))
    }

    /// Returns how many of the `expected` items are missing; any may be missing only if frames are
    /// lost.
    fn missing_of(&self, expected: u64, found: u64) -> Option<u64> {
        expected.checked_sub(found).filter(|missing| *missing == 0 || self.losses > 0)
    }
}
