//! Threads that the sampling signal does not reach, because they block it.
//!
//! Many block all signals for a moment: the C library does so in whoever creates a thread, and in
//! that thread. Only one that blocks the signal at two looks in a row, got no sample between them,
//! and blocks it whenever it is asked at the second, is taken for one that means it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;

use crate::proc;

/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(20);
/// The same at the end.
const APART: Duration = Duration::from_millis(10);
/// The longest.
const LONGEST: Duration = Duration::from_secs(1);
/// Looks may take one part of so many of the recorder's time: some microseconds for each thread.
const SHARE: u32 = 200;

/// How often a thread is asked before it is believed,
const QUESTIONS: usize = 10;
/// and how long after one another: longer than the creation of a thread takes.
const PAUSE: Duration = Duration::from_micros(200);

/// A thread that blocked the signal at the last look.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    cpu_ns: u64,
    samples: u64,
    /// It was seen blocking it at the look before, too.
    is_sure: bool,
    /// CPU time that it had used when it was seen first.
    first_ns: u64,
}

/// The threads of one process that block a signal.
pub(super) struct Blocked {
    pid: i32,
    data: DataSegment,
    threads: BTreeMap<i32, Suspect>,
    names: HashMap<i32, String>,
    /// CPU time of threads that blocked it for a time.
    past_ns: u64,
    looked: Option<Instant>,
    due: Instant,
    period: Duration,
}

impl Blocked {
    /// Of the process `pid`.
    pub(super) fn new(pid: i32, data: DataSegment) -> Self {
        Self {
            pid,
            data,
            threads: BTreeMap::new(),
            names: HashMap::new(),
            past_ns: 0,
            looked: None,
            due: Instant::now(),
            period: SHORTEST,
        }
    }

    /// Whether it is time for a look.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Whether the last look is long enough ago for another one to say something.
    pub(super) fn is_apart(&self) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= APART)
    }

    /// Looks at threads (id here, id in the target, name); those that are found to block the signal
    /// and were not before. At least some ten milliseconds lie between two looks.
    pub(super) fn look<'a>(
        &mut self,
        signal: i32,
        threads: impl Iterator<Item = (i32, u32, &'a str)>,
    ) -> Vec<i32> {
        let start = Instant::now();
        let before = std::mem::take(&mut self.threads);
        let mut news = Vec::new();
        for (tid, inner, name) in threads {
            let Some(state) = blocks(self.pid, tid, signal) else { continue };
            let cpu_ns = proc::task_cpu_or_ticks_ns(self.pid, tid).unwrap_or(0);
            let now =
                Suspect { cpu_ns, samples: self.samples(inner), is_sure: false, first_ns: cpu_ns };
            let suspect = before.get(&tid).map_or(now, |before| again(before, now, state));
            if suspect.is_sure && !before.get(&tid).is_some_and(|before| before.is_sure) {
                news.push((tid, name));
            }
            self.threads.insert(tid, suspect);
        }
        let news = self.confirm(signal, news);
        for (tid, suspect) in before.iter().filter(|(_, suspect)| suspect.is_sure) {
            if !self.threads.contains_key(tid) {
                // It blocks the signal no more, or is gone.
                self.past_ns += self.used_ns(*tid, suspect);
                self.names.remove(tid);
            }
        }
        self.period = (self.period * 2).min(LONGEST).max(start.elapsed() * SHARE);
        self.looked = Some(Instant::now());
        self.due = Instant::now() + self.period;
        news
    }

    /// Those of the threads that block the signal all of the time, not only again and again: one that
    /// starts threads without end does so for half of its time. One that waits for a processor
    /// meanwhile says nothing; it is asked again at the next look.
    fn confirm(&mut self, signal: i32, mut threads: Vec<(i32, &str)>) -> Vec<i32> {
        let cpu_ns = |pid, tid| proc::task_cpu_or_ticks_ns(pid, tid).unwrap_or(0);
        let used = |(tid, _): &(i32, &str)| (*tid, cpu_ns(self.pid, *tid));
        let before: HashMap<i32, u64> = threads.iter().map(used).collect();
        for question in 0..QUESTIONS {
            if threads.is_empty() {
                break;
            }
            std::thread::sleep(PAUSE);
            threads.retain(|(tid, _)| {
                let state = blocks(self.pid, *tid, signal);
                let is_last = question + 1 == QUESTIONS;
                let got_on = || state == Some('S') || before[tid] < cpu_ns(self.pid, *tid);
                let is_meant = state.is_some() && (!is_last || got_on());
                if !is_meant && let Some(suspect) = self.threads.get_mut(tid) {
                    suspect.is_sure = false;
                }
                is_meant
            });
        }
        let names = threads.iter().map(|(tid, name)| (*tid, (*name).to_owned()));
        self.names.extend(names);
        threads.into_iter().map(|(tid, _)| tid).collect()
    }

    /// Those that block it now, with their names.
    pub(super) fn list(&self) -> Vec<(i32, String)> {
        let sure = self.threads.iter().filter(|(_, suspect)| suspect.is_sure);
        sure.map(|(tid, _)| (*tid, self.name(*tid).to_owned())).collect()
    }

    /// The name of one of them.
    pub(super) fn name(&self, tid: i32) -> &str {
        self.names.get(&tid).map_or("", String::as_str)
    }

    /// Whether the thread is one of them.
    pub(super) fn holds(&self, tid: i32) -> bool {
        self.threads.get(&tid).is_some_and(|suspect| suspect.is_sure)
    }

    /// CPU time that threads have used while they blocked it, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> u64 {
        let sure = self.threads.iter().filter(|(_, suspect)| suspect.is_sure);
        self.past_ns + sure.map(|(tid, suspect)| self.used_ns(*tid, suspect)).sum::<u64>()
    }

    fn used_ns(&self, tid: i32, suspect: &Suspect) -> u64 {
        // Of one that is gone, what was seen last.
        let now_ns = proc::task_cpu_or_ticks_ns(self.pid, tid).unwrap_or(suspect.cpu_ns);
        now_ns.saturating_sub(suspect.first_ns)
    }

    fn samples(&self, inner: u32) -> u64 {
        let threads = self.data.threads();
        let slot = threads.find(inner).and_then(|index| threads.slots.get(index));
        // Relaxed: a count.
        slot.map_or(0, |slot| slot.samples.load(Ordering::Relaxed))
    }
}

