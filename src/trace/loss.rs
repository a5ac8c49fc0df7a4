//! What a damaged data file lacks.

use super::ThreadId;
use super::checkpoint::{BlockEntry, Checkpoint, OpenCall};

/// What is lost of a thread between two whole frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// The thread; `None` for thread-neutral objects, and where it is not known whose samples are
    /// lost.
    pub thread: Option<ThreadId>,
    /// Time of the last sample before, 0 if there is none.
    pub from_ns: u64,
    /// Time of the first sample after, [`u64::MAX`] if there is none.
    pub to_ns: u64,
    /// How many samples are lost, where something later in the file tells.
    pub samples: Option<u64>,
}

/// Bytes of a data file that belong to no whole frame though whole frames follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadRange {
    /// Offset of the first.
    pub offset: u64,
    /// How many; 0 where frames are missing between two that lie side by side.
    pub bytes: u64,
    /// What is wrong with the first.
    pub what: &'static str,
}

/// How a stream goes on after frames are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resumption {
    /// How many of the calls that were open, outermost first, still are.
    pub(super) survivors: usize,
    /// Time of the last sample before, 0 if there is none.
    pub(super) from_ns: u64,
    /// Time of the first sample after; without one in the block, of the last one lost.
    pub(super) to_ns: u64,
    /// Samples that are lost.
    pub(super) samples: u64,
}

const BROKEN_OFF: &str = "a block does not go on where the one before it ended";

/// How a stream that has reached a state goes on with a block. `None`: just there. That something
/// lies between is refused unless frames are lost.
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

/// How many ids of a kind may be missing where so many bytes are lost: more than any writer puts
/// into them, and so few that what stands for them costs little.
pub(super) fn ids_in(lost_bytes: u64) -> u64 {
    lost_bytes.saturating_mul(16).saturating_add(1024)
}

/// The losses of frames of which it is not known yet whether thread-neutral objects are among what
/// is lost: that may only show much later.
#[derive(Debug, Default)]
pub(super) struct Unnoted {
    span_ns: Option<(u64, u64)>,
}

impl Unnoted {
    /// Frames are lost between two times; 0 stands for one that is not known.
    pub(super) fn lose(&mut self, from_ns: u64, to_ns: u64) {
        let to_ns = if to_ns == 0 { u64::MAX } else { to_ns };
        let (first_ns, last_ns) = self.span_ns.unwrap_or((from_ns, to_ns));
        self.span_ns = Some((first_ns.min(from_ns), last_ns.max(to_ns)));
    }

    /// Objects are among what is lost. `None` if that is noted already.
    pub(super) fn note(&mut self) -> Option<Loss> {
        let (from_ns, to_ns) = self.span_ns.take()?;
        // Threads are written one after the other: the times of two frames may overlap.
        let from_ns = from_ns.min(to_ns);
        Some(Loss { thread: None, from_ns, to_ns, samples: None })
    }
}

/// Brings losses into the order of threads and times.
pub(super) fn sort(losses: &mut [Loss]) {
    losses.sort_by_key(|loss| (loss.thread, loss.from_ns, loss.to_ns));
}

/// What is known of a thread at the end of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadEnd {
    pub(super) id: ThreadId,
    /// Time of its last sample, 0 without one.
    pub(super) last_ns: u64,
    /// Frames are lost since its last block, and it was not seen to end.
    pub(super) open: bool,
}

/// What is lost of threads of which nothing follows the last frames that are lost. `missing`
/// samples are missing in all, if the end of the file tells.
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

const OTHER_SAMPLES: &str = "the trace has other samples than its end says";
const OTHER_THREADS: &str = "the trace has other threads than its end says";
const OTHER_OBJECTS: &str = "the trace has other objects than its end says";

/// How much a file holds, by its EOF object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    /// Samples.
    pub(super) samples: u64,
    /// Threads.
    pub(super) threads: u32,
    /// Thread-neutral objects, each time they are written.
    pub(super) objects: u32,
}

/// What was counted up to the end of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Totals {
    /// What the end of the file says.
    pub(super) eof: Option<Counts>,
    /// Samples that are there.
    pub(super) samples: u64,
    /// Threads, those included that are only referred to.
    pub(super) threads: u32,
    /// Thread-neutral objects that are there, each time they are written.
    pub(super) objects: u64,
    /// Samples of which later blocks tell that they are lost.
    pub(super) lost: u64,
    /// How often frames were lost.
    pub(super) losses: u64,
}

impl Totals {
    /// How many samples are missing of which no later block tells; `None` if only the end of the
    /// file, which is missing too, would tell.
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

    /// How many are missing of what should be there; only where frames are lost may any be.
    fn missing_of(&self, expected: u64, found: u64) -> Option<u64> {
        expected.checked_sub(found).filter(|missing| *missing == 0 || self.losses > 0)
    }
}
