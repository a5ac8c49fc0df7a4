//! Reads the names that a program gives its threads in a language's runtime.
//!
//! # Invariants
//! - A name is read soon after the thread is known, and again at a bounded rate: the program may
//!   set it later, or change it. With many threads, each one gets its turn.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::proc::{ProcessMemory, thread_time};
use crate::record::batch::Batch;
use crate::record::batch::threads::{ThreadChange, ThreadKey};
use crate::record::store::threads::{NamedThread, Registry};
use crate::runtime::{NamesThreads, ThreadNameMemo, WantedNames};

/// The time after which a name is read again, if it was found and if it was not.
const AGAIN: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(100);
/// The largest number of threads whose names are read for one batch.
const THREADS_MAX: usize = 512;
/// The part of a processor's time that the reading may take: one in this many.
const COST_SHARE: u32 = 20;
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
    memos: Vec<ThreadNameMemo>,
    /// The time before which nothing is read, because the last reading took long.
    pause: Option<Instant>,
}

impl ThreadNameReader {
    /// Adds to a batch the names of threads that are new or have changed.
    pub(crate) fn read(
        &mut self,
        batch: &mut Batch,
        runtimes: &[&dyn NamesThreads],
        (pid, threads): (i32, &Registry),
    ) {
        let now = Instant::now();
        if runtimes.is_empty() || self.pause.is_some_and(|until| now < until) {
            return;
        }
        if self.known.len() > KNOWN_MAX {
            let living: HashSet<ThreadKey> = threads.announced().map(|it| it.key).collect();
            self.known.retain(|key, _| living.contains(key));
        }
        let since = thread_time();
        let sampled: HashSet<u32> = batch.samples.iter().map(|sample| sample.slot).collect();
        let wanted = self.wanted(threads.announced(), &sampled, now);
        if wanted.is_empty() {
            return;
        }
        let tids: HashSet<u32> = wanted.iter().map(|it| it.inner_tid).collect();
        let wanted_names = WantedNames { tids: &tids, first: threads.inner_pid() };
        let memory = ProcessMemory::of(pid);
        self.memos.resize_with(runtimes.len(), ThreadNameMemo::default);
        let mut found: HashMap<u32, String> = HashMap::new();
        for (runtime, memo) in runtimes.iter().zip(&mut self.memos) {
            found.extend(runtime.thread_names(memo, &memory, wanted_names));
        }
        for NamedThread { key, inner_tid, .. } in wanted {
            let name = found.remove(&inner_tid);
            // Another thread may have taken the id meanwhile.
            if let Some(name) = self.note(key, name, now)
                && threads.is_still(key)
            {
                self.known.entry(key).and_modify(|it| it.name = Some(name.clone()));
                batch.threads.push(ThreadChange::NamedInRuntime { key, name });
            }
        }
        let cost = thread_time().saturating_sub(since);
        self.pause = Some(Instant::now() + cost * COST_SHARE);
    }

    /// Returns the threads whose names are to be read: those whose turn never came first, and then
    /// those with samples in the batch. Among these, the one that waits the longest is first.
    fn wanted(
        &self,
        threads: impl Iterator<Item = NamedThread>,
        sampled: &HashSet<u32>,
        now: Instant,
    ) -> Vec<NamedThread> {
        let due = |it: &NamedThread| self.known.get(&it.key).map(|known| known.due);
        let mut wanted: Vec<NamedThread> =
            threads.filter(|it| due(it).is_none_or(|due| due <= now)).collect();
        wanted.sort_by_key(|it| {
            let due = due(it);
            (due.is_some(), !sampled.contains(&it.key.0), due)
        });
        wanted.truncate(THREADS_MAX);
        wanted
    }

    /// Notes what was found of a thread, and returns the name if it is another one than before.
    fn note(&mut self, key: ThreadKey, name: Option<String>, now: Instant) -> Option<String> {
        let unknown = KnownThread { name: None, misses: 0, due: now };
        let known = self.known.entry(key).or_insert(unknown);
        if name.is_none() {
            known.misses = known.misses.saturating_add(1);
            known.due = now + AGAIN.min(SOON.saturating_mul(known.misses));
            return None;
        }
        (known.misses, known.due) = (0, now + AGAIN);
        name.filter(|name| known.name.as_ref() != Some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(count: u32) -> impl Iterator<Item = NamedThread> {
        (0..count).map(|number| NamedThread { key: (number, 0), inner_tid: number + 1 })
    }

    #[test]
    fn the_turn_of_each_of_many_threads_comes() {
        let (mut reader, start) = (ThreadNameReader::default(), Instant::now());
        let count = 10 * THREADS_MAX as u32;
        // The same threads have samples in each batch.
        let sampled: HashSet<u32> = (0..2 * THREADS_MAX as u32).collect();
        let mut named = HashSet::new();
        for round in 0..10 {
            let now = start + AGAIN * round;
            for it in reader.wanted(threads(count), &sampled, now) {
                // Every third one has no name.
                let name = (it.key.0 % 3 > 0).then(|| it.key.0.to_string());
                assert_eq!(reader.note(it.key, name.clone(), now), name);
                assert!(named.insert(it.key), "{it:?} before others");
            }
        }
        assert_eq!(named.len(), count as usize);
        let again = reader.wanted(threads(count), &sampled, start + AGAIN * 10);
        assert!(again.iter().all(|it| sampled.contains(&it.key.0)));
        assert_eq!(again.len(), THREADS_MAX);
    }

    #[test]
    fn names_are_read_again_at_intervals() {
        let (mut reader, start) = (ThreadNameReader::default(), Instant::now());
        let is_due = |reader: &ThreadNameReader, now| {
            !reader.wanted(threads(1), &HashSet::new(), now).is_empty()
        };
        for misses in 1..=20 {
            assert_eq!(reader.note((0, 0), None, start), None);
            let pause = AGAIN.min(SOON * misses);
            assert!(!is_due(&reader, start + pause - SOON / 2), "{misses}");
            assert!(is_due(&reader, start + pause), "{misses}");
        }
        assert!(reader.note((0, 0), Some("a".into()), start).is_some());
        assert!(!is_due(&reader, start + SOON) && is_due(&reader, start + AGAIN));
    }
}
