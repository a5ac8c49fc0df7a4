//! Tests with timers of threads that exit, sleep or block the signal.

use super::*;
use crate::record::source::timer_failures::Fallback;
use crate::record::target::shm::own_data;

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
fn a_timer_is_requested_once_for_each_thread() {
    let data = segment();
    let mut timers = timers(data);
    timers.cover([(700, 7), (800, 8)].into_iter());
    assert_eq!(pending(data), 0b11);
    data.arm_pending()[0].store(0, Ordering::Relaxed);
    timers.cover([(700, 7), (800, 8)].into_iter());
    assert_eq!(pending(data), 0, "requested twice");
    let slots = data.threads().slots;
    slots[0].timer.store(5, Ordering::Relaxed);
    slots[1].timer_error.store(libc::EAGAIN as u32, Ordering::Relaxed);
    timers.turn();
    timers.cover([(700, 7), (800, 8)].into_iter());
    assert_eq!(pending(data), 0, "one thread has its timer, the other cannot have one");
    assert_eq!(timers.failures.unsampled().first, [(800, libc::EAGAIN)]);
    assert_eq!(timers.failures.wanted().map(|(life, _)| life).collect::<Vec<_>>(), [(1, 0)]);
    timers.failures.set((1, 0), Fallback::Event);
    assert_eq!((timers.failures.wanted().count(), timers.failures.unsampled().count), (0, 0));
    timers.failures.set((1, 0), Fallback::Impossible);
    assert_eq!((timers.failures.wanted().count(), timers.failures.unsampled().count), (0, 1));
    // The lease has expired, and the handler deleted the timer.
    slots[0].timer.store(0, Ordering::Relaxed);
    timers.cover([(700, 7)].into_iter());
    assert_eq!(pending(data), 1);
}

/// The slot belonged to a thread that exited before its timer was deleted.
#[test]
fn the_timer_of_the_previous_thread_in_a_slot_does_not_count() {
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
    assert_eq!(pending(data), 0, "the thread has its own timer now");
    // A thread that exits before its timer is created is no failure.
    threads.slots[old].timer.store(0, Ordering::Relaxed);
    threads.slots[old].timer_error.store(libc::EINVAL as u32, Ordering::Relaxed);
    timers.cover([(800, 8)].into_iter());
    assert_eq!((pending(data), timers.failures.unsampled().count), (0, 0));
}

/// Ids are reused: the failure of the previous thread does not concern the next one.
#[test]
fn a_failure_belongs_to_one_life_of_the_slot() {
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
        assert_eq!(timers.failures.wanted().count(), 0, "the thread has exited");
        assert!(threads.recycle(index, generation));
    }
    data.arm_pending()[0].store(0, Ordering::Relaxed);
    timers.cover([(800, 8)].into_iter());
    assert_eq!(pending(data), 1 << threads.find(8).unwrap(), "the next thread may have a timer");
    let failures = timers.failures.unsampled();
    assert_eq!((failures.count, failures.first.len()), (20, 8));
}

#[test]
fn later_entries_arm_the_timers_that_the_first_one_left() {
    let data = segment();
    let mut timers = timers(data);
    // These threads do not run or do not exist, so nothing else requests an entry.
    let own = std::process::id() as i32;
    let sleeper = proc::tasks(own).unwrap()[0];
    timers.cover([(sleeper, 7)].into_iter());
    timers.entered = Instant::now();
    let before = |time: Duration| Instant::now().checked_sub(time).unwrap();
    timers.waiting.values_mut().for_each(|it| it.since = before(PATIENCE));
    assert!(!timers.turn(), "too soon after the last entry");
    timers.entered = before(ENTRY_PAUSE);
    assert!(timers.turn());
    timers.waiting.values_mut().for_each(|it| it.is_first = false);
    assert!(!timers.turn(), "a later thread gets a signal instead");
    timers.waiting.values_mut().for_each(|it| it.is_first = true);
    data.control().counters[Counter::Armed as usize].store(ARM_MAX as u64, Ordering::Relaxed);
    assert!(!timers.turn(), "enough timers are armed");
    data.control().counters[Counter::Armed as usize].store(1, Ordering::Relaxed);
    data.control().arm_wanted.store(0, Ordering::Relaxed);
    assert!(!timers.turn(), "nothing waits");
}

#[test]
fn all_threads_without_a_timer_are_checked_in_turn() {
    const COUNT: u32 = 3 * CHECKS_MAX as u32;
    let data = segment();
    data.control().slots_limit.store(COUNT, Ordering::Relaxed);
    let mut timers = timers(data);
    let sleeper = proc::tasks(std::process::id() as i32).unwrap()[0];
    timers.cover((1..=COUNT).map(|inner| (sleeper, inner)));
    let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
    timers.waiting.values_mut().for_each(|it| it.since = long_ago);
    let last_check =
        |timers: &Timers| timers.waiting.values().filter(|it| it.last_check.is_some()).count();
    for turn in 1..=COUNT as usize {
        timers.turn();
        let last_check = last_check(&timers);
        assert!((turn..=turn * CHECKS_MAX).contains(&last_check) || last_check == COUNT as usize);
    }
    assert_eq!((last_check(&timers), timers.waiting.len()), (COUNT as usize, COUNT as usize));
}

#[test]
fn the_deletion_of_timers_of_exited_threads_is_requested() {
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
fn only_a_computing_thread_is_signalled() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let unarmed = |signalled: Option<u64>| {
        let signalled = signalled.map(at);
        UnarmedSlot { tid: 1, since: start, is_first: false, last_check: None, signalled }
    };
    let before = RunCheck { is_running: true, ran_ns: 7_000_000, sleeps: 3 };
    let ran = |us: u64| RunCheck { ran_ns: before.ran_ns + us * 1000, ..before };
    let asleep = RunCheck { is_running: false, ..ran(4000) };
    let has_slept = RunCheck { sleeps: 4, ..ran(4000) };
    let check = |check: RunCheck, ms: u64, signalled: Option<u64>, expected| {
        let found = help(&unarmed(signalled), Some(before), check, at(ms));
        assert_eq!(found, expected, "{check:?} at {ms} ms");
    };
    check(ran(1000), 12, None, Help::Signal);
    check(ran(1000), 60, None, Help::Signal);
    check(ran(999), 18, None, Help::None);
    check(ran(0), 60, None, Help::Entry);
    check(has_slept, 18, None, Help::None);
    check(has_slept, 60, None, Help::Entry);
    check(asleep, 20, None, Help::None);
    check(asleep, 600, None, Help::None);
    check(ran(4000), 20, Some(15), Help::None);
    check(ran(4000), 200, Some(15), Help::Entry);
    check(asleep, 200, Some(15), Help::None);
    assert_eq!(help(&unarmed(None), None, ran(4000), at(20)), Help::None, "the first check");
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
