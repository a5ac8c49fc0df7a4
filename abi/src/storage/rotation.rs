//! The roles of the tables and their rotation, as the recorder performs it.
//!
//! # Invariants
//! - Only the recorder changes roles; the handlers see nothing but the ACTIVE word.
//! - A table is read or reset only when no hazard names the ACTIVE word that it had; one that a
//!   dead or stopped thread still holds is quarantined and a spare takes its place.
//! - No instance id is given twice, and none is 0: when they run out, nothing rotates any more.
//!   Whoever [says which](Rotation::share_instance) is next sees to that.
//! - The generation in the ACTIVE word may come round (after 2^29 rotations): a claim as old as
//!   that keeps its table quarantined, so the word cannot be current again for that table; and one
//!   that was never confirmed is confirmed then as any other, with the fence that this takes.
//! - A spare is not touched before it rotates in, so that it need not be there before.

use super::hazard::{HazardSlots, TABLE_BITS};
use super::table::TraceTable;
use crate::sync::{AtomicU64, Ordering, fence};

/// The recorder's view of the roles: indices into the tables.
#[derive(Debug)]
pub struct Rotation {
    active: usize,
    standby: usize,
    scratch: usize,
    /// Tables without a role, by bit.
    spares: u32,
    /// Tables that a thread is still inside of, by bit, with the ACTIVE word they had.
    quarantined: [Option<u32>; 1 << TABLE_BITS],
    generation: u32,
    /// 0 when all have been given.
    next_instance: u32,
}

/// Where the counts of a [`Rotation`] begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The first instance id, at least 1.
    pub instance: u32,
    /// The generation of the first ACTIVE word.
    pub generation: u32,
}

/// What one rotation made readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collected {
    /// Index of the old ACTIVE table: no thread is inside, it is SCRATCH now.
    Ready(usize),
    /// A thread stayed inside for as long as the caller waited: the table is left alone until
    /// [`Rotation::released`] names it.
    Quarantined(usize),
    /// Nothing was rotated: a thread is still inside the table whose turn it is, and no spare is
    /// left.
    Blocked,
    /// Nothing was rotated: no instance id is left.
    Exhausted,
}

/// Mask of a generation.
const GENERATIONS: u32 = u32::MAX >> TABLE_BITS;

impl Rotation {
    /// Tables that have a role from the start on: the first ones. The others are spares.
    pub const ROLES: usize = 3;

