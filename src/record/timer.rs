//! The `timer` engine: a CPU timer for each of the target's threads, armed by code of ours that
//! runs in the target anyway.
//!
//! The recorder marks the slots of threads that need a timer; the next handler that runs in the
//! target arms them, whoever's they are, so a thread that sleeps is not woken for its own. Only when
//! nothing of ours runs there and a thread without a timer does, help comes from outside: the priming
//! signal to a thread that has done nothing but compute for a while, or one stop of one thread by
//! the guardian. A signal handler ends `epoll_wait` and a few other calls with EINTR whatever its flags
//! say, and a thread that runs when it is looked at may sleep when the signal arrives (measured: 1
//! to 4 of 100 signals to threads that sleep every millisecond); the guardian repairs that.
//!
//! # Invariants
//! - A slot is asked for at most once for each life of it and each signal, and signalled at most once.
//! - No signal goes to a thread that did not compute since the look before.
//! - Timers end by themselves when their [`Lease`] is not renewed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use traceprof_abi::layout::{self, ARM_MAX, Counter, TIMER_BUSY};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::{SlotState, ThreadSlot};

use super::clock::monotonic_now_ns;
use super::failures::Failures;
use super::lease::Lease;
use super::signals;
use crate::proc;

/// How long a handler is waited for to arm a timer before the thread is looked at.
const PATIENCE: Duration = Duration::from_millis(10);
/// How long a signal's acknowledgement is waited for.
const ACKNOWLEDGE: Duration = Duration::from_millis(100);
/// A thread that was not signalled is helped by the guardian after this.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(20);
/// Between two stops by the guardian.
const ENTRY_PAUSE: Duration = Duration::from_millis(50);
/// Threads that are looked at in one turn,
const LOOKS_MAX: usize = 64;
/// and how long, so that ten thousand that sleep do not take the loop's time.
const LOOKS_TIME: Duration = Duration::from_micros(500);
/// Part of the time between two looks that a thread must have run, in hundredths: what is missing is
/// the distance of the two readings. To have waited for a processor is not enough: it may wait there
/// for the end of a call whose time is over, which a signal would still turn into EINTR (measured, on
/// a busy machine, with `poll`).
const COMPUTES_PERCENT: u128 = 90;

/// A slot whose timer is not there yet.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    tid: i32,
    since: Instant,
    /// It was there when sampling began.
    is_first: bool,
    /// When it was last looked at, and the nanoseconds that it had run until then.
    looked: Option<(Instant, u64)>,
    signalled: Option<Instant>,
}

/// What is done for a thread without a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Help {
    /// Its turn will come, or it needs none.
    None,
    /// It computes: the signal may go to it.
    Signal,
    /// It runs, and nothing else helped.
    Entry,
}

/// The timers of one recording.
pub(super) struct Timers {
    pid: i32,
    data: DataSegment,
    lease: Lease,
    signal: i32,
    /// Threads that have none, as they would take its signal for one that they wait for.
    left_out: Vec<signals::Waiting>,
    waiting: BTreeMap<usize, Waiting>,
    /// The slot at which the next look begins: all have their turn.
    next_look: usize,
    is_first_cover: bool,
    /// Threads that can have none.
    pub(super) failures: Failures,
    entered: Instant,
    /// Priming signals sent.
    pub(super) signals: u64,
}

impl Timers {
    /// For a process whose agent has a handler for `signal`. Timers may be armed from now on, but not
    /// for threads that are left out.
    pub(super) fn start(
        pid: i32,
        data: DataSegment,
        signal: i32,
        left_out: Vec<signals::Waiting>,
    ) -> Self {
        Self {
            pid,
            data,
            lease: Lease::start(data),
            signal,
            left_out,
            waiting: BTreeMap::new(),
            next_look: 0,
            is_first_cover: true,
            failures: Failures::new(pid),
            entered: Instant::now(),
            signals: 0,
        }
    }

