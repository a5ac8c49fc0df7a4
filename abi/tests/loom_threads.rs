//! Models of the thread slots' lock-free steps. loom runs them over all interleavings:
//! `scripts/loom.sh`. Each also runs with a planted mistake that it must catch.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test crate")]

mod model;
mod registry;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use registry::Registry;
use traceprof_abi::sync::planted::Mistake;
use traceprof_abi::sync::{AtomicU32, Ordering};
use traceprof_abi::thread::{Claim, SlotState};

/// Maximum number of preemptions in an interleaving. Each planted mistake shows within it.
const BOUND: Option<usize> = Some(3);

impl Registry {
    fn claim(&self, tid: u32) -> usize {
        self.threads().claim(tid).index().unwrap()
    }

    fn give_back(&self, tid: u32, slot: usize) {
        assert!(self.threads().mark_retired(tid, slot, 0));
        assert!(self.threads().recycle(slot, 0));
    }
}

fn a_recycled_slot_goes_to_one_thread_and_is_clean() {
    let registry = Arc::new(Registry::new(4, 2));
    let old = registry.claim(9);
    registry.slots[old].event.store(77, Ordering::Relaxed);
    let claim = |registry: Arc<Registry>, tid: u32| {
        move || {
            let threads = registry.threads();
            let index = threads.claim(tid).index()?;
            assert_eq!(threads.find(tid), Some(index));
            assert_eq!(threads.slots[index].event.load(Ordering::Relaxed), 0, "slot is clean");
            Some(index)
        }
    };
    let one = thread::spawn(claim(Arc::clone(&registry), 1));
    let other = thread::spawn(claim(Arc::clone(&registry), 2));
    registry.give_back(9, old);
    let (one, other) = (one.join().unwrap(), other.join().unwrap());
    assert!(one.is_some() || other.is_some(), "at least one got the slot");
    assert_ne!(one, other, "no slot is given twice");
}

#[test]
fn claim_and_recycle() {
    model::check(BOUND, &[Mistake::AllRelaxed], a_recycled_slot_goes_to_one_thread_and_is_clean);
}

/// The thread and the recorder claim at the same time, while an index word before theirs becomes
/// free.
fn a_thread_has_one_slot_whoever_claims_it() {
    let registry = Arc::new(Registry::new(2, 3));
    // Its word is in the first probe position of thread 7.
    let old = registry.claim(5);
    let own = {
        let registry = Arc::clone(&registry);
        thread::spawn(move || registry.threads().claim(7))
    };
    registry.give_back(5, old);
    let recorders = registry.threads().claim(7);
    let own = own.join().unwrap();
    assert_eq!(own.index(), recorders.index(), "{own:?} {recorders:?}");
    let threads = registry.threads();
    let index = own.index().unwrap();
    assert_eq!(threads.find(7), Some(index));
    assert_eq!(threads.slots[index].state.load(Ordering::Relaxed), SlotState::Claimed as u32);
    let new_claims = [own, recorders].iter().filter(|claim| matches!(claim, Claim::New(_))).count();
    assert_eq!(new_claims, 1, "{own:?} {recorders:?}");
    let words = registry.index.iter().filter(|word| word.load(Ordering::Relaxed) != 0).count();
    assert_eq!(words, 1);
    // The slot that was not needed is free again.
    assert_eq!(registry.leaked.load(Ordering::Relaxed), 0);
    assert!(threads.claim(8).index().is_some_and(|other| other != index));
}

#[test]
fn claim_and_claim() {
    model::check(BOUND, &[Mistake::NoFence], a_thread_has_one_slot_whoever_claims_it);
}

/// One thread is delayed between reading the stack's top and swapping it. Meanwhile another takes
/// two slots and gives the first one back: the top is the same again, but the slot below is another
/// (ABA).
fn a_reused_top_fails_the_swap() {
    let registry = Arc::new(Registry::new(4, 2));
    let slots = [registry.claim(1), registry.claim(2)];
    registry.give_back(1, slots[0]);
    registry.give_back(2, slots[1]);
    let other = {
        let registry = Arc::clone(&registry);
        thread::spawn(move || (3, registry.threads().claim(3).index()))
    };
    let threads = registry.threads();
    let mut all = Vec::new();
    if let Some(first) = threads.claim(4).index() {
        all.push((5, threads.claim(5).index()));
        let generation = threads.slots[first].generation.load(Ordering::Relaxed);
        assert!(threads.mark_retired(4, first, generation));
        assert!(threads.recycle(first, generation));
        all.push((6, threads.claim(6).index()));
    }
    all.push(other.join().unwrap());
    for (tid, slot) in all.iter().filter_map(|(tid, slot)| Some((*tid, (*slot)?))) {
        let owner = threads.slots[slot].tid.load(Ordering::Relaxed);
        assert_eq!(owner, tid, "no slot is given twice: {all:?}");
    }
}

