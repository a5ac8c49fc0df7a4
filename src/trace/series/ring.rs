//! A ring of the last parts of a series, from which traces are saved during the recording.
//!
//! # Invariants
//! - A part is removed only when nobody reads it.
//! - A saved trace has the ring's complete time span, however many parts earlier saves have
//!   created.
//! - One save runs at a time, in the order of the requests.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::TraceSeries;
use crate::trace::join_parts::{join, join_parts};
use crate::trace::{TraceError, WriterOptions, Written};

/// The most saves that may wait; each takes as much work as the ring is large.
const WAITING_MAX: usize = 16;

/// The plan of a ring: its parts and the traces that are saved from it.
pub struct RingPlan {
    /// The time span of the ring: a part is removed when its last sample is older than the last of
    /// all by more than this.
    pub time: Duration,
    /// The directory of the parts, which is removed when the ring is saved at the end.
    pub directory: PathBuf,
    /// Returns the path of a trace that is saved during the recording.
    pub save: Arc<dyn Fn() -> PathBuf + Send + Sync>,
    /// Returns the path of the trace that is saved at the end.
    pub last: Box<dyn Fn() -> PathBuf + Send>,
}

/// A trace that was saved, or could not be.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedTrace {
    /// The data file.
    pub path: PathBuf,
    /// The contents, or the reason why it could not be written.
    pub outcome: Result<Written, String>,
}

/// A shared handle to the list of saved traces. It can be polled during the recording.
#[derive(Debug, Clone, Default)]
pub struct Saves(Arc<Mutex<SaveList>>);

/// The saved traces, and the number of those that were reported.
#[derive(Debug, Default)]
struct SaveList {
    all: Vec<SavedTrace>,
    reported: usize,
    /// Whether the contents of the ring at the end were dropped, since nobody requested them.
    is_dropped: bool,
}

impl Saves {
    fn list(&self) -> MutexGuard<'_, SaveList> {
        // A push leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, path: &Path, outcome: &Result<Written, TraceError>) {
        let outcome = outcome.as_ref().copied().map_err(TraceError::to_string);
        self.list().all.push(SavedTrace { path: path.to_owned(), outcome });
    }

    /// Returns the traces that were saved since the last call, through any handle.
    pub fn take_new(&self) -> Vec<SavedTrace> {
        let mut list = self.list();
        let new: Vec<SavedTrace> = list.all.iter().skip(list.reported).cloned().collect();
        list.reported += new.len();
        new
    }

    /// Returns whether the contents of the ring at the end were dropped, since nobody had requested
    /// them.
    pub fn is_dropped(&self) -> bool {
        self.list().is_dropped
    }

    /// Returns all saved traces.
    pub fn all(&self) -> Vec<SavedTrace> {
        self.list().all.clone()
    }
}

/// A requested save.
struct Job {
    parts: Vec<PathBuf>,
    options: WriterOptions,
}

/// The ring of a series.
pub(super) struct Ring {
    plan: RingPlan,
    saves: Saves,
    jobs: Sender<Job>,
    /// The number of saves that are not done.
    waiting: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
    /// Whether to drop the contents of the ring at the end.
    drops_rest: bool,
}

impl Ring {
    /// Creates the ring and its saving thread.
    pub(super) fn new(plan: RingPlan) -> io::Result<Self> {
        let (saves, waiting) = (Saves::default(), Arc::<AtomicUsize>::default());
        let (jobs, theirs) = channel();
        let (save, done) = (Arc::clone(&plan.save), (saves.clone(), Arc::clone(&waiting)));
        let work = move || work(&theirs, &*save, &done);
        let thread = std::thread::Builder::new().name("ring".to_owned()).spawn(work)?;
        Ok(Self { plan, saves, jobs, waiting, thread, drops_rest: false })
    }