    /// Asks for the timers of these threads (id here, id in the target) where they are missing.
    pub(super) fn cover(&mut self, threads: impl Iterator<Item = (i32, u32)>) {
        for (tid, inner) in threads {
            if self.is_left_out(tid) {
                continue;
            }
            let threads = self.data.threads();
            let index = threads.find(inner).or_else(|| threads.claim(inner).index());
            let slot = index.and_then(|index| Some((index, threads.slots.get(index)?)));
            let Some((index, slot)) = slot else { continue };
            if has_timer(slot)
                || self.waiting.contains_key(&index)
                || self.has_failed(tid, (index, slot))
            {
                continue;
            }
            self.data.want_timer(index);
            let (since, is_first) = (Instant::now(), self.is_first_cover);
            let waiting = Waiting { tid, since, is_first, looked: None, signalled: None };
            self.waiting.insert(index, waiting);
        }
        self.is_first_cover = false;
    }

    /// The same thread, not one that has its id after it.
    fn is_left_out(&self, tid: i32) -> bool {
        let started = || proc::task_stat(self.pid, tid).map_or(0, |stat| stat.start_time);
        self.left_out.iter().any(|it| it.tid == tid && it.start_time == started())
    }

    /// Asks for the end of timers whose threads are gone: the kernel keeps them, and counts them
    /// against the user's limit.
    pub(super) fn sweep(&mut self) {
        let threads = self.data.threads();
        self.failures.sweep(threads.slots);
        // Relaxed, all: notes that are looked at again and again; the taker of a bit looks closely.
        let used = threads.next.load(Ordering::Relaxed) as usize;
        for (index, slot) in threads.slots.iter().enumerate().take(used) {
            let timer = slot.timer.load(Ordering::Relaxed);
            let is_left = timer != 0 && timer != TIMER_BUSY;
            let is_gone = slot.tid.load(Ordering::Relaxed) == 0
                || slot.state.load(Ordering::Relaxed) == SlotState::Retired as u32;
            if is_left && is_gone {
                self.data.want_timer(index);
            }
        }
    }

    fn has_failed(&mut self, tid: i32, (index, slot): (usize, &ThreadSlot)) -> bool {
        // Relaxed, both: a note of a handler's, read at leisure; the generation is raised by this
        // side only.
        let errno = slot.timer_error.load(Ordering::Relaxed) as i32;
        let life = (index, slot.generation.load(Ordering::Relaxed));
        // A thread that is gone has none, and needs none.
        if errno != 0 && errno != libc::EINVAL {
            self.failures.note(life, tid, errno);
        }
        errno != 0
    }

