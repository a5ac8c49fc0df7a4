//! Threads that block the sampling signal.
//!
//! Many threads block all signals for a moment: the C library does so in a thread that creates
//! another, and in the new thread. A thread counts as blocking only if two scans in a row find the
//! signal blocked, no sample arrived between them, and repeated checks at the second scan find it
//! blocked too.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;

use crate::proc;

/// The shortest time between two scans.
const SCAN_MIN: Duration = Duration::from_millis(20);
/// The shortest time between the last two scans of a recording.
const LAST_SCAN_MIN: Duration = Duration::from_millis(10);
/// The longest time between two scans.
const SCAN_MAX: Duration = Duration::from_secs(1);
/// Scans may take one part in this many of the recorder's time; each thread takes a few
/// microseconds.
const SCAN_SHARE: u32 = 200;

/// The number of checks before a thread counts as blocking.
const CONFIRMATIONS: usize = 10;
/// The pause between two of these checks, longer than the creation of a thread takes.
const PAUSE: Duration = Duration::from_micros(200);

/// A thread that blocked the signal at the last scan.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    cpu_ns: u64,
    samples: u64,
    /// Whether the thread counts as blocking, since the previous scan found the signal blocked too.
    is_sure: bool,
    /// The thread's CPU time when a scan first found the signal blocked.
    first_ns: u64,
}

/// The threads of one process that block a signal.
pub(crate) struct Blocked {
    pid: i32,
    data: DataSegment,
    threads: BTreeMap<i32, Suspect>,
    names: HashMap<i32, String>,
    /// CPU time, in nanoseconds, that threads used while they blocked the signal; only of threads
    /// that no longer do.
    past_ns: u64,
    last_scan: Option<Instant>,
    due: Instant,
    period: Duration,
}

impl Blocked {
    /// Makes an empty list for a process.
    pub(crate) fn new(pid: i32, data: DataSegment) -> Self {
        Self {
            pid,
            data,
            threads: BTreeMap::new(),
            names: HashMap::new(),
            past_ns: 0,
            last_scan: None,
            due: Instant::now(),
            period: SCAN_MIN,
        }
    }

    /// Checks whether a scan is due.
    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Returns whether the last scan is long enough ago for another one to be meaningful.
    pub(crate) fn may_scan_again(&self) -> bool {
        self.last_scan.is_none_or(|last_scan| last_scan.elapsed() >= LAST_SCAN_MIN)
    }

    /// Scans threads (outer id, inner id, name) and returns those newly found to block the signal.
    ///
    /// Between two scans there must be at least ten milliseconds.
    pub(crate) fn scan<'a>(
        &mut self,
        signal: i32,
        threads: impl Iterator<Item = (i32, u32, &'a str)>,
    ) -> Vec<i32> {
        let start = Instant::now();
        let before = std::mem::take(&mut self.threads);
        let mut found = Vec::new();
        for (tid, inner, name) in threads {
            let Some(state) = blocks(self.pid, tid, signal) else { continue };
            let cpu_ns = proc::task_cpu_or_ticks_ns(self.pid, tid).unwrap_or(0);
            let now =
                Suspect { cpu_ns, samples: self.samples(inner), is_sure: false, first_ns: cpu_ns };
            let suspect = before.get(&tid).map_or(now, |before| judge(before, now, state));
            if suspect.is_sure && !before.get(&tid).is_some_and(|before| before.is_sure) {
                found.push((tid, name));
            }
            self.threads.insert(tid, suspect);
        }
        let found = self.confirm(signal, found);
        for (tid, suspect) in before.iter().filter(|(_, suspect)| suspect.is_sure) {
            if !self.threads.contains_key(tid) {
                // The thread no longer blocks the signal, or has exited.
                self.past_ns += self.used_ns(*tid, suspect);
                self.names.remove(tid);
            }
        }
        self.period = (self.period * 2).min(SCAN_MAX).max(start.elapsed() * SCAN_SHARE);
        self.last_scan = Some(Instant::now());
        self.due = Instant::now() + self.period;
        found
    }

    /// Returns those of the threads that block the signal all the time, after repeated checks.
    ///
    /// A thread that keeps starting others blocks the signal half of its time. If a thread waits
    /// for a processor meanwhile, the checks say nothing, and the next scan checks it again.
    fn confirm(&mut self, signal: i32, mut threads: Vec<(i32, &str)>) -> Vec<i32> {
        let cpu_ns = |pid, tid| proc::task_cpu_or_ticks_ns(pid, tid).unwrap_or(0);
        let used = |(tid, _): &(i32, &str)| (*tid, cpu_ns(self.pid, *tid));
        let before: HashMap<i32, u64> = threads.iter().map(used).collect();
        for check in 0..CONFIRMATIONS {
            if threads.is_empty() {
                break;
            }
            std::thread::sleep(PAUSE);
            threads.retain(|(tid, _)| {
                let state = blocks(self.pid, *tid, signal);
                let is_last = check + 1 == CONFIRMATIONS;
                let has_moved_on = || state == Some('S') || before[tid] < cpu_ns(self.pid, *tid);
                let is_confirmed = state.is_some() && (!is_last || has_moved_on());
                if !is_confirmed && let Some(suspect) = self.threads.get_mut(tid) {
                    suspect.is_sure = false;
                }
                is_confirmed
            });
        }
        let names = threads.iter().map(|(tid, name)| (*tid, (*name).to_owned()));
        self.names.extend(names);
        threads.into_iter().map(|(tid, _)| tid).collect()
    }