    /// Gives the first table the ACTIVE role, with instance id 1.
    /// `tables` are all there are: three roles, the rest spares, which are empty.
    pub fn start(tables: &[TraceTable<'_>], active: &AtomicU64) -> Self {
        Self::start_at(tables, active, Origin { instance: 1, generation: 0 })
    }

    /// As [`Self::start`], counting on from somewhere.
    pub fn start_at(tables: &[TraceTable<'_>], active: &AtomicU64, origin: Origin) -> Self {
        let rotation = Self {
            active: 0,
            standby: 1,
            scratch: 2,
            spares: (Self::ROLES..tables.len()).fold(0, |bits, table| bits | 1 << table),
            quarantined: [None; 1 << TABLE_BITS],
            generation: origin.generation & GENERATIONS,
            next_instance: origin.instance.wrapping_add(1),
        };
        for (table, instance) in tables.iter().zip([origin.instance, 0, 0]) {
            table.reset(instance);
        }
        rotation.publish(active);
        rotation
    }

    /// An instance id that no table has had or will have; `None` when all have been given.
    pub fn take_instance(&mut self) -> Option<u32> {
        let instance = (self.next_instance != 0).then_some(self.next_instance)?;
        self.next_instance = instance.wrapping_add(1);
        Some(instance)
    }

    /// Says which instance id the next rotation gives, where several storages share them: one that
    /// none of them has had. `None` when all have been given.
    pub fn share_instance(&mut self, instance: Option<u32>) {
        self.next_instance = instance.unwrap_or(0);
    }

    /// The ACTIVE word of the current roles.
    pub fn active_word(&self) -> u32 {
        self.generation << TABLE_BITS | self.active as u32
    }

    /// Index of ACTIVE.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Index of STANDBY: preserved traces of the last cycle.
    pub fn standby(&self) -> usize {
        self.standby
    }

    /// Indices of ACTIVE, STANDBY and SCRATCH: the tables that must be there. A spare is SCRATCH
    /// first, and is written only by the next rotation.
    pub fn roles(&self) -> [usize; Self::ROLES] {
        [self.active, self.standby, self.scratch]
    }

    /// Whether a table is quarantined: it must not be read or written.
    pub fn is_quarantined(&self, table: usize) -> bool {
        self.quarantined[table].is_some()
    }

    /// The quarantined tables: index, and the ACTIVE word that their holders claim.
    pub fn quarantined(&self) -> impl Iterator<Item = (usize, u32)> {
        let words = self.quarantined.iter().enumerate();
        words.filter_map(|(table, word)| Some((table, (*word)?)))
    }

    /// No table is quarantined: whatever was put before the last rotation has been readable.
    pub fn is_drained(&self) -> bool {
        self.quarantined().next().is_none()
    }

    fn publish(&self, active: &AtomicU64) {
        // Release: pairs with the Acquire in `HazardSlots::protect`; the reset table is visible.
        active.store(u64::from(self.active_word()), Ordering::Release);
        // SeqCst: pairs with the fence in `HazardSlots::protect`; see there.
        fence(Ordering::SeqCst);
    }

    /// Resets STANDBY and makes it ACTIVE, the old ACTIVE becomes SCRATCH, the old SCRATCH
    /// STANDBY. The caller has collected STANDBY before. `wait` is called while a thread is inside
    /// the old ACTIVE table and says whether to go on waiting.
    pub fn rotate(
        &mut self,
        tables: &[TraceTable<'_>],
        active: &AtomicU64,
        hazards: HazardSlots<'_>,
        mut wait: impl FnMut() -> bool,
    ) -> Collected {
        let old_word = self.active_word();
        if self.is_quarantined(self.standby) {
            return Collected::Blocked;
        }
        let Some(instance) = self.take_instance() else { return Collected::Exhausted };
        tables[self.standby].reset(instance);
        let old_active = self.active;
        self.active = self.standby;
        self.standby = self.scratch;
        self.scratch = old_active;
        self.generation = self.generation.wrapping_add(1) & GENERATIONS;
        self.publish(active);
        while !hazards.is_clear(old_word) {
            if !wait() {
                return self.quarantine(old_word);
            }
        }
        Collected::Ready(old_active)
    }

    /// Takes a table out of the roles; a spare becomes SCRATCH in its place. Without a spare the
    /// table keeps its role as well, and the rotation that would reuse it is blocked.
    fn quarantine(&mut self, word: u32) -> Collected {
        let table = self.scratch;
        self.quarantined[table] = Some(word);
        if self.spares != 0 {
            let spare = self.spares.trailing_zeros() as usize;
            self.spares &= !(1 << spare);
            self.scratch = spare;
        }
        Collected::Quarantined(table)
    }

    /// A quarantined table that no thread is inside of any more; it is to be collected, then given
    /// back by [`Self::restore`].
    pub fn released(&self, hazards: HazardSlots<'_>) -> Option<usize> {
        (0..self.quarantined.len())
            .find(|&table| self.quarantined[table].is_some_and(|word| hazards.is_clear(word)))
    }

    /// Makes a table that [`Self::released`] named a spare again.
    pub fn restore(&mut self, table: usize) {
        let has_role = [self.active, self.standby, self.scratch].contains(&table);
        if self.quarantined[table].take().is_some() && !has_role {
            self.spares |= 1 << table;
        }
    }
}
