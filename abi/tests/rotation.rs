//! Tests of the tables' roles: ids and generations at their limits, threads that stay inside,
//! spares.
#![cfg(not(loom))]
#![allow(missing_docs, reason = "a test crate")]

mod parts;
#[path = "parts/segment.rs"]
mod segment;

use std::collections::HashSet;

use parts::{Parts, words};
use segment::Segment;
use traceprof_abi::storage::hazard::{self, HazardSlots};
use traceprof_abi::storage::log::Sample;
use traceprof_abi::storage::rotation::{Collected, Origin, Rotation};
use traceprof_abi::storage::table::Put;
use traceprof_abi::sync::{AtomicU64, Ordering};

fn frames(pcs: &[u64]) -> Vec<AtomicU64> {
    pcs.iter().map(|pc| AtomicU64::new(*pc)).collect()
}

/// Returns a segment with this number of tables.
fn with_tables(tables: usize) -> Segment {
    Segment::new((0..tables).map(|_| Parts::new(64, 1024, 64)).collect(), 64, 0)
}

fn rotate(segment: &Segment, rotation: &mut Rotation) -> Collected {
    rotation.rotate(&segment.tables(), &segment.active, segment.slots(), || false)
}

/// Stores a sample as a handler does.
fn put(segment: &Segment, stack: u64) -> Put {
    let sample = Sample { weight: 1, ..Sample::default() };
    let stored = segment.store(hazard::owner(3, 1), &frames(&[stack]), sample, &[]);
    stored.expect("a hazard slot is free").put
}

#[test]
fn a_table_with_a_thread_inside_is_quarantined_and_released() {
    let parts: Vec<Parts> = (0..4).map(|_| Parts::new(64, 1024, 64)).collect();
    let tables: Vec<_> = parts.iter().map(Parts::table).collect();
    let active = AtomicU64::new(0);
    let hazard_words = words(8);
    let hazards = HazardSlots(&hazard_words);
    let mut rotation = Rotation::start(&tables, &active);
    let hazard = hazards.protect(7, &active).unwrap();
    let held = hazard.table();
    let id = tables[held].put(&frames(&[5]), 0, 1).id();
    assert_eq!(rotation.rotate(&tables, &active, hazards, || false), Collected::Quarantined(held));
    for _ in 0..5 {
        let next = rotation.rotate(&tables, &active, hazards, || false);
        assert!(matches!(next, Collected::Ready(table) if table != held), "{next:?}");
    }
    assert_eq!(rotation.released(hazards), None);
    assert!(hazards.release(hazard));
    assert_eq!(rotation.released(hazards), Some(held));
    assert_eq!(tables[held].traces().map(|trace| trace.id).collect::<Vec<_>>(), [id]);
    rotation.restore(held);
    assert_eq!(rotation.released(hazards), None);
}

/// There are three tables and no spare: a table that a thread does not leave keeps its role.
#[test]
fn without_a_spare_the_table_in_use_blocks_its_own_turn() {
    let segment = with_tables(3);
    let mut rotation = Rotation::start(&segment.tables(), &segment.active);
    let hazards = HazardSlots(&segment.hazards);
    let held = hazards.protect(hazard::owner(1, 0), &segment.active).unwrap();
    let id = put(&segment, 5).id();
    assert_eq!(rotate(&segment, &mut rotation), Collected::Quarantined(0));
    assert_eq!(rotate(&segment, &mut rotation), Collected::Ready(1));
    let before = segment.active.load(Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(rotate(&segment, &mut rotation), Collected::Blocked);
        let traces: Vec<_> = segment.tables()[0].traces().map(|trace| trace.id).collect();
        assert_eq!(traces, [id], "the table was cleared under the thread");
    }
    assert_eq!(segment.active.load(Ordering::Relaxed), before);
    assert!(hazards.release(held));
    assert_eq!(rotation.released(hazards), Some(0));
    rotation.restore(0);
    // It still has its role, so it is not a spare. The next thread that stays inside finds no
    // spare.
    assert_eq!(rotate(&segment, &mut rotation), Collected::Ready(2));
    assert_eq!(rotate(&segment, &mut rotation), Collected::Ready(0));
    let held = hazards.protect(hazard::owner(1, 0), &segment.active).unwrap();
    assert_eq!(held.table(), 1);
    assert_eq!(rotate(&segment, &mut rotation), Collected::Quarantined(1));
    let mut roles = rotation.roles();
    roles.sort_unstable();
    assert_eq!(roles, [0, 1, 2], "no table has two roles");
    assert_eq!(rotate(&segment, &mut rotation), Collected::Ready(2));
    assert_eq!(rotate(&segment, &mut rotation), Collected::Blocked);
    assert!(hazards.release(held));
}

#[test]
fn ids_run_out_before_one_is_used_twice() {
    let segment = with_tables(4);
    let origin = Origin { instance: u32::MAX - 2, generation: 0 };
    let mut rotation = Rotation::start_at(&segment.tables(), &segment.active, origin);
    let mut ids = vec![put(&segment, 1).id()];
    for _ in 0..2 {
        assert!(matches!(rotate(&segment, &mut rotation), Collected::Ready(_)));
        ids.push(put(&segment, 1).id());
    }
    assert_eq!(
        ids.iter().map(|id| id >> 32).collect::<Vec<_>>(),
        [u64::from(u32::MAX) - 2, u64::from(u32::MAX) - 1, u64::from(u32::MAX)]
    );
    let before = segment.active.load(Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(rotate(&segment, &mut rotation), Collected::Exhausted);
        assert_eq!(rotation.take_instance(), None);
        assert_eq!(put(&segment, 1), Put::Hit(ids[2]), "the last table stays in use");
    }
    assert_eq!(segment.active.load(Ordering::Relaxed), before);
}