#[test]
fn free_stack() {
    model::check(BOUND, &[Mistake::NoTag], a_reused_top_fails_the_swap);
}

/// A handler finds a slot just when the recorder declares its thread dead. Either the handler sees
/// that after it has published its hazard, or the recorder sees the hazard and does not recycle the
/// slot.
fn a_slot_in_use_is_not_recycled() {
    let registry = Arc::new(Registry::new(2, 1));
    let slot = registry.claim(7);
    let hazard = Arc::new(AtomicU32::new(0));
    let handler = {
        let (registry, hazard) = (Arc::clone(&registry), Arc::clone(&hazard));
        thread::spawn(move || {
            let threads = registry.threads();
            let Some(index) = threads.find(7) else { return };
            let owner = threads.owner(index);
            hazard.store(1, Ordering::Relaxed);
            // As in `HazardSlots::protect`.
            traceprof_abi::sync::fence(Ordering::SeqCst);
            if threads.is_held(7, index, owner) {
                assert_eq!(threads.slots[index].generation.load(Ordering::Relaxed), 0);
            }
            hazard.store(0, Ordering::Release);
        })
    };
    let threads = registry.threads();
    assert!(threads.mark_retired(7, slot, 0));
    // As in `Rotation::publish`.
    traceprof_abi::sync::fence(Ordering::SeqCst);
    if hazard.load(Ordering::Acquire) == 0 {
        threads.recycle(slot, 0);
    }
    handler.join().unwrap();
}

#[test]
fn retire_and_use() {
    model::check(BOUND, &[Mistake::NoFence], a_slot_in_use_is_not_recycled);
}

/// The agent and the recorder prime a thread at the same time, while the thread is retired.
fn a_thread_is_primed_once_and_not_after_its_end() {
    let registry = Arc::new(Registry::new(2, 1));
    let slot = registry.claim(7);
    let agent = {
        let registry = Arc::clone(&registry);
        thread::spawn(move || registry.threads().prime(slot, 0))
    };
    let mine = registry.threads().prime(slot, 0);
    assert!(registry.threads().mark_retired(7, slot, 0));
    let theirs = agent.join().unwrap();
    assert!(mine || theirs, "it was primed");
    assert!(!(mine && theirs), "once");
    let state = registry.slots[slot].state.load(Ordering::Relaxed);
    assert_eq!(state, SlotState::Retired as u32);
}

#[test]
fn prime_and_retire() {
    model::check(BOUND, &[Mistake::BlindSwap], a_thread_is_primed_once_and_not_after_its_end);
}

/// A thread and a forked child's thread with the same id take a sample in the same scratch memory.
fn one_handler_at_a_time_uses_the_scratch_memory() {
    let registry = Arc::new(Registry::new(2, 1));
    let memory = Arc::new(UnsafeCell::new(0));
    let slot = registry.claim(7);
    let handler = |registry: Arc<Registry>, memory: Arc<UnsafeCell<u32>>| {
        move || {
            let slot = &registry.slots[slot];
            let entered = slot.enter();
            if entered {
                // loom refuses an access during another, and one that no ordering precedes.
                memory.with_mut(|_| ());
                slot.leave();
            }
            entered
        }
    };
    let childs = thread::spawn(handler(Arc::clone(&registry), Arc::clone(&memory)));
    let own = handler(Arc::clone(&registry), memory)();
    let childs = childs.join().unwrap();
    assert!(own || childs);
    assert!(registry.slots[slot].enter(), "both have left");
}

#[test]
fn enter_and_enter() {
    let mistakes = [Mistake::AllRelaxed, Mistake::BlindSwap];
    model::check(BOUND, &mistakes, one_handler_at_a_time_uses_the_scratch_memory);
}