    /// One turn of the recorder's loop. True if the guardian should enter the target to arm what
    /// nothing else arms.
    pub(super) fn turn(&mut self) -> bool {
        self.lease.turned();
        let slots = self.data.threads().slots;
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|index, it| {
            let slot = slots.get(*index);
            slot.is_some_and(|slot| !has_timer(slot) && !self.has_failed(it.tid, (*index, slot)))
        });
        let is_entry_due = self.look_at(&mut waiting);
        self.waiting = waiting;
        is_entry_due && self.entered.elapsed() >= ENTRY_PAUSE
    }

    /// Looks at some of the threads that wait, and helps them. True if an entry would.
    fn look_at(&mut self, all: &mut BTreeMap<usize, Waiting>) -> bool {
        let (now, is_entry_unfinished) = (Instant::now(), self.is_entry_unfinished());
        let round = all.range(self.next_look..).chain(all.range(..self.next_look));
        let due = round.filter(|(_, it)| now.duration_since(it.since) >= PATIENCE);
        let due: Vec<usize> = due.map(|(index, _)| *index).take(LOOKS_MAX).collect();
        let mut is_entry_due = false;
        for index in due {
            let Some(waiting) = all.get_mut(&index) else { continue };
            self.next_look = index + 1;
            is_entry_due |= waiting.is_first && is_entry_unfinished;
            match self.look(waiting, now) {
                Ok(Help::None) => {}
                Ok(Help::Signal) => self.signal(waiting, now),
                Ok(Help::Entry) => is_entry_due = true,
                // Gone.
                Err(_) => drop(all.remove(&index)),
            }
            if now.elapsed() >= LOOKS_TIME {
                break;
            }
        }
        is_entry_due
    }

    /// The first entry was to arm so many of the threads that were there, whichever they are, and may have
    /// armed a few; nothing that runs in the target has armed the others since.
    fn is_entry_unfinished(&self) -> bool {
        let control = self.data.control();
        let count = |counter: Counter| {
            // Relaxed: a count.
            control.counters[counter as usize].load(Ordering::Relaxed)
        };
        let served = count(Counter::Armed) + count(Counter::TimerFailed);
        // Relaxed: a hint; who serves it looks closely.
        served < ARM_MAX as u64 && control.arm_wanted.load(Ordering::Relaxed) != 0
    }

    /// What a thread without a timer needs.
    fn look(&self, waiting: &mut Waiting, now: Instant) -> std::io::Result<Help> {
        let is_running = proc::task_stat(self.pid, waiting.tid)?.state == 'R';
        let ran_ns = proc::task_cpu_or_ticks_ns(self.pid, waiting.tid)?;
        let before = waiting.looked.replace((now, ran_ns));
        Ok(help(waiting, is_running, before, now))
    }

    fn signal(&mut self, waiting: &mut Waiting, now: Instant) {
        waiting.signalled = Some(now);
        // Relaxed: written before the handler was installed.
        let cookie = self.data.control().cookie.load(Ordering::Relaxed);
        let value = layout::prime_value(cookie, monotonic_now_ns());
        // A thread that may not be signalled, or is gone, is helped otherwise, or not at all.
        if signals::is_queueable(self.signal)
            && signals::send(self.pid, waiting.tid, self.signal, value).is_ok()
        {
            self.signals += 1;
        }
    }

    /// The guardian has entered the target.
    pub(super) fn note_entry(&mut self) {
        self.entered = Instant::now();
    }

    /// All timers were deleted: those of these threads are asked for anew, with this signal.
    pub(super) fn restart(&mut self, signal: i32, left_out: Vec<signals::Waiting>) {
        (self.signal, self.left_out) = (signal, left_out);
        self.waiting.clear();
    }
}

/// One that was made for this life of the slot: that of the thread before, which the kernel keeps,
/// never expires.
fn has_timer(slot: &ThreadSlot) -> bool {
    // Acquire: pairs with the Release with which the agent tells of a timer; its life is visible.
    match slot.timer.load(Ordering::Acquire) {
        0 => false,
        TIMER_BUSY => true,
        // Relaxed on both: ordered by the load above; the generation is raised by this side only.
        _ => {
            let life = slot.generation.load(Ordering::Relaxed);
            slot.timer_generation.load(Ordering::Relaxed) == life
        }
    }
}

