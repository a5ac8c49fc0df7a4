//! The last parts of a series as a ring, and what is saved of it while it goes on.
//!
//! # Invariants
//! - A part is removed only when nobody reads it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::TraceSeries;
use crate::trace::join::{join, join_parts};
use crate::trace::{TraceError, WriterOptions, Written};

/// Where the parts of a ring are, and where it is saved.
pub struct RingPlan {
    /// The directory of the parts, which goes when the ring is saved at the end.
    pub directory: PathBuf,
    /// The name of what is saved while the recording goes on,
    pub save: Box<dyn Fn() -> PathBuf + Send>,
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

    /// All that was saved.
    pub fn all(&self) -> Vec<Saved> {
        self.list().all.clone()
    }
}

/// The ring of a series.
pub(super) struct Ring {
    plan: RingPlan,
    saves: Saves,
    joining: Vec<JoinHandle<()>>,
}

impl Ring {
    pub(super) fn new(plan: RingPlan) -> Self {
        Self { plan, saves: Saves::default(), joining: Vec::new() }
    }

    /// Nobody reads the parts.
    pub(super) fn is_idle(&self) -> bool {
        self.joining.iter().all(JoinHandle::is_finished)
    }

    pub(super) fn saves(&self) -> Saves {
        self.saves.clone()
    }

    /// Saves these parts, beside what goes on.
    fn save(&mut self, parts: Vec<PathBuf>, options: WriterOptions) {
        let path = (self.plan.save)();
        let saves = self.saves.clone();
        let failed = (saves.clone(), path.clone());
        let work = move || {
            let outcome = join(&parts, &path, options);
            saves.add(&path, &outcome);
        };
        match std::thread::Builder::new().name("ring".to_owned()).spawn(work) {
            Ok(thread) => self.joining.push(thread),
            Err(source) => {
                let (saves, path) = failed;
                saves.add(&path, &Err(TraceError::write(&path, source)));
            }
        }
    }

    /// Saves these parts at the end; what was in the ring is then there.
    pub(super) fn finish(
        self,
        (parts, are_all): (&[PathBuf], bool),
        options: WriterOptions,
    ) -> Result<Written, TraceError> {
        for thread in self.joining {
            // It has told what became of it; a panic is told of by itself.
            let _ = thread.join();
        }
        let path = (self.plan.last)();
        let outcome = join_parts((parts, are_all), &path, options);
        self.saves.add(&path, &outcome);
        if outcome.is_ok() {
            for part in parts {
                super::remove(part);
            }
            // Something else may be in it, which stays.
            let _ = std::fs::remove_dir(&self.plan.directory);
        }
        outcome
    }
}

impl TraceSeries {
    /// What was saved of a ring; nothing of other series.
    pub fn saves(&self) -> Saves {
        let ring = self.parts.as_ref().and_then(|parts| parts.ring.as_ref());
        ring.map_or_else(Saves::default, Ring::saves)
    }

    /// Saves what is in the ring, while the recording goes on.
    pub fn save(&mut self) -> Result<(), TraceError> {
        let Some(parts) = self.parts.as_mut().filter(|parts| parts.ring.is_some()) else {
            return Ok(());
        };
        if parts.part.has_samples {
            parts.turn(&mut self.writer)?;
        }
        // The last one is empty, and being written.
        let closed = parts.kept.len().saturating_sub(1);
        let whole: Vec<PathBuf> = parts.kept.iter().take(closed).cloned().collect();
        if let (Some(ring), false) = (&mut parts.ring, whole.is_empty()) {
            ring.save(whole, parts.options.clone());
        }
        Ok(())
    }
}
