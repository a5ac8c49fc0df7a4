//! Who holds which slot, and when slots are given back.

use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::SlotState;

use crate::record::contract::clock::monotonic_now_ns;
use crate::record::store::threads::attribution::Id;
use crate::record::store::threads::{Exit, Holding, Registry, ThreadNews};

impl Registry {
    /// A rotation begins: news of the threads that hold slots. What ended until now is gone before
    /// it.
    pub(crate) fn news(&mut self) -> Vec<ThreadNews> {
        let mut news = Vec::new();
        self.sweep(&mut news);
        self.going.append(&mut self.ended);
        for number in std::mem::take(&mut self.renamed) {
            if let Some(life) = self.lives.get(number) {
                news.push(ThreadNews::Renamed { key: (number, 0), name: life.name.clone() });
            }
        }
        news
    }

    /// Learns who holds the slots in use, and retires those of threads that are gone.
    fn sweep(&mut self, news: &mut Vec<ThreadNews>) {
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
                let latest = self.lives.latest_inner(inner);
                let life =
                    latest.unwrap_or_else(|| self.meet(Id::Inner(inner), monotonic_now_ns()));
                Holding { slot: index as u32, generation, life }
            });
            self.held[index] = Some(held);
            if self.lives.get(held.life).is_none_or(|life| life.end_ns.is_some()) {
                threads.mark_retired(inner, index, generation);
                self.leaving.push(held);
            } else if known.is_none() {
                self.tell((held.life, 0), news);
            }
        }
        self.held_max = self.held_max.max(self.held.iter().flatten().count());
    }

    /// Threads that are about to be forgotten, if the rotation that began with [`Self::news`] has
    /// read all samples that were taken before it (`drained`). Each is told of once, before
    /// [`Self::retire`].
    pub(crate) fn exits(&self, drained: bool) -> Vec<Exit> {
        let going = self.going.iter().filter(|_| drained);
        let exits = going.filter_map(|number| {
            let life = self.lives.get(*number)?;
            let cpu_ns = life.cpu_ns.map(|ns| ns.saturating_sub(life.cpu_before_ns));
            Some(Exit { key: (*number, 0), tid: life.tid, time_ns: life.end_ns?, cpu_ns })
        });
        exits.collect()
    }

    /// After a rotation: recycles the slots of threads that were gone before it and forgets them,
    /// if all samples that were taken before it have been read; else after one of the next.
    pub(crate) fn retire(&mut self, drained: bool, news: &mut Vec<ThreadNews>) {
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
            if let Some(life) = self.lives.forget(number)
                && life.is_told
            {
                let time_ns = life.end_ns.unwrap_or_else(monotonic_now_ns);
                news.push(ThreadNews::Gone { key: (number, 0), time_ns });
            }
        }
    }
}
