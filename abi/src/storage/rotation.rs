//! The roles of the tables, and the rotation that the recorder performs.
//!
//! # Invariants
//! - Only the recorder changes roles. The handlers see only the ACTIVE word.
//! - The recorder reads or resets a table only when no hazard names the ACTIVE word that the table
//!   had. If a dead or stopped thread still holds a table, the table is quarantined and a spare
//!   takes its place.
//! - No instance id is used twice, and none is 0. When they run out, nothing rotates any more. A
//!   caller that [chooses the next id](Rotation::share_instance) must ensure this itself.
//! - The generation in the ACTIVE word may wrap around (after 2^29 rotations). A claim that old
//!   keeps its table quarantined, so the word cannot become current again for that table. If such a
//!   claim was never confirmed, the wrapped word confirms it like any other claim, with the same
//!   fence.
//! - A spare is not touched before it rotates in, so its memory need not be populated before.

use super::hazard::{HazardSlots, TABLE_BITS};
use super::table::TraceTable;
use crate::sync::{AtomicU64, Ordering, fence};

/// The recorder's view of the roles, as indices into the tables.
#[derive(Debug)]
pub struct Rotation {
    active: usize,
    standby: usize,
    scratch: usize,
    /// Bitmap of the tables without a role.
    spares: u32,
    /// For each table that a thread is still inside: the ACTIVE word that the table had.
    quarantined: [Option<u32>; 1 << TABLE_BITS],
    generation: u32,
    /// The instance id of the next rotation, or 0 when all are used.
    next_instance: u32,
}

/// The initial counts of a [`Rotation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The first instance id, at least 1.
    pub instance: u32,
    /// The generation of the first ACTIVE word.
    pub generation: u32,
}

/// The outcome of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collected {
    /// The old ACTIVE table, which is SCRATCH now. No thread is inside it.
    Ready(usize),
    /// The old ACTIVE table, which a thread did not leave while the caller waited. The table is
    /// left alone until [`Rotation::released`] names it.
    Quarantined(usize),
    /// Nothing was rotated: a thread is still inside the next table, and no spare is left.
    Blocked,
    /// Nothing was rotated: no instance id is left.
    Exhausted,
}

/// Mask of the generation.
const GENERATIONS: u32 = u32::MAX >> TABLE_BITS;

impl Rotation {
    /// Number of tables that have a role at the start: the first ones. The others are spares.
    pub const ROLES: usize = 3;

    /// Gives the first table the ACTIVE role, with instance id 1. `tables` are all tables: three
    /// with roles, and spares, which are empty.
    pub fn start(tables: &[TraceTable<'_>], active: &AtomicU64) -> Self {
        Self::start_at(tables, active, Origin { instance: 1, generation: 0 })
    }

    /// Like [`Self::start`], with counts that begin at `origin`.
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

    /// Takes an instance id that no table has had or will get. `None` when all are used.
    pub fn take_instance(&mut self) -> Option<u32> {
        let instance = (self.next_instance != 0).then_some(self.next_instance)?;
        self.next_instance = instance.wrapping_add(1);
        Some(instance)
    }

    /// Sets the instance id of the next rotation, where several storages share the ids. No storage
    /// may have used it. `None` means that all are used.
    pub fn share_instance(&mut self, instance: Option<u32>) {
        self.next_instance = instance.unwrap_or(0);
    }

    /// Returns the ACTIVE word of the current roles.
    pub fn active_word(&self) -> u32 {
        self.generation << TABLE_BITS | self.active as u32
    }

    /// Returns the index of ACTIVE.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Returns the index of STANDBY, which has the preserved traces of the last cycle.
    pub fn standby(&self) -> usize {
        self.standby
    }

    /// Returns the indices of ACTIVE, STANDBY and SCRATCH: the tables that must be populated. A
    /// spare first becomes SCRATCH, and only the next rotation writes it.
    pub fn roles(&self) -> [usize; Self::ROLES] {
        [self.active, self.standby, self.scratch]
    }

    /// Whether a table is quarantined. A quarantined table must not be read or written.
    pub fn is_quarantined(&self, table: usize) -> bool {
        self.quarantined[table].is_some()
    }

    /// Returns the quarantined tables: the index, and the ACTIVE word that the holders claim.
    pub fn quarantined(&self) -> impl Iterator<Item = (usize, u32)> {
        let words = self.quarantined.iter().enumerate();
        words.filter_map(|(table, word)| Some((table, (*word)?)))
    }

    /// Whether no table is quarantined, so that everything put before the last rotation has become
    /// readable.
    pub fn is_drained(&self) -> bool {
        self.quarantined().next().is_none()
    }

    fn publish(&self, active: &AtomicU64) {
        // Release: pairs with the Acquire in `HazardSlots::protect`; the reset table is visible.
        active.store(u64::from(self.active_word()), Ordering::Release);
        // SeqCst: pairs with the fence in `HazardSlots::protect`. At least one side sees the
        // other's store: either the handler sees the new ACTIVE word, or this side sees its hazard.
        fence(Ordering::SeqCst);
    }

    /// Resets STANDBY and makes it ACTIVE. The old ACTIVE becomes SCRATCH, and the old SCRATCH
    /// becomes STANDBY. The caller has collected STANDBY before. While a thread is inside the old
    /// ACTIVE table, this calls `wait`, which returns whether to wait longer.
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

    /// Quarantines the SCRATCH table; a spare becomes SCRATCH in its place. Without a spare the
    /// table keeps its role, and the rotation that would reuse it is blocked.
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

    /// Returns a quarantined table that all threads have left. The caller collects it and then
    /// calls [`Self::restore`].
    pub fn released(&self, hazards: HazardSlots<'_>) -> Option<usize> {
        (0..self.quarantined.len())
            .find(|&table| self.quarantined[table].is_some_and(|word| hazards.is_clear(word)))
    }

    /// Makes a table that [`Self::released`] returned a spare again.
    pub fn restore(&mut self, table: usize) {
        let has_role = [self.active, self.standby, self.scratch].contains(&table);
        if self.quarantined[table].take().is_some() && !has_role {
            self.spares |= 1 << table;
        }
    }
}
