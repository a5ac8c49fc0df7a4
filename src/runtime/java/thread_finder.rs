//! Threads by the kernel's ids: finds the machine's structures, and reads names and waits there.
//!
//! # Invariants
//! - A structure is returned only if it says now that it is of that thread.
//! - The search for unknown threads takes a bounded part of the time, however many there are.
//! - A name or a wait is read twice, since the collector moves objects. With ZGC none is read.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::machine::JavaMachine;
use super::threads::ThreadReader;
use crate::runtime::{NamesThreads, TargetMemory, ThreadNameMemo, WantedNames};

/// The part of the time that the searches may take: one in this many.
const COST_SHARE: u32 = 20;
/// The shortest time between the start of two searches.
const PAUSE: Duration = Duration::from_millis(20);

/// Number of threads whose names one reading has.
const NAMES_AT_ONCE: usize = 64;

/// Finds structures, and remembers where they were.
#[derive(Debug, Default)]
struct ThreadFinder {
    /// By thread id in the process's own namespace.
    known: HashMap<u32, u64>,
    /// The time before which the threads are not listed again.
    pause: Option<Instant>,
}

impl ThreadFinder {
    /// Returns the structure of a thread. `None` also for a thread that has just been started.
    fn find(&mut self, reader: &ThreadReader<'_>, tid: u32) -> Option<u64> {
        let is_it = |structure: &u64| reader.tid(*structure) == Some(tid);
        if let Some(found) = self.known.get(&tid).copied().filter(is_it) {
            return Some(found);
        }
        let start = Instant::now();
        if self.pause.is_some_and(|until| start < until) {
            return None;
        }
        let structures = reader.thread_structures().unwrap_or_default();
        let with_tid = |structure| Some((reader.tid(structure)?, structure));
        self.known = structures.into_iter().filter_map(with_tid).collect();
        let now = Instant::now();
        self.pause = Some(now + PAUSE.max(now.duration_since(start) * COST_SHARE));
        self.known.get(&tid).copied()
    }
}

/// Returns what two readings of a machine's memory find, if that is the same.
fn settled<T: PartialEq>(
    machine: &JavaMachine,
    memory: &dyn TargetMemory,
    mut read: impl FnMut(&ThreadReader<'_>) -> Option<T>,
) -> Option<T> {
    if machine.has_late_references() {
        return None;
    }
    let (first, second) = (machine.now(memory), machine.now(memory));
    let found = read(&first.thread_reader())?;
    (read(&second.thread_reader()).as_ref() == Some(&found)).then_some(found)
}

/// Reads what threads of one machine wait for, and remembers where their structures are.
#[derive(Debug, Default)]
pub struct JavaWaits(ThreadFinder);

impl JavaWaits {
    /// Returns what a thread waits on, for people. `None` if the machine does not know it.
    ///
    /// The caller drops the result if the thread ran meanwhile.
    pub fn of(
        &mut self,
        machine: &JavaMachine,
        memory: &dyn TargetMemory,
        tid: u32,
    ) -> Option<String> {
        let activity = settled(machine, memory, |threads| {
            let thread = self.0.find(threads, tid)?;
            threads.activity(thread)
        });
        activity?.waits_on()
    }
}

impl NamesThreads for JavaMachine {
    fn thread_names(
        &self,
        memo: &mut ThreadNameMemo,
        memory: &dyn TargetMemory,
        wanted: WantedNames<'_>,
    ) -> Vec<(u32, String)> {
        let mut finder: Box<ThreadFinder> = memo.take();
        let mut found = Vec::new();
        let wanted: Vec<u32> = wanted.tids.iter().copied().collect();
        for tids in wanted.chunks(NAMES_AT_ONCE).filter(|_| !self.has_late_references()) {
            let mut names = || {
                let reader = self.now(memory);
                let threads = reader.thread_reader();
                let mut name = |tid: &u32| threads.name(finder.find(&threads, *tid)?);
                tids.iter().map(&mut name).collect::<Vec<_>>()
            };
            let (first, second) = (names(), names());
            let both = tids.iter().zip(first.into_iter().zip(second));
            found.extend(both.filter_map(|(tid, (first, second))| {
                let name =
                    first.filter(|name| !name.is_empty() && second.as_ref() == Some(name))?;
                Some((*tid, name))
            }));
        }
        memo.keep(finder);
        found
    }
}