#[test]
fn storages_that_share_the_ids_use_none_twice() {
    let segments = [with_tables(4), with_tables(4)];
    let mut next = 1..;
    let mut rotations = segments.each_ref().map(|it| {
        let origin = Origin { instance: next.next().unwrap(), generation: 0 };
        Rotation::start_at(&it.tables(), &it.active, origin)
    });
    let mut ids = HashSet::new();
    for _ in 0..5 {
        for (segment, rotation) in segments.iter().zip(&mut rotations) {
            assert!(ids.insert(put(segment, 1).id()), "an id was used twice");
            rotation.share_instance(next.next());
            assert!(matches!(rotate(segment, rotation), Collected::Ready(_)));
        }
    }
    rotations[0].share_instance(None);
    assert_eq!(rotate(&segments[0], &mut rotations[0]), Collected::Exhausted);
}

#[test]
fn the_generation_wraps_around_without_harm() {
    let segment = with_tables(4);
    let last = u32::MAX >> hazard::TABLE_BITS;
    let origin = Origin { instance: 1, generation: last };
    let mut rotation = Rotation::start_at(&segment.tables(), &segment.active, origin);
    let hazards = HazardSlots(&segment.hazards);
    let held = hazards.protect(hazard::owner(1, 0), &segment.active).unwrap();
    assert_eq!(held.active, last << hazard::TABLE_BITS);
    assert_eq!(rotate(&segment, &mut rotation), Collected::Quarantined(0));
    assert_eq!(rotation.active_word() >> hazard::TABLE_BITS, 0, "the first generation again");
    assert_eq!(u64::from(rotation.active_word()), segment.active.load(Ordering::Relaxed));
    let mut ids = HashSet::new();
    for _ in 0..6 {
        assert!(ids.insert(put(&segment, 1).id()));
        let table = rotation.active();
        assert_ne!(table, 0, "the table is held");
        assert_eq!(rotate(&segment, &mut rotation), Collected::Ready(table));
    }
    assert!(hazards.release(held));
    assert_eq!(rotation.released(hazards), Some(0));
}

/// A thread read the ACTIVE word and a rotation overtook it. It claimed with the old word and was
/// stopped before it could confirm the claim.
#[test]
fn a_late_claim_delays_no_rotation() {
    let segment = with_tables(3);
    let mut rotation = Rotation::start(&segment.tables(), &segment.active);
    let late = AtomicU64::new(u64::from(rotation.active_word()));
    assert!(matches!(rotate(&segment, &mut rotation), Collected::Ready(0)));
    let hazards = HazardSlots(&segment.hazards);
    let claim = hazards.protect(hazard::owner(1, 0), &late).unwrap();
    for turn in 1..10 {
        assert_eq!(rotate(&segment, &mut rotation), Collected::Ready(turn % 3));
    }
    assert!(hazards.release(claim));
}

#[test]
fn a_dead_holder_is_identified_by_its_life_and_its_table_is_released() {
    let segment = with_tables(4);
    let mut rotation = Rotation::start(&segment.tables(), &segment.active);
    let hazards = HazardSlots(&segment.hazards);
    let (dead, alive) = (hazard::owner(5, 7), hazard::owner(5, 8));
    assert_eq!(hazard::slot_of(dead), Some((5, 7)));
    let lost = hazards.protect(dead, &segment.active).unwrap();
    assert_eq!(rotate(&segment, &mut rotation), Collected::Quarantined(0));
    assert!(!rotation.is_drained());
    // The next life of the same thread slot.
    let other = hazards.protect(alive, &segment.active).unwrap();
    assert_eq!(rotation.quarantined().collect::<Vec<_>>(), [(0, lost.active)]);
    let holders: Vec<_> = hazards.holders(lost.active).collect();
    assert_eq!(holders.iter().map(|claim| claim.owner).collect::<Vec<_>>(), [dead]);
    assert!(hazards.reclaim(holders[0]));
    assert!(!hazards.reclaim(holders[0]), "the claim no longer exists");
    assert_eq!(rotation.released(hazards), Some(0));
    rotation.restore(0);
    assert!(rotation.is_drained());
    assert!(!hazards.release(lost), "a claim that was taken away is noticed");
    assert!(hazards.release(other));
}

#[test]
fn a_spare_is_left_alone_until_it_rotates_in() {
    let segment = with_tables(5);
    for part in &segment.parts[Rotation::ROLES..] {
        part.slots[0].store(7, Ordering::Relaxed);
    }
    let mut rotation = Rotation::start(&segment.tables(), &segment.active);
    assert_eq!(rotation.roles(), [0, 1, 2]);
    let hazards = HazardSlots(&segment.hazards);
    let held = hazards.protect(hazard::owner(1, 0), &segment.active).unwrap();
    assert_eq!(rotate(&segment, &mut rotation), Collected::Quarantined(0));
    assert_eq!(rotation.roles(), [1, 2, 3]);
    let spares = || -> Vec<u64> {
        segment.parts[3..].iter().map(|part| part.slots[0].load(Ordering::Relaxed)).collect()
    };
    assert_eq!(rotate(&segment, &mut rotation), Collected::Ready(1));
    assert_eq!(spares(), [7, 7]);
    assert_eq!(rotate(&segment, &mut rotation), Collected::Ready(2));
    assert_eq!(spares(), [0, 7], "it is ACTIVE now");
    // The spare is in use: the next thread that stays inside gets the other one.
    let other = hazards.protect(hazard::owner(2, 0), &segment.active).unwrap();
    assert_eq!(other.table(), 3);
    assert_eq!(rotate(&segment, &mut rotation), Collected::Quarantined(3));
    assert_eq!(rotation.roles(), [1, 2, 4]);
    assert!(hazards.release(held) && hazards.release(other));
}