    /// Returns the threads that block the signal now, with their names.
    pub(crate) fn list(&self) -> Vec<(i32, String)> {
        let sure = self.threads.iter().filter(|(_, suspect)| suspect.is_sure);
        sure.map(|(tid, _)| (*tid, self.name(*tid).to_owned())).collect()
    }

    /// Returns the name of a thread that blocks the signal, or an empty string.
    pub(crate) fn name(&self, tid: i32) -> &str {
        self.names.get(&tid).map_or("", String::as_str)
    }

    /// Returns whether the thread blocks the signal.
    pub(crate) fn holds(&self, tid: i32) -> bool {
        self.threads.get(&tid).is_some_and(|suspect| suspect.is_sure)
    }

    /// Returns the CPU time, in nanoseconds, that threads used while they blocked the signal.
    pub(crate) fn cpu_ns(&self) -> u64 {
        let sure = self.threads.iter().filter(|(_, suspect)| suspect.is_sure);
        self.past_ns + sure.map(|(tid, suspect)| self.used_ns(*tid, suspect)).sum::<u64>()
    }

    fn used_ns(&self, tid: i32, suspect: &Suspect) -> u64 {
        // For a thread that has exited, the last reading counts.
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

/// Returns the state of a thread that blocks the signal, or `None` if it does not.
pub(crate) fn blocks(pid: i32, tid: i32, signal: i32) -> Option<char> {
    let status = proc::task_status(pid, tid).ok()?;
    status.blocks(signal).then_some(status.state)
}

/// Decides whether a thread that blocks the signal at a second scan counts as blocking.
fn judge(before: &Suspect, now: Suspect, state: char) -> Suspect {
    // A thread that waits for a processor has not moved on: it may be about to unblock signals. A
    // thread in an uninterruptible sleep may wait for a child that it has just created.
    let has_moved_on = now.cpu_ns > before.cpu_ns || state == 'S';
    let is_sure = before.is_sure || has_moved_on && now.samples == before.samples;
    Suspect { is_sure, first_ns: before.first_ns, ..now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_counts_if_it_blocks_the_signal_twice_without_a_sample() {
        let at = |cpu_ns, samples| Suspect { cpu_ns, samples, is_sure: false, first_ns: cpu_ns };
        let check = |before: Suspect, now: Suspect, state, expected| {
            let found = judge(&before, now, state);
            assert_eq!((found.is_sure, found.first_ns), (expected, before.first_ns));
        };
        check(at(100, 3), at(200, 3), 'R', true);
        check(at(100, 3), at(100, 3), 'S', true);
        // Created and not yet run; in the middle of a fork; sampled.
        check(at(100, 3), at(100, 3), 'R', false);
        check(at(100, 3), at(100, 3), 'D', false);
        check(at(100, 3), at(200, 4), 'R', false);
        // A thread with a timer has samples, although it blocks the signal.
        check(Suspect { is_sure: true, ..at(100, 3) }, at(200, 4), 'R', true);
    }

    /// A thread that starts others behaves like this; every scan may find the signal blocked.
    #[test]
    fn a_thread_that_blocks_the_signal_off_and_on_does_not_count() {
        use crate::record::target::shm::own_data;
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
                let found = blocked.scan(libc::SIGTRAP, [(tid, tid as u32, "me")].into_iter());
                assert_eq!((found.len(), blocked.list().len()), (0, 0));
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn threads_are_found_at_the_second_scan_and_dropped_when_they_unblock() {
        use crate::record::target::shm::own_data;
        use nix::sys::signal::{SigSet, SigmaskHow, Signal};
        let data = own_data();
        let pid = std::process::id() as i32;
        let tid = nix::unistd::gettid().as_raw();
        let mut blocked = Blocked::new(pid, data);
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTRAP);
        let set = |how| mask.thread_swap_mask(how).unwrap();
        let mut scan = |burn: u32| {
            let until = proc::task_cpu_or_ticks_ns(pid, tid).unwrap() + u64::from(burn) * 1_000_000;
            while proc::task_cpu_or_ticks_ns(pid, tid).unwrap() < until {}
            let found = blocked.scan(libc::SIGTRAP, [(tid, tid as u32, "me")].into_iter());
            (found, blocked.list(), blocked.cpu_ns())
        };
        set(SigmaskHow::SIG_BLOCK);
        assert_eq!(scan(1), (vec![], vec![], 0));
        let (found, list, cpu_ns) = scan(5);
        assert_eq!((found, list), (vec![tid], vec![(tid, "me".to_owned())]));
        assert!(cpu_ns >= 5_000_000, "counted since the first scan: {cpu_ns}");
        assert!(scan(1).0.is_empty(), "reported once");
        set(SigmaskHow::SIG_UNBLOCK);
        let (found, list, cpu_ns) = scan(1);
        assert_eq!((found, list), (vec![], vec![]));
        assert!(cpu_ns >= 6_000_000, "its time still counts: {cpu_ns}");
        assert!(!blocked.is_due(), "scans are rare");
    }
}
