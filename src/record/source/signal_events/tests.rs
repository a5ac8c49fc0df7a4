//! Tests with events on threads of the tests' own process, where SIGURG does nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};

use super::*;
use crate::record::source::wall::LiveThread;
use crate::record::target::shm::own_data;

/// Threads with these lives and ids.
struct TestThreads(Vec<(u32, i32)>);

impl TargetThreads for TestThreads {
    fn alive(&self) -> impl Iterator<Item = (i32, u32)> {
        self.0.iter().map(|(_, tid)| (*tid, *tid as u32))
    }

    fn named(&self) -> impl Iterator<Item = (i32, u32, &str)> {
        self.0.iter().map(|(_, tid)| (*tid, *tid as u32, ""))
    }

    fn lives(&self) -> impl Iterator<Item = LiveThread> {
        self.0.iter().map(|(life, tid)| LiveThread { life: *life, tid: *tid, born_ns: None })
    }

    fn version(&self) -> (usize, usize) {
        (self.0.iter().map(|(life, _)| *life as usize + 1).max().unwrap_or(0), self.0.len())
    }

    fn end_of(&self, _: u32) -> Option<(u64, Option<u64>)> {
        None
    }

    fn is_program_gone(&self) -> bool {
        false
    }
}

/// Ends the threads of a test, also of one that fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        // Relaxed: a flag of a test.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the test with the ids of two threads that live, unless perf events are refused. Both block
/// SIGURG while the flag is set.
fn with_two_threads(check: impl FnOnce([i32; 2], SignalEvents, &AtomicBool)) {
    let [is_over, is_blocking] = [false; 2].map(AtomicBool::new);
    std::thread::scope(|scope| {
        let _end = End(&is_over);
        let (send, receive) = std::sync::mpsc::channel();
        for _ in 0..2 {
            let (send, is_over, is_blocking) = (send.clone(), &is_over, &is_blocking);
            scope.spawn(move || {
                send.send(nix::unistd::gettid().as_raw()).unwrap();
                let mut urgent = SigSet::empty();
                urgent.add(Signal::SIGURG);
                // Relaxed, both: flags of a test.
                while !is_over.load(Ordering::Relaxed) {
                    match is_blocking.load(Ordering::Relaxed) {
                        true => urgent.thread_block().unwrap(),
                        false => urgent.thread_unblock().unwrap(),
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
        }
        let tids = [receive.recv().unwrap(), receive.recv().unwrap()];
        let setup = Setup { period_ns: 1_000_000_000, ..Setup::default() };
        let pid = std::process::id() as i32;
        if perf::probe(pid, setup).is_ok() {
            let data = own_data();
            data.control().slots_limit.store(8, Ordering::Relaxed);
            let events = SignalEvents::start(
                (pid, data),
                (setup, EventFamily::default()),
                libc::SIGURG,
                Vec::new(),
            );
            check(tids, events, &is_blocking);
        }
    });
}

/// Sets the flag, and waits until the threads follow it.
fn set_blocking(is_blocking: &AtomicBool, tids: [i32; 2], value: bool) {
    // Relaxed: a flag of a test.
    is_blocking.store(value, Ordering::Relaxed);
    let pid = std::process::id() as i32;
    let follows = |tid: &i32| blocks(pid, *tid, libc::SIGURG).is_some() == value;
    while !tids.iter().all(follows) {
        std::thread::yield_now();
    }
}

fn sampled(events: &SignalEvents) -> Vec<i32> {
    let mut sampled: Vec<i32> = events.sampled().into_keys().map(|tid| tid as i32).collect();
    sampled.sort_unstable();
    sampled
}

#[test]
fn a_thread_has_its_event_when_it_has_lasted() {
    with_two_threads(|[first, second], mut events, _| {
        events.open_all(&TestThreads(vec![(0, first)]), false);
        assert_eq!((events.len(), sampled(&events)), (1, vec![]), "not enabled yet");
        events.enable();
        let both = TestThreads(vec![(0, first), (1, second)]);
        assert!(events.cover(&both));
        assert_eq!(sampled(&events), [first], "the second one is too young");
        assert!(events.cover(&both));
        let mut expected = vec![first, second];
        expected.sort_unstable();
        assert_eq!(sampled(&events), expected);
        let slots = events.data.threads();
        let slot = slots.find(second as u32).map(|index| &slots.slots[index]).unwrap();
        assert_eq!(slot.event.load(Ordering::Relaxed), events.word().0 + 1);
        assert!(!events.cover(&both), "nothing has changed");
        assert!(events.cover(&TestThreads(vec![(1, second)])));
        assert_eq!(sampled(&events), [second]);
    });
}

#[test]
fn a_thread_that_blocks_the_signal_has_no_event_until_it_stops() {
    with_two_threads(|tids @ [_, second], mut events, is_blocking| {
        let both = TestThreads(vec![(0, tids[0]), (1, second)]);
        set_blocking(is_blocking, tids, true);
        events.open_all(&both, true);
        assert_eq!(events.len(), 2, "a parked program");
        events.follow_blocked(|tid| tid == second);
        events.enable();
        events.cover(&both);
        assert_eq!(sampled(&events), [tids[0]]);
        set_blocking(is_blocking, tids, false);
        events.follow_blocked(|_| false);
        assert!(events.cover(&both));
        assert_eq!(events.len(), 2);
        // One that blocks it when its event is due has none.
        set_blocking(is_blocking, tids, true);
        let others = TestThreads(vec![(2, tids[0]), (3, second)]);
        events.open_all(&others, false);
        events.cover(&others);
        assert_eq!(events.len(), 0);
        set_blocking(is_blocking, tids, false);
        events.follow_blocked(|_| false);
        events.cover(&others);
        assert_eq!(events.len(), 2);
    });
}

#[test]
fn a_thread_that_is_gone_is_no_refusal_and_a_bad_signal_is_one() {
    with_two_threads(|[first, _], mut events, _| {
        events.open_all(&TestThreads(vec![(0, i32::MAX)]), false);
        assert_eq!((events.len(), events.take_refused()), (0, None));
        events.signal = 1 << 20;
        events.add(1, first);
        assert_eq!(events.len(), 0);
        assert!(events.take_refused().is_some());
        events.add(2, first);
        assert_eq!(events.take_refused(), None, "told once");
    });
}

#[test]
fn the_kernel_sends_signals_to_the_same_user_only() {
    let own = proc::status(std::process::id() as i32).unwrap();
    assert!(may_notify(&own));
    let other = Status { uid: own.uid + 1, suid: own.uid + 1, ..own };
    let is_root = nix::unistd::geteuid().is_root() && proc::is_initial_user_namespace();
    assert_eq!(may_notify(&other), is_root);
}