    /// Returns whether nobody reads the parts.
    pub(super) fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release in `work`; makes the end of its reads of the parts
        // visible.
        self.waiting.load(Ordering::Acquire) == 0 || self.thread.is_finished()
    }

    pub(super) fn saves(&self) -> Saves {
        self.saves.clone()
    }

    /// Returns whether a part is completely older than the ring's time span, given the time of its
    /// last sample and that of the last sample of all.
    pub(super) fn is_past(&self, part_ns: u64, now_ns: u64) -> bool {
        let time_ns = u64::try_from(self.plan.time.as_nanos()).unwrap_or(u64::MAX);
        part_ns.saturating_add(time_ns) < now_ns
    }

    /// Saves these parts while the recording continues.
    fn save(&self, parts: Vec<PathBuf>, options: WriterOptions) {
        if parts.is_empty() {
            return self.refuse("no samples are written yet");
        }
        // Relaxed: only this thread adds to it.
        if self.waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            return self.refuse("too many saves are waiting already");
        }
        // Relaxed: the parts go through the channel.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.jobs.send(Job { parts, options }).is_err() {
            self.refuse("the saving thread has failed");
        }
    }

    /// Records why there is no save.
    fn refuse(&self, why: &str) {
        let outcome = Err(why.to_owned());
        self.saves.list().all.push(SavedTrace { path: (self.plan.save)(), outcome });
    }

    /// Saves these parts at the end, which are then the complete ring. If `drops_rest` is set,
    /// removes them instead, unless the last requested save failed: then this save replaces it.
    pub(super) fn finish(
        self,
        (parts, are_all): (&[PathBuf], bool),
        options: WriterOptions,
    ) -> Result<Written, TraceError> {
        let Self { plan, saves, jobs, thread, drops_rest, .. } = self;
        drop(jobs);
        // The thread has recorded each outcome, and a panic reports itself.
        let _ = thread.join();
        let last = saves.list().all.last().map(|saved| saved.outcome.clone());
        if drops_rest && !matches!(last, Some(Err(_))) {
            saves.list().is_dropped = true;
            remove_all(parts, &plan.directory);
            return Ok(last.and_then(Result::ok).unwrap_or_default());
        }
        let path = (plan.last)();
        let outcome = join_parts((parts, are_all), &path, options);
        saves.add(&path, &outcome);
        if outcome.is_ok() {
            remove_all(parts, &plan.directory);
        }
        outcome
    }
}

/// Removes the parts and their directory.
fn remove_all(parts: &[PathBuf], directory: &Path) {
    for part in parts {
        super::remove(part);
    }
    // A directory with other files stays.
    let _ = std::fs::remove_dir(directory);
}

/// Saves one job after the other, until the channel closes.
fn work(
    jobs: &Receiver<Job>,
    save: &dyn Fn() -> PathBuf,
    (saves, waiting): &(Saves, Arc<AtomicUsize>),
) {
    while let Ok(Job { parts, options }) = jobs.recv() {
        // Not earlier: until the previous save has created its file, the first free name is that of
        // the previous save.
        let path = save();
        saves.add(&path, &join(&parts, &path, options));
        // Release: pairs with the Acquire in `Ring::is_idle`.
        waiting.fetch_sub(1, Ordering::Release);
    }
}

impl TraceSeries {
    /// Returns the traces that were saved from a ring; empty for other series.
    pub fn saves(&self) -> Saves {
        let ring = self.parts.as_ref().and_then(|parts| parts.ring.as_ref());
        ring.map_or_else(Saves::default, Ring::saves)
    }

    /// Drops the contents of the ring at the end, unless the last requested save failed.
    pub fn drop_rest(&mut self) {
        if let Some(ring) = self.parts.as_mut().and_then(|parts| parts.ring.as_mut()) {
            ring.drops_rest = true;
        }
    }

    /// Saves the contents of the ring while the recording continues. [`Self::saves`] reports the
    /// outcome.
    pub fn save(&mut self) -> Result<(), TraceError> {
        let Some(parts) = self.parts.as_mut().filter(|parts| parts.ring.is_some()) else {
            return Ok(());
        };
        if parts.part.has_samples {
            parts.rotate(&mut self.writer)?;
        }
        // The last part is empty and being written.
        let closed = parts.kept.len().saturating_sub(1);
        let whole: Vec<PathBuf> =
            parts.kept.iter().take(closed).map(|part| part.path.clone()).collect();
        if let Some(ring) = &parts.ring {
            ring.save(whole, parts.options.clone());
        }
        Ok(())
    }
}
