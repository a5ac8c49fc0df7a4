//! The last parts of a series as a ring, and what is saved of it while it goes on.
//!
//! # Invariants
//! - A part is removed only when nobody reads it.
//! - What is saved has all of the ring's time, however many parts saves have made of it.
//! - One save is made at a time, in the order in which they were asked for.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::TraceSeries;
use crate::trace::join::{join, join_parts};
use crate::trace::{TraceError, WriterOptions, Written};

/// Saves that wait for another one; each is as much work as the ring is large.
const WAITING_MAX: usize = 16;

/// Where the parts of a ring are, and where it is saved.
pub struct RingPlan {
    /// What it keeps: a part is removed when its last sample is so much older than the last of all.
    pub time: Duration,
    /// The directory of the parts, which goes when the ring is saved at the end.
    pub directory: PathBuf,
    /// The name of what is saved while the recording goes on,
    pub save: Arc<dyn Fn() -> PathBuf + Send + Sync>,
    /// and at its end.
    pub last: Box<dyn Fn() -> PathBuf + Send>,
}

/// Something that was saved.
#[derive(Debug, Clone, PartialEq)]
pub struct Saved {
    /// The data file.
    pub path: PathBuf,
    /// What it has, or why it could not be written.
    pub outcome: Result<Written, String>,
}

/// All that was saved so far, as a handle that can be looked at meanwhile.
#[derive(Debug, Clone, Default)]
pub struct Saves(Arc<Mutex<SaveList>>);

/// What was saved, and how much of it was asked for.
#[derive(Debug, Default)]
struct SaveList {
    all: Vec<Saved>,
    told: usize,
    /// What was in the ring at the end was not asked for.
    is_dropped: bool,
}

impl Saves {
    fn list(&self) -> MutexGuard<'_, SaveList> {
        // A push leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, path: &Path, outcome: &Result<Written, TraceError>) {
        let outcome = outcome.as_ref().copied().map_err(TraceError::to_string);
        self.list().all.push(Saved { path: path.to_owned(), outcome });
    }

    /// What was saved since this was asked last, by whichever handle.
    pub fn news(&self) -> Vec<Saved> {
        let mut list = self.list();
        let news: Vec<Saved> = list.all.iter().skip(list.told).cloned().collect();
        list.told += news.len();
        news
    }

    /// What was in the ring at the end was not saved, as nobody had asked for that.
    pub fn is_dropped(&self) -> bool {
        self.list().is_dropped
    }

    /// All that was saved.
    pub fn all(&self) -> Vec<Saved> {
        self.list().all.clone()
    }
}

/// A save that was asked for.
struct Job {
    parts: Vec<PathBuf>,
    options: WriterOptions,
}

/// The ring of a series.
pub(super) struct Ring {
    plan: RingPlan,
    saves: Saves,
    jobs: Sender<Job>,
    /// Those that are not done.
    waiting: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
    /// What is in it at the end is not wanted.
    drops_rest: bool,
}

impl Ring {
    /// With the thread that saves it.
    pub(super) fn new(plan: RingPlan) -> io::Result<Self> {
        let (saves, waiting) = (Saves::default(), Arc::<AtomicUsize>::default());
        let (jobs, theirs) = channel();
        let (save, done) = (Arc::clone(&plan.save), (saves.clone(), Arc::clone(&waiting)));
        let work = move || work(&theirs, &*save, &done);
        let thread = std::thread::Builder::new().name("ring".to_owned()).spawn(work)?;
        Ok(Self { plan, saves, jobs, waiting, thread, drops_rest: false })
    }

    /// Nobody reads the parts.
    pub(super) fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release in `work`; what it read of the parts is read.
        self.waiting.load(Ordering::Acquire) == 0 || self.thread.is_finished()
    }

    pub(super) fn saves(&self) -> Saves {
        self.saves.clone()
    }

    /// Whether all of a part is older than what is kept, by the times of its last sample and the
    /// last of all.
    pub(super) fn is_past(&self, part_ns: u64, now_ns: u64) -> bool {
        let time_ns = u64::try_from(self.plan.time.as_nanos()).unwrap_or(u64::MAX);
        part_ns.saturating_add(time_ns) < now_ns
    }

    /// Saves these parts, beside what goes on.
    fn save(&self, parts: Vec<PathBuf>, options: WriterOptions) {
        if parts.is_empty() {
            return self.refuse("nothing is written yet");
        }
        // Relaxed: only this thread adds to it.
        if self.waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            return self.refuse("too many saves wait already");
        }
        // Relaxed: the parts go through the channel.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.jobs.send(Job { parts, options }).is_err() {
            self.refuse("the thread that saves has failed");
        }
    }

    /// Tells why there is no save.
    fn refuse(&self, why: &str) {
        let outcome = Err(why.to_owned());
        self.saves.list().all.push(Saved { path: (self.plan.save)(), outcome });
    }

    /// Saves these parts at the end; what was in the ring is then there. If that is not wanted it
    /// goes, unless a save has failed that was: then it is made up for.
    pub(super) fn finish(
        self,
        (parts, are_all): (&[PathBuf], bool),
        options: WriterOptions,
    ) -> Result<Written, TraceError> {
        let Self { plan, saves, jobs, thread, drops_rest, .. } = self;
        drop(jobs);
        // It has told what became of each; a panic is told of by itself.
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

/// Removes the parts, and what they were in.
fn remove_all(parts: &[PathBuf], directory: &Path) {
    for part in parts {
        super::remove(part);
    }
    // Something else may be in it, which stays.
    let _ = std::fs::remove_dir(directory);
}

/// Saves one after the other, until no more can come.
fn work(
    jobs: &Receiver<Job>,
    save: &dyn Fn() -> PathBuf,
    (saves, waiting): &(Saves, Arc<AtomicUsize>),
) {
    while let Ok(Job { parts, options }) = jobs.recv() {
        // Not before: the first free name is that of the save before until that is there.
        let path = save();
        saves.add(&path, &join(&parts, &path, options));
        // Release: pairs with the Acquire in `Ring::is_idle`.
        waiting.fetch_sub(1, Ordering::Release);
    }
}

impl TraceSeries {
    /// What was saved of a ring; nothing of other series.
    pub fn saves(&self) -> Saves {
        let ring = self.parts.as_ref().and_then(|parts| parts.ring.as_ref());
        ring.map_or_else(Saves::default, Ring::saves)
    }

    /// What is in the ring at the end is not saved, if what was asked for before was.
    pub fn drop_rest(&mut self) {
        if let Some(ring) = self.parts.as_mut().and_then(|parts| parts.ring.as_mut()) {
            ring.drops_rest = true;
        }
    }

    /// Saves what is in the ring, while the recording goes on. What becomes of it, [`Self::saves`]
    /// tells.
    pub fn save(&mut self) -> Result<(), TraceError> {
        let Some(parts) = self.parts.as_mut().filter(|parts| parts.ring.is_some()) else {
            return Ok(());
        };
        if parts.part.has_samples {
            parts.turn(&mut self.writer)?;
        }
        // The last one is empty, and being written.
        let closed = parts.kept.len().saturating_sub(1);
        let whole: Vec<PathBuf> =
            parts.kept.iter().take(closed).map(|part| part.path.clone()).collect();
        if let Some(ring) = &parts.ring {
            ring.save(whole, parts.options.clone());
        }
        Ok(())
    }
}
