//! Which thread holds which slot, and when slots are given back.

use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::SlotState;

use crate::record::batch::threads::ThreadNews;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::store::threads::Exit;
use crate::record::store::threads::list::{Id, ThreadList};

/// A slot in a thread's hands.
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
    /// Lives and slots whose end was known when a rotation began: all of their samples are in
    /// tables that this rotation, or one before it, reads.
    going: Vec<u32>,
    leaving: Vec<Holding>,
}

impl SlotHolders {
    /// Makes the slots of this segment, with no holders.
    pub(super) fn new(data: DataSegment) -> Self {
        Self { data, held: Vec::new(), held_max: 0, going: Vec::new(), leaving: Vec::new() }
    }

    /// Returns the number of slots that threads hold, and the largest number so far.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.held.iter().flatten().count(), self.held_max)
    }

    /// Returns news of the threads that hold slots, when a rotation begins. Threads that have ended
    /// until now are gone before it.
    pub(super) fn news(&mut self, list: &mut ThreadList) -> Vec<ThreadNews> {
        let mut news = Vec::new();
        self.sweep(list, &mut news);
        self.going.append(&mut list.ended);
        for number in std::mem::take(&mut list.renamed) {
            if let Some(life) = list.lives.get(number) {
                news.push(ThreadNews::Renamed { key: (number, 0), name: life.name.clone() });
            }
        }
        news
    }

    /// Learns who holds the slots in use, and retires those of threads that are gone.
    fn sweep(&mut self, list: &mut ThreadList, news: &mut Vec<ThreadNews>) {
        let threads = self.data.threads();
        // Relaxed: a count; a slot that is taken later is seen in the next sweep.
        let used = threads.next.load(Ordering::Relaxed) as usize;
        self.held.resize(used.min(threads.slots.len()).max(self.held.len()), None);
        for (index, slot) in threads.slots.iter().enumerate().take(used) {
            // Acquire: pairs with the Release of the claim's commit; the id belongs to the state.
            let state = slot.state.load(Ordering::Acquire);
            if state != SlotState::Claimed as u32 && state != SlotState::Primed as u32 {
                continue;
            }
            // Relaxed on both: the generation is raised by this side only; see above for the id.
            let inner = slot.tid.load(Ordering::Relaxed);
            let generation = slot.generation.load(Ordering::Relaxed);
            let known = self.held[index].filter(|held| held.generation == generation);
            let held = known.unwrap_or_else(|| {
                // The latest, which may have ended already. Should the slot be that of the one
                // before, it is given back a little late.
                let latest = list.lives.latest_inner(inner);
                let life =
                    latest.unwrap_or_else(|| list.meet(Id::Inner(inner), monotonic_now_ns()));
                Holding { slot: index as u32, generation, life }
            });
            self.held[index] = Some(held);
            if list.lives.get(held.life).is_none_or(|life| life.end_ns.is_some()) {
                threads.mark_retired(inner, index, generation);
                self.leaving.push(held);
            } else if known.is_none() {
                list.announce((held.life, 0), monotonic_now_ns(), news);
            }
        }
        self.held_max = self.held_max.max(self.held.iter().flatten().count());
    }

    /// Returns threads that are about to be forgotten, if the rotation that began with
    /// [`Self::news`] has read all samples that were taken before it (`drained`). Each is returned
    /// once, before [`Self::retire`].
    pub(super) fn exits(&self, list: &ThreadList, drained: bool) -> Vec<Exit> {
        let going = self.going.iter().filter(|_| drained);
        let exits = going.filter_map(|number| {
            let life = list.lives.get(*number)?;
            let cpu_ns = life.cpu_ns.map(|ns| ns.saturating_sub(life.cpu_before_ns));
            Some(Exit { key: (*number, 0), tid: life.tid, time_ns: life.end_ns?, cpu_ns })
        });
        exits.collect()
    }

    /// Recycles the slots of threads that were gone before the rotation and forgets the threads, if
    /// the rotation has read all earlier samples (`drained`); otherwise a later one does.
    pub(super) fn retire(
        &mut self,
        list: &mut ThreadList,
        drained: bool,
        news: &mut Vec<ThreadNews>,
    ) {
        if !drained {
            return;
        }
        for held in std::mem::take(&mut self.leaving) {
            self.data.threads().recycle(held.slot as usize, held.generation);
            if let Some(place) = self.held.get_mut(held.slot as usize) {
                *place = None;
            }
        }
        for number in std::mem::take(&mut self.going) {
            if let Some(life) = list.lives.forget(number)
                && life.is_announced
            {
                let time_ns = life.end_ns.unwrap_or_else(monotonic_now_ns);
                news.push(ThreadNews::Gone { key: (number, 0), time_ns });
            }
        }
    }
}