/// A signal goes only to a thread that has done nothing but compute between two looks: one that
/// sleeps now and then would have a call of its own interrupted.
fn help(waiting: &Waiting, is_running: bool, before: Option<(Instant, u64)>, now: Instant) -> Help {
    if !is_running {
        return Help::None;
    }
    let ran_ns = waiting.looked.map_or(0, |(_, ran_ns)| ran_ns);
    match (waiting.signalled, before) {
        (Some(sent), _) if now.duration_since(sent) >= ACKNOWLEDGE => Help::Entry,
        (Some(_), _) => Help::None,
        (None, Some((looked, ran_before))) => {
            let passed_ns = now.duration_since(looked).as_nanos();
            let computes =
                u128::from(ran_ns.saturating_sub(ran_before)) * 100 >= passed_ns * COMPUTES_PERCENT;
            match computes && passed_ns > 0 {
                true => Help::Signal,
                false if now.duration_since(waiting.since) >= SIGNAL_PATIENCE => Help::Entry,
                false => Help::None,
            }
        }
        (None, None) => Help::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::failures::Rescue;
    use crate::record::shm::own_data;

    fn segment() -> DataSegment {
        let data = own_data();
        data.control().slots_limit.store(8, Ordering::Relaxed);
        data
    }

    fn timers(data: DataSegment) -> Timers {
        Timers::start(std::process::id() as i32, data, libc::SIGURG, Vec::new())
    }

    fn pending(data: DataSegment) -> u64 {
        data.arm_pending()[0].load(Ordering::Relaxed)
    }

    #[test]
    fn a_thread_is_asked_for_once_until_it_has_its_timer() {
        let data = segment();
        let mut timers = timers(data);
        timers.cover([(700, 7), (800, 8)].into_iter());
        assert_eq!(pending(data), 0b11);
        data.arm_pending()[0].store(0, Ordering::Relaxed);
        timers.cover([(700, 7), (800, 8)].into_iter());
        assert_eq!(pending(data), 0, "asked twice");
        let slots = data.threads().slots;
        slots[0].timer.store(5, Ordering::Relaxed);
        slots[1].timer_error.store(libc::EAGAIN as u32, Ordering::Relaxed);
        timers.turn();
        timers.cover([(700, 7), (800, 8)].into_iter());
        assert_eq!(pending(data), 0, "one has its timer, the other cannot have one");
        assert_eq!(timers.failures.unsampled().first, [(800, libc::EAGAIN)]);
        assert_eq!(timers.failures.wanted().map(|(life, _)| life).collect::<Vec<_>>(), [(1, 0)]);
        timers.failures.set((1, 0), Rescue::Event);
        assert_eq!((timers.failures.wanted().count(), timers.failures.unsampled().count), (0, 0));
        timers.failures.set((1, 0), Rescue::Impossible);
        assert_eq!((timers.failures.wanted().count(), timers.failures.unsampled().count), (0, 1));
        // The lease had ended: the handler took the timer away.
        slots[0].timer.store(0, Ordering::Relaxed);
        timers.cover([(700, 7)].into_iter());
        assert_eq!(pending(data), 1);
    }

    /// The slot came from a thread that is gone before its timer was deleted.
    #[test]
    fn the_timer_of_the_thread_before_is_not_this_threads() {
        let data = segment();
        let mut timers = timers(data);
        let threads = data.threads();
        let old = threads.claim(7).index().unwrap();
        threads.slots[old].timer.store(5, Ordering::Relaxed);
        assert!(threads.mark_retired(7, old, 0) && threads.recycle(old, 0));
        timers.cover([(800, 8)].into_iter());
        assert_eq!(threads.find(8), Some(old));
        assert_eq!(pending(data), 1 << old);
        data.arm_pending()[0].store(0, Ordering::Relaxed);
        threads.slots[old].timer_generation.store(1, Ordering::Relaxed);
        threads.slots[old].timer.store(6, Ordering::Relaxed);
        timers.turn();
        timers.cover([(800, 8)].into_iter());
        assert_eq!(pending(data), 0, "it has its own now");
        // That thread ended before it could have one: nobody else's limit.
        threads.slots[old].timer.store(0, Ordering::Relaxed);
        threads.slots[old].timer_error.store(libc::EINVAL as u32, Ordering::Relaxed);
        timers.cover([(800, 8)].into_iter());
        assert_eq!((pending(data), timers.failures.unsampled().count), (0, 0));
    }

    /// Ids are reused: what the thread before could not have is nothing of the next one's.
    #[test]
    fn a_failure_is_that_of_one_life_of_the_slot() {
        let data = segment();
        let mut timers = timers(data);
        let threads = data.threads();
        for generation in 0..20 {
            timers.cover([(800, 8)].into_iter());
            let index = threads.find(8).unwrap();
            threads.slots[index].timer_error.store(libc::EAGAIN as u32, Ordering::Relaxed);
            timers.turn();
            timers.sweep();
            assert_eq!(timers.failures.wanted().count(), 1);
            assert!(threads.mark_retired(8, index, generation));
            timers.sweep();
            assert_eq!(timers.failures.wanted().count(), 0, "it has ended");
            assert!(threads.recycle(index, generation));
        }
        data.arm_pending()[0].store(0, Ordering::Relaxed);
        timers.cover([(800, 8)].into_iter());
        assert_eq!(pending(data), 1 << threads.find(8).unwrap(), "the next one may have its own");
        let failures = timers.failures.unsampled();
        assert_eq!((failures.count, failures.first.len()), (20, 8));
    }

    #[test]
    fn what_the_first_entry_leaves_is_armed_by_others() {
        let data = segment();
        let mut timers = timers(data);
        // Of threads that do not run, or are not there, so that nothing else asks for an entry.
        let own = std::process::id() as i32;
        let sleeper = proc::tasks(own).unwrap()[0];
        timers.cover([(sleeper, 7)].into_iter());
        timers.entered = Instant::now();
        let before = |time: Duration| Instant::now().checked_sub(time).unwrap();
        timers.waiting.values_mut().for_each(|it| it.since = before(PATIENCE));
        assert!(!timers.turn(), "one after the other");
        timers.entered = before(ENTRY_PAUSE);
        assert!(timers.turn());
        timers.waiting.values_mut().for_each(|it| it.is_first = false);
        assert!(!timers.turn(), "one that came later is signalled");
        timers.waiting.values_mut().for_each(|it| it.is_first = true);
        data.control().counters[Counter::Armed as usize].store(ARM_MAX as u64, Ordering::Relaxed);
        assert!(!timers.turn(), "enough");
        data.control().counters[Counter::Armed as usize].store(1, Ordering::Relaxed);
        data.control().arm_wanted.store(0, Ordering::Relaxed);
        assert!(!timers.turn(), "nothing waits");
    }

    #[test]
    fn all_threads_without_a_timer_are_looked_at_in_turn() {
        const COUNT: u32 = 3 * LOOKS_MAX as u32;
        let data = segment();
        data.control().slots_limit.store(COUNT, Ordering::Relaxed);
        let mut timers = timers(data);
        let sleeper = proc::tasks(std::process::id() as i32).unwrap()[0];
        timers.cover((1..=COUNT).map(|inner| (sleeper, inner)));
        let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
        timers.waiting.values_mut().for_each(|it| it.since = long_ago);
        let looked =
            |timers: &Timers| timers.waiting.values().filter(|it| it.looked.is_some()).count();
        for turn in 1..=COUNT as usize {
            timers.turn();
            let looked = looked(&timers);
            assert!((turn..=turn * LOOKS_MAX).contains(&looked) || looked == COUNT as usize);
        }
        assert_eq!((looked(&timers), timers.waiting.len()), (COUNT as usize, COUNT as usize));
    }

    #[test]
    fn timers_of_threads_that_are_gone_are_to_be_deleted() {
        let data = segment();
        let mut timers = timers(data);
        let slots = data.threads().slots;
        for (tid, timer) in [(1, 3), (2, 3), (3, 0), (4, TIMER_BUSY)] {
            let index = data.threads().claim(tid).index().unwrap();
            slots[index].timer.store(timer, Ordering::Relaxed);
            if tid != 1 {
                slots[index].state.store(SlotState::Retired as u32, Ordering::Relaxed);
            }
        }
        timers.sweep();
        assert_eq!(pending(data), 0b10);
    }

    #[test]
    fn only_a_thread_that_does_not_sleep_is_signalled() {
        const MS: u64 = 1_000_000;
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let check = |is_running, ran_ms: u64, ms: u64, signalled: Option<u64>, expected| {
            let looked = Some((at(ms), ran_ms * MS));
            let signalled = signalled.map(at);
            let waiting = Waiting { tid: 1, since: start, is_first: false, looked, signalled };
            let before = Some((at(10), 0));
            assert_eq!(help(&waiting, is_running, before, at(ms)), expected, "{waiting:?}");
        };
        check(true, 10, 20, None, Help::Signal);
        check(true, 5, 18, None, Help::None);
        check(true, 8, 60, None, Help::Entry);
        check(false, 10, 20, None, Help::None);
        check(false, 0, 600, None, Help::None);
        check(true, 10, 20, Some(15), Help::None);
        check(true, 10, 200, Some(15), Help::Entry);
        check(false, 10, 200, Some(15), Help::None);
        let first = Waiting { tid: 1, since: start, is_first: true, looked: None, signalled: None };
        assert_eq!(help(&first, true, None, at(20)), Help::None);
    }

    #[test]
    fn the_lease_is_renewed_by_every_turn() {
        let data = segment();
        let mut timers = timers(data);
        let until = || data.control().lease_until_ns.load(Ordering::Relaxed);
        let first = until();
        assert!(first > monotonic_now_ns());
        std::thread::sleep(Duration::from_millis(2));
        assert!(!timers.turn());
        assert!(until() > first);
    }
}