/// The state of a thread that blocks the signal; `None` for one that does not.
pub(super) fn blocks(pid: i32, tid: i32, signal: i32) -> Option<char> {
    let status = proc::task_status(pid, tid).ok()?;
    status.blocks(signal).then_some(status.state)
}

/// What a thread is that blocks the signal at a second look.
fn again(before: &Suspect, now: Suspect, state: char) -> Suspect {
    // One that waits for a processor has not got on: it may still be about to let signals through.
    // One in an uninterruptible sleep waits for a child that it has just made.
    let got_on = now.cpu_ns > before.cpu_ns || state == 'S';
    let is_sure = before.is_sure || got_on && now.samples == before.samples;
    Suspect { is_sure, first_ns: before.first_ns, ..now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_blocks_it_twice_and_gets_no_sample_means_it() {
        let at = |cpu_ns, samples| Suspect { cpu_ns, samples, is_sure: false, first_ns: cpu_ns };
        let check = |before: Suspect, now: Suspect, state, expected| {
            let found = again(&before, now, state);
            assert_eq!((found.is_sure, found.first_ns), (expected, before.first_ns));
        };
        check(at(100, 3), at(200, 3), 'R', true);
        check(at(100, 3), at(100, 3), 'S', true);
        // Created, and not yet run; in the middle of a fork; sampled.
        check(at(100, 3), at(100, 3), 'R', false);
        check(at(100, 3), at(100, 3), 'D', false);
        check(at(100, 3), at(200, 4), 'R', false);
        // With a timer it has samples; it blocks the signal all the same.
        check(Suspect { is_sure: true, ..at(100, 3) }, at(200, 4), 'R', true);
    }

    /// As one that starts threads: at every look it blocks the signal, by chance.
    #[test]
    fn who_blocks_it_again_and_again_is_not_believed() {
        use crate::record::shm::own_data;
        use nix::sys::signal::{SigSet, SigmaskHow, Signal};
        use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
        let data = own_data();
        let pid = std::process::id() as i32;
        let (tid, is_over) = (AtomicI32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut mask = SigSet::empty();
                mask.add(Signal::SIGTRAP);
                // Relaxed, all: flags of a test.
                tid.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
                let start = Instant::now();
                while !is_over.load(Ordering::Relaxed) && start.elapsed().as_secs() < 60 {
                    for how in [SigmaskHow::SIG_BLOCK, SigmaskHow::SIG_UNBLOCK] {
                        mask.thread_swap_mask(how).unwrap();
                        let start = Instant::now();
                        while start.elapsed() < Duration::from_micros(70) {}
                    }
                }
            });
            while tid.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            let tid = tid.load(Ordering::Relaxed);
            let mut blocked = Blocked::new(pid, data);
            for _ in 0..30 {
                let news = blocked.look(libc::SIGTRAP, [(tid, tid as u32, "me")].into_iter());
                assert_eq!((news.len(), blocked.list().len()), (0, 0));
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn threads_are_found_at_the_second_look_and_forgotten_when_they_open_up() {
        use crate::record::shm::own_data;
        use nix::sys::signal::{SigSet, SigmaskHow, Signal};
        let data = own_data();
        let pid = std::process::id() as i32;
        let tid = nix::unistd::gettid().as_raw();
        let mut blocked = Blocked::new(pid, data);
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTRAP);
        let set = |how| mask.thread_swap_mask(how).unwrap();
        let mut look = |burn: u32| {
            let until = proc::task_cpu_or_ticks_ns(pid, tid).unwrap() + u64::from(burn) * 1_000_000;
            while proc::task_cpu_or_ticks_ns(pid, tid).unwrap() < until {}
            let news = blocked.look(libc::SIGTRAP, [(tid, tid as u32, "me")].into_iter());
            (news, blocked.list(), blocked.cpu_ns())
        };
        set(SigmaskHow::SIG_BLOCK);
        assert_eq!(look(1), (vec![], vec![], 0));
        let (news, list, cpu_ns) = look(5);
        assert_eq!((news, list), (vec![tid], vec![(tid, "me".to_owned())]));
        assert!(cpu_ns >= 5_000_000, "since it was seen first: {cpu_ns}");
        assert!(look(1).0.is_empty(), "told once");
        set(SigmaskHow::SIG_UNBLOCK);
        let (news, list, cpu_ns) = look(1);
        assert_eq!((news, list), (vec![], vec![]));
        assert!(cpu_ns >= 6_000_000, "its time stays: {cpu_ns}");
        assert!(!blocked.is_due(), "not all the time");
    }
}
