//! Reads the names that a program gives its threads in a language's runtime.
//!
//! # Invariants
//! - A name is read soon after the thread is known, and again at a bounded rate: the program may
//!   set it later, or change it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::proc::ProcessMemory;
use crate::record::batch::Batch;
use crate::record::batch::threads::{ThreadChange, ThreadKey};
use crate::record::store::threads::{NamedThread, Registry};
use crate::runtime::{Runtime, ThreadNames, WantedNames};

/// The time after which a name is read again, if it was found and if it was not.
const AGAIN: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(100);
/// The largest number of threads whose names are read for one batch.
const THREADS_MAX: usize = 64;
/// The number of threads of which something is remembered, before exited ones are forgotten.
const KNOWN_MAX: usize = 4096;

/// What is known of a thread.
#[derive(Debug)]
struct KnownThread {
    name: Option<String>,
    /// How often it was not found since the last time that it was.
    misses: u32,
    due: Instant,
}

/// Reads names of threads, and remembers them.
#[derive(Debug, Default)]
pub(crate) struct ThreadNameReader {
    known: HashMap<ThreadKey, KnownThread>,
    /// One for each runtime.
    names: Vec<ThreadNames>,
}

impl ThreadNameReader {
    /// Adds to a batch the names of threads that are new or have changed. Threads with samples in
    /// the batch come first.
    pub(crate) fn read(
        &mut self,
        batch: &mut Batch,
        runtimes: &[Arc<Runtime>],
        (pid, threads): (i32, &Registry),
    ) {
        if runtimes.is_empty() {
            return;
        }
        let now = Instant::now();
        if self.known.len() > KNOWN_MAX {
            let living: HashSet<ThreadKey> = threads.announced().map(|it| it.key).collect();
            self.known.retain(|key, _| living.contains(key));
        }
        let is_due = |it: &NamedThread| self.known.get(&it.key).is_none_or(|it| it.due <= now);
        let mut wanted: Vec<NamedThread> = threads.announced().filter(is_due).collect();
        if wanted.is_empty() {
            return;
        }
        let sampled: HashSet<u32> = batch.samples.iter().map(|sample| sample.slot).collect();
        wanted.sort_by_key(|it| !sampled.contains(&it.key.0));
        wanted.truncate(THREADS_MAX);
        let tids: HashSet<u32> = wanted.iter().map(|it| it.inner_tid).collect();
        let wanted_names = WantedNames { tids: &tids, first: threads.inner_pid() };
        let memory = ProcessMemory::of(pid);
        self.names.resize_with(runtimes.len(), ThreadNames::default);
        let mut found: HashMap<u32, String> = HashMap::new();
        for (runtime, names) in runtimes.iter().zip(&mut self.names) {
            found.extend(runtime.thread_names(names, &memory, wanted_names));
        }
        for NamedThread { key, inner_tid, .. } in wanted {
            let name = found.remove(&inner_tid);
            let known =
                self.known.entry(key).or_insert(KnownThread { name: None, misses: 0, due: now });
            let Some(name) = name else {
                known.misses = known.misses.saturating_add(1);
                known.due = now + AGAIN.min(SOON * known.misses);
                continue;
            };
            (known.misses, known.due) = (0, now + AGAIN);
            // Another thread may have taken the id meanwhile.
            if known.name.as_ref() != Some(&name) && threads.is_still(key) {
                known.name = Some(name.clone());
                batch.threads.push(ThreadChange::NamedInRuntime { key, name });
            }
        }
    }
}
