//! Tests of thread slots: which thread gets which slot, and what happens when there are none.
#![cfg(not(loom))]
#![allow(missing_docs, reason = "a test crate")]

mod registry;

use registry::Registry;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::{Claim, SlotState};

impl Registry {
    fn state(&self, slot: usize) -> u32 {
        self.slots[slot].state.load(Ordering::Relaxed)
    }
}

#[test]
fn a_thread_keeps_its_slot_and_a_recycled_one_is_used_again() {
    let registry = Registry::new(256, 8);
    let threads = registry.threads();
    let claimed: Vec<_> = (100..108).map(|tid| threads.claim(tid).index().unwrap()).collect();
    assert_eq!(threads.claim(999), Claim::Exhausted, "all slots are taken");
    for (tid, slot) in (100..108).zip(&claimed) {
        assert_eq!(threads.find(tid), Some(*slot));
        assert_eq!(threads.claim(tid), Claim::Existing(*slot));
    }
    assert!(threads.mark_retired(103, claimed[3], 0));
    assert_eq!(threads.find(103), None);
    assert_eq!(threads.claim(103), Claim::Exhausted, "its samples are not read yet");
    assert!(threads.recycle(claimed[3], 0));
    assert_eq!(threads.claim(200), Claim::New(claimed[3]));
    assert_eq!(registry.slots[claimed[3]].generation.load(Ordering::Relaxed), 1);
}

#[test]
fn a_reused_thread_id_gets_a_slot_of_its_own() {
    let registry = Registry::new(256, 2);
    let threads = registry.threads();
    let old = threads.claim(100).index().unwrap();
    threads.slots[old].samples.store(9, Ordering::Relaxed);
    let owner = threads.owner(old);
    assert!(threads.is_held(100, old, owner));
    assert!(threads.mark_retired(100, old, 0));
    assert!(!threads.is_held(100, old, owner), "a handler that found it just before goes away");
    let new = threads.claim(100).index().unwrap();
    assert_ne!(new, old);
    assert_eq!(threads.slots[new].samples.load(Ordering::Relaxed), 0);
    assert_eq!(threads.slots[old].samples.load(Ordering::Relaxed), 9, "kept until recycled");
    assert!(threads.recycle(old, 0));
    assert_eq!(threads.slots[old].samples.load(Ordering::Relaxed), 0);
    assert_eq!(threads.find(100), Some(new));
    // The thread id gets the same slot again.
    assert!(threads.mark_retired(100, new, 0));
    assert_eq!(threads.claim(100), Claim::New(old));
    assert!(!threads.is_held(100, old, owner), "the slot has another life");
    assert!(threads.is_held(100, old, threads.owner(old)));
}

#[test]
fn states_follow_each_other() {
    let registry = Registry::new(256, 1);
    let threads = registry.threads();
    let slot = threads.claim(7).index().unwrap();
    assert_eq!(registry.state(slot), SlotState::Claimed as u32);
    assert!(!threads.recycle(slot, 0), "its thread lives");
    assert!(!threads.prime(slot, 1), "another generation");
    assert!(threads.prime(slot, 0));
    assert!(!threads.prime(slot, 0), "once");
    assert_eq!(registry.state(slot), SlotState::Primed as u32);
    assert!(threads.mark_retired(7, slot, 0));
    assert!(!threads.prime(slot, 0), "its thread has exited");
    assert_eq!(registry.state(slot), SlotState::Retired as u32);
    assert!(threads.recycle(slot, 0));
    assert_eq!(registry.state(slot), SlotState::Unclaimed as u32);
}

#[test]
fn a_slot_that_has_another_owner_is_not_given_away() {
    let registry = Registry::new(256, 2);
    let threads = registry.threads();
    let slot = threads.claim(100).index().unwrap();
    let retire = |tid: u32, slot: usize, generation: u32| {
        threads.mark_retired(tid, slot, generation) && threads.recycle(slot, generation)
    };
    assert!(retire(100, slot, 0));
    // A late sample of the dead thread makes the recorder retire it again.
    assert!(!retire(100, slot, 0));
    assert_eq!(threads.claim(200), Claim::New(slot));
    assert!(!retire(100, slot, 0) && !retire(200, slot, 0) && !retire(100, slot, 1));
    assert_eq!(threads.find(200), Some(slot));
    let other = threads.claim(300).index().unwrap();
    assert_ne!(other, slot, "two threads share a slot");
    assert!(retire(200, slot, 1));
    assert_eq!(threads.find(200), None);
    assert!(!retire(7, usize::MAX, 0));
}

#[test]
fn a_claim_without_room_in_the_index_leaves_nothing_behind() {
    let registry = Registry::new(2, 4);
    let threads = registry.threads();
    for tid in [1, 2] {
        assert!(threads.claim(tid).index().is_some());
    }
    for _ in 0..100 {
        assert_eq!(threads.claim(3), Claim::Exhausted);
    }
    let owners: Vec<u32> =
        registry.slots.iter().map(|slot| slot.tid.load(Ordering::Relaxed)).collect();
    assert_eq!(
        owners.iter().filter(|tid| **tid == 3).count(),
        0,
        "a failed claim left its id: {owners:?}"
    );
    assert!(registry.next.load(Ordering::Relaxed) <= 3, "the same slot was tried over and over");
    assert_eq!(registry.leaked.load(Ordering::Relaxed), 0);
}

#[test]
fn sixteen_thousand_threads_find_their_slots() {
    let registry = Registry::new(32768, 16384);
    let threads = registry.threads();
    for tid in 0..16384u32 {
        // Ids in ascending order, as the kernel assigns them.
        let tid = 1000 + tid * 3;
        let slot = threads.claim(tid).index().unwrap();
        assert_eq!(threads.find(tid), Some(slot));
    }
}
