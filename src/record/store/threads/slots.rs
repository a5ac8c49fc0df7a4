//! Knows which thread holds which slot, and recycles the slots of threads that have exited.

use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::SlotState;

use crate::record::batch::threads::ThreadChange;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::store::threads::Exit;
use crate::record::store::threads::list::{Id, ThreadList};

/// A slot that a thread holds.
#[derive(Debug, Clone, Copy)]
struct Holding {
    slot: u32,
    generation: u32,
    life: u32,
}

/// The slots of the target's threads.
pub(super) struct SlotHolders {
    pub(super) data: DataSegment,
    /// The holder of each slot.
    held: Vec<Option<Holding>>,
    held_max: usize,
    /// The lives whose end was known when a rotation began: this rotation, or an earlier one, reads
    /// the tables with all of their samples.
    exited_lives: Vec<u32>,
    /// The slots of such lives.
    exited_slots: Vec<Holding>,
}

impl SlotHolders {
    /// Makes the slots of this segment, with no holders.
    pub(super) fn new(data: DataSegment) -> Self {
        Self {
            data,
            held: Vec::new(),
            held_max: 0,
            exited_lives: Vec::new(),
            exited_slots: Vec::new(),
        }
    }

    /// Returns the number of slots that threads hold, and the largest number so far.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.held.iter().flatten().count(), self.held_max)
    }

    /// Returns the changes to threads that hold slots, when a rotation begins.
    ///
    /// Threads that have exited by now count as exited before the rotation.
    pub(super) fn take_changes(&mut self, list: &mut ThreadList) -> Vec<ThreadChange> {
        let mut changes = Vec::new();
        self.sweep(list, &mut changes);
        self.exited_lives.append(&mut list.exited);
        for number in std::mem::take(&mut list.renamed) {
            if let Some(life) = list.lives.get(number) {
                changes.push(ThreadChange::Renamed { key: (number, 0), name: life.name.clone() });
            }
        }
        changes
    }

    /// Finds the holders of the slots in use, and retires the slots of threads that have exited.
    fn sweep(&mut self, list: &mut ThreadList, changes: &mut Vec<ThreadChange>) {
        let threads = self.data.threads();
        // Relaxed: a count. The next sweep finds slots that are claimed later.
        let used = threads.next.load(Ordering::Relaxed) as usize;
        self.held.resize(used.min(threads.slots.len()).max(self.held.len()), None);
        for (index, slot) in threads.slots.iter().enumerate().take(used) {
            // Acquire: pairs with the Release of the claim's commit; the id belongs to the state.
            let state = slot.state.load(Ordering::Acquire);
            if state != SlotState::Claimed as u32 && state != SlotState::Primed as u32 {
                continue;
            }
            // Relaxed on both: only the recorder raises the generation; for the id see above.
            let inner = slot.tid.load(Ordering::Relaxed);
            let generation = slot.generation.load(Ordering::Relaxed);
            let known = self.held[index].filter(|held| held.generation == generation);
            let held = known.unwrap_or_else(|| {
                // The latest life with the id, which may have ended already. If the slot belongs to
                // the previous life, it is recycled a little late.
                let latest = list.lives.latest_inner(inner);
                let life = latest
                    .unwrap_or_else(|| list.find_or_begin(Id::Inner(inner), monotonic_now_ns()));
                Holding { slot: index as u32, generation, life }
            });
            self.held[index] = Some(held);
            if list.lives.get(held.life).is_none_or(|life| life.end_ns.is_some()) {
                threads.mark_retired(inner, index, generation);
                self.exited_slots.push(held);
            } else if known.is_none() {
                list.announce((held.life, 0), monotonic_now_ns(), changes);
            }
        }
        self.held_max = self.held_max.max(self.held.iter().flatten().count());
    }

    /// Returns the threads that are about to be forgotten, if the rotation that began with
    /// [`Self::take_changes`] has read all earlier samples (`drained`).
    ///
    /// Each thread is returned once, before [`Self::retire`].
    pub(super) fn exits(&self, list: &ThreadList, drained: bool) -> Vec<Exit> {
        let exited_lives = self.exited_lives.iter().filter(|_| drained);
        let exits = exited_lives.filter_map(|number| {
            let life = list.lives.get(*number)?;
            let cpu_ns = life.cpu_ns.map(|ns| ns.saturating_sub(life.cpu_before_ns));
            Some(Exit { key: (*number, 0), tid: life.tid, time_ns: life.end_ns?, cpu_ns })
        });
        exits.collect()
    }

    /// Recycles the slots of threads that exited before the rotation, and forgets the threads, if
    /// the rotation has read all earlier samples (`drained`). Otherwise a later rotation does.
    pub(super) fn retire(
        &mut self,
        list: &mut ThreadList,
        drained: bool,
        changes: &mut Vec<ThreadChange>,
    ) {
        if !drained {
            return;
        }
        for held in std::mem::take(&mut self.exited_slots) {
            self.data.threads().recycle(held.slot as usize, held.generation);
            if let Some(holding) = self.held.get_mut(held.slot as usize) {
                *holding = None;
            }
        }
        for number in std::mem::take(&mut self.exited_lives) {
            let forgotten = list.lives.forget(number);
            if let Some(life) = &forgotten {
                list.started.note_end(life);
            }
            if let Some(life) = forgotten
                && life.is_announced
            {
                let time_ns = life.end_ns.unwrap_or_else(monotonic_now_ns);
                changes.push(ThreadChange::Exited { key: (number, 0), time_ns });
            }
        }
    }
}
