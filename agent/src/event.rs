//! The choice of the perf event that counts for a thread: one of each family.
//!
//! A thread has two events if the recorder found it after it had inherited an event. The recorder
//! closes the younger event and marks it retired. Events of an earlier family do not take part: the
//! recorder has closed them all before it enables the next family.

use traceprof_abi::event::EventWord;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;

/// Whether an expiry of this event counts on the calling thread, which has this slot.
pub fn is_accepted(data: DataSegment, slot: &ThreadSlot, event: EventWord) -> bool {
    // Relaxed: stored before the events of that family are enabled. An expiry of the previous
    // family may come later, if the signal was blocked. It stands for its own period, and the slot
    // does not record its event.
    let family = data.control().event_family.load(Ordering::Relaxed);
    if event.family() != family {
        return true;
    }
    let id = event.0.wrapping_add(1);
    // Relaxed: the slot is this thread's own; the recorder only reads it.
    let accepted = slot.event.load(Ordering::Relaxed);
    if accepted == id {
        return true;
    }
    let before = EventWord(accepted.wrapping_sub(1));
    if accepted == 0 || before.family() != family || is_retired(data, before.index()) {
        slot.event.store(id, Ordering::Relaxed);
        return true;
    }
    slot.other_event.store(id, Ordering::Relaxed);
    false
}

fn is_retired(data: DataSegment, index: u32) -> bool {
    let word = data.events_retired().get(index as usize / 64);
    // Relaxed: a bit that is seen late costs one more duplicate without a sample.
    word.is_some_and(|word| word.load(Ordering::Relaxed) >> (index % 64) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::segment;

    #[test]
    fn a_thread_counts_one_of_two_events() {
        let data = segment();
        let slot = &data.threads().slots[3];
        assert!(is_accepted(data, slot, EventWord(70)));
        assert!(is_accepted(data, slot, EventWord(70)));
        assert!(!is_accepted(data, slot, EventWord(9)), "the second event of a thread");
        assert_eq!(slot.other_event.load(Ordering::Relaxed), 10);
        assert!(is_accepted(data, slot, EventWord(70)));
        // The recorder closes the younger event, whether it is the accepted one or not.
        data.events_retired()[1].store(1 << (70 - 64), Ordering::Relaxed);
        assert!(is_accepted(data, slot, EventWord(9)));
        assert!(!is_accepted(data, slot, EventWord(71)));
    }

    #[test]
    fn an_event_beyond_the_bitmap_is_not_retired() {
        assert!(!is_retired(segment(), u32::MAX));
    }

    #[test]
    fn the_first_expiry_of_the_next_family_is_its_threads_event() {
        let data = segment();
        let slot = &data.threads().slots[3];
        let family = |family| data.control().event_family.store(family, Ordering::Relaxed);
        let [old, new, other] =
            [(70, 0), (2, 1), (3, 1)].map(|(index, family)| EventWord::new(index, 4, family));
        assert!(is_accepted(data, slot, old));
        family(1);
        assert!(is_accepted(data, slot, old), "its signal was pending");
        assert!(is_accepted(data, slot, new));
        assert!(!is_accepted(data, slot, other), "the second one of the new family");
        assert_eq!(slot.other_event.load(Ordering::Relaxed), other.0 + 1);
        assert!(is_accepted(data, slot, old), "its signal was pending for long");
        assert_eq!(slot.event.load(Ordering::Relaxed), new.0 + 1);
    }
}
