//! The threads' CPU timers. Whichever code of the agent runs next arms them, and expiries delete
//! them.
//!
//! A thread's timer measures that thread's CPU time and signals that thread, whichever thread
//! created it. So a sleeping thread's timer is armed without waking the thread. A slot with a
//! pending timer request has a bit in a bitmap. Whoever takes the bit serves the request.
//!
//! # Invariants
//! - Only the code that swapped a slot's timer word creates or deletes the timer: from 0 to
//!   [`TIMER_BUSY`] to create it, or from the timer's id + 1 to 0 to delete it.
//! - The signal's value names slot and generation. An expiry with other values than the thread's
//!   own deletes its timer.
//! - When the recorder does not renew the lease, the next expiry of any timer deletes the timers.
//!
//! # Does not
//! - arm timers in a forked child: the child has none, and the state that it inherited is its
//!   parent's.
//!
//! # Safety
//! Only the tests are unsafe: they construct the data that the kernel passes to a handler.

use traceprof_abi::layout::{
    AgentState, ControlBlock, Counter, INSTALLED, PRIMING, TIMER_BUSY, timer_value,
};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::{SlotState, ThreadSlot};

use crate::{rate, sys};

/// Maximum number of pending timers that a handler arms in addition to its sample.
pub const ARM_PER_SAMPLE: usize = 8;

/// Deletes a slot's timer. False if other code creates or deletes it at the same time.
pub fn end(slot: &ThreadSlot, timer: i32) -> bool {
    let word = (timer as u32).wrapping_add(1);
    // Relaxed on both: the word alone decides who deletes the timer.
    let taken = slot.timer.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if taken {
        sys::timer_delete(timer);
    }
    taken
}

/// Whether the recorder's lease is still valid.
pub fn is_leased(control: &ControlBlock) -> bool {
    // Relaxed: a renewal that is seen late ends a timer, which the recorder arms again.
    sys::monotonic_ns() < control.lease_until_ns.load(Ordering::Relaxed)
}

/// Whether timers may be armed now.
pub fn may_arm(control: &ControlBlock) -> bool {
    // Acquire: pairs with the restore's Release, after which nothing may be armed any more. The
    // restore checks again when no thread is in the agent's code.
    control.state.load(Ordering::Acquire) != AgentState::Stopped as u32
        // Acquire: pairs with the Release in `entry::install`; the signal has its handler.
        && control.signals[PRIMING].installed.load(Ordering::Acquire) == INSTALLED
        && is_leased(control)
}

/// Serves up to `most` pending timer requests.
pub fn drain(data: DataSegment, most: usize) {
    let control = data.control();
    // Relaxed: the swap below decides.
    if control.arm_wanted.load(Ordering::Relaxed) == 0 || !may_arm(control) {
        return;
    }
    // The word is cleared before the bits are read: a bit that is set later sets the word again.
    // Acquire: pairs with the Release in `want_timer`; the bits are visible.
    if control.arm_wanted.swap(0, Ordering::Acquire) == 0 {
        return;
    }
    let mut left = most;
    // Relaxed: incremented before the bit of a new slot was set, which the swap made visible.
    let words = (control.slots_next.load(Ordering::Relaxed) as usize).div_ceil(64);
    for (index, word) in data.arm_pending().iter().enumerate().take(words) {
        for _ in 0..64 {
            // Relaxed: the swap that takes the bit decides.
            let pending = word.load(Ordering::Relaxed);
            if pending == 0 {
                break;
            }
            if left == 0 {
                // Relaxed: the remaining bits were visible to this thread, and so are to the next
                // one.
                control.arm_wanted.store(1, Ordering::Relaxed);
                return;
            }
            let bit = pending & pending.wrapping_neg();
            // Acquire: pairs with the Release in `want_timer`; the slot is visible.
            if word.fetch_and(!bit, Ordering::Acquire) & bit != 0 {
                left -= 1;
                arm(data, index * 64 + bit.trailing_zeros() as usize);
            }
        }
    }
}

/// Arms the timer of a slot's thread if it has none. Deletes the timer of a thread that has exited.
pub fn arm(data: DataSegment, index: usize) {
    let Some(slot) = data.threads().slots.get(index) else { return };
    // Relaxed, all three: visible since the bit was taken. If the slot changes its owner meanwhile,
    // the check at the end notices it.
    let generation = slot.generation.load(Ordering::Relaxed);
    let tid = slot.tid.load(Ordering::Relaxed);
    let is_gone = tid == 0 || slot.state.load(Ordering::Relaxed) == SlotState::Retired as u32;
    // Acquire: pairs with the Release in `create`; the timer's generation is visible.
    let timer = slot.timer.load(Ordering::Acquire);
    if timer == TIMER_BUSY {
        return;
    }
    if timer != 0 {
        let is_older = slot.timer_generation.load(Ordering::Relaxed) != generation;
        let is_ended = (is_gone || is_older) && end(slot, timer.wrapping_sub(1) as i32);
        if !is_ended {
            return;
        }
    }
    if is_gone {
        return;
    }
    // Relaxed on both: the word alone decides who creates the timer.
    let order = Ordering::Relaxed;
    if slot.timer.compare_exchange(0, TIMER_BUSY, order, order).is_err() {
        return;
    }
    create(data, index, slot, (tid, generation));
    // Relaxed: the recorder increments it only after the thread has exited.
    if slot.generation.load(Ordering::Relaxed) != generation {
        // Other code may have taken the request bit of the slot's next thread while the word was
        // busy.
        data.want_timer(index);
    }
}

/// Creates the timer of the thread that had the slot, and releases the slot's timer word.
fn create(data: DataSegment, index: usize, slot: &ThreadSlot, owner: (u32, u32)) {
    let control = data.control();
    let (tid, generation) = owner;
    let shift = rate::wanted(control);
    // Relaxed, all three: written before the bit was set.
    let request = sys::ThreadTimer {
        tid,
        signal: control.signals[PRIMING].signal.load(Ordering::Relaxed),
        value: timer_value(control.cookie.load(Ordering::Relaxed), index as u32, generation),
        period_ns: control.period_ns.load(Ordering::Relaxed) << shift,
    };
    let word = match request.arm(rate::phase(request.value, request.period_ns)) {
        Ok(timer) => {
            control.count(Counter::Armed);
            // Relaxed, all three: published below. An expiry before that belongs to another life of
            // the slot.
            slot.timer_shift.store(shift, Ordering::Relaxed);
            slot.timer_generation.store(generation, Ordering::Relaxed);
            slot.timer_error.store(0, Ordering::Relaxed);
            // Has no effect on a thread that is primed already.
            data.threads().prime(index, generation);
            (timer as u32).wrapping_add(1)
        }
        Err(errno) => {
            control.count(Counter::TimerFailed);
            // Relaxed: published below.
            slot.timer_error.store(errno, Ordering::Relaxed);
            0
        }
    };
    // Release: pairs with the Acquire in `arm`; the words above are visible.
    slot.timer.store(word, Ordering::Release);
}

/// Deletes all timers.
pub fn disarm(data: DataSegment) {
    // Relaxed: the restore checks again for timers armed from now on, when no thread is in the
    // agent's code.
    let used = data.control().slots_next.load(Ordering::Relaxed) as usize;
    for slot in data.threads().slots.iter().take(used) {
        // Relaxed: the swap in `end` decides.
        let timer = slot.timer.load(Ordering::Relaxed);
        if timer != 0 && timer != TIMER_BUSY {
            end(slot, timer.wrapping_sub(1) as i32);
        }
    }
}

#[cfg(test)]
mod tests {
    use traceprof_abi::unwind::Tables;

    use super::*;
    use crate::frame::Frame;
    use crate::sample::tests::segment;
    use crate::timer_expiry::on_expiry;

    /// A signal that does nothing by default: the timers here are real.
    const SIGURG: u32 = 23;

    fn ready() -> DataSegment {
        let data = segment();
        let control = data.control();
        control.signals[PRIMING].signal.store(SIGURG, Ordering::Relaxed);
        control.signals[PRIMING].installed.store(1, Ordering::Relaxed);
        control.period_ns.store(1_000_000_000, Ordering::Relaxed);
        control.lease_until_ns.store(u64::MAX, Ordering::Relaxed);
        control.slots_next.store(70, Ordering::Relaxed);
        data
    }

    fn count(data: DataSegment, counter: Counter) -> u64 {
        data.control().counters[counter as usize].load(Ordering::Relaxed)
    }

    fn timer(data: DataSegment, index: usize) -> u32 {
        data.threads().slots[index].timer.load(Ordering::Relaxed)
    }

    #[test]
    fn pending_requests_are_served_once_and_in_portions() {
        let data = ready();
        let slots = [0, 3, 63, 65, 69];
        for index in slots {
            data.threads().slots[index].tid.store(sys::gettid(), Ordering::Relaxed);
            data.want_timer(index);
        }
        let wanted = || data.control().arm_wanted.load(Ordering::Relaxed);
        drain(data, 2);
        assert_eq!((count(data, Counter::Armed), wanted()), (2, 1));
        drain(data, 8);
        assert_eq!((count(data, Counter::Armed), wanted()), (5, 0));
        let timers = slots.map(|index| timer(data, index));
        assert!(timers.iter().all(|&timer| timer != 0 && timer != TIMER_BUSY), "{timers:?}");
        // A thread that has a timer keeps it.
        data.want_timer(3);
        drain(data, 8);
        assert_eq!((count(data, Counter::Armed), wanted(), timer(data, 3)), (5, 0, timers[1]));
        disarm(data);
        assert_eq!(slots.map(|index| timer(data, index)), [0; 5]);
    }

    /// The code that takes the bit serves the request. Of two threads that saw the bit, one creates
    /// the timer, or fails to.
    #[test]
    fn two_concurrent_servers_serve_each_slot_once() {
        const SLOTS: usize = 4096;
        const ROUNDS: usize = 200;
        let data = ready();
        let control = data.control();
        control.slots_next.store(SLOTS as u32, Ordering::Relaxed);
        // There is no such thread, so each attempt is counted as failed.
        for slot in &data.threads().slots[..SLOTS] {
            slot.tid.store(1 << 30, Ordering::Relaxed);
        }
        let line = std::sync::Barrier::new(2);
        let serve = || {
            for _ in 0..ROUNDS {
                line.wait();
                control.arm_wanted.store(1, Ordering::Relaxed);
                drain(data, SLOTS);
                line.wait();
            }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(serve);
            for _ in 0..ROUNDS {
                for index in 0..SLOTS {
                    data.want_timer(index);
                }
                line.wait();
                control.arm_wanted.store(1, Ordering::Relaxed);
                drain(data, SLOTS);
                line.wait();
            }
            other.join().unwrap();
        });
        assert_eq!(count(data, Counter::TimerFailed), (ROUNDS * SLOTS) as u64);
    }

    #[test]
    fn nothing_is_armed_without_a_recorder_a_handler_or_a_thread() {
        let data = ready();
        let control = data.control();
        data.threads().slots[1].tid.store(sys::gettid(), Ordering::Relaxed);
        data.want_timer(1);
        control.lease_until_ns.store(sys::monotonic_ns(), Ordering::Relaxed);
        drain(data, 8);
        control.lease_until_ns.store(u64::MAX, Ordering::Relaxed);
        control.signals[PRIMING].installed.store(0, Ordering::Relaxed);
        drain(data, 8);
        control.signals[PRIMING].installed.store(1, Ordering::Relaxed);
        control.state.store(AgentState::Stopped as u32, Ordering::Relaxed);
        drain(data, 8);
        assert_eq!((count(data, Counter::Armed), timer(data, 1)), (0, 0));
        assert_eq!(data.arm_pending()[0].load(Ordering::Relaxed), 2, "the request stays pending");
        // A slot without a thread, and a slot of a thread that never existed.
        control.state.store(AgentState::Sampling as u32, Ordering::Relaxed);
        data.threads().slots[2].tid.store(1 << 30, Ordering::Relaxed);
        data.want_timer(2);
        data.want_timer(5);
        drain(data, 8);
        assert_eq!((count(data, Counter::Armed), count(data, Counter::TimerFailed)), (1, 1));
        const EINVAL: u32 = 22;
        let error = data.threads().slots[2].timer_error.load(Ordering::Relaxed);
        assert_eq!((error, timer(data, 2), timer(data, 5)), (EINVAL, 0, 0));
        disarm(data);
    }

    /// Delivers a timer's expiry on this thread, with the data that the kernel would pass.
    fn expire(data: DataSegment, timer: u32, value: u64, overruns: u64) {
        // SAFETY: zeroes are a valid value of structures of integers.
        let (mut info, context): (sys::SigInfo, _) = unsafe { std::mem::zeroed() };
        info.origin = overruns << 32 | u64::from(timer - 1);
        info.value = value;
        let frame = Frame { info: &info, context: &context, return_slot: &mut 0, is_direct: false };
        // SAFETY: more than the header's length, of zeroes: no snapshot was ever published, so the
        // sample itself is lost.
        let tables = unsafe { Tables::new(data.base(), 4096) };
        on_expiry(data, tables, &frame);
    }

    /// Returns a segment, this thread's slot, and another thread's slot. Both slots have timers of
    /// this thread.
    fn armed() -> (DataSegment, usize, usize) {
        let data = ready();
        let control = data.control();
        control.state.store(AgentState::Sampling as u32, Ordering::Relaxed);
        control.slots_next.store(0, Ordering::Relaxed);
        control.slots_limit.store(4, Ordering::Relaxed);
        let other = data.threads().claim(1 << 30).index().unwrap();
        let own = data.threads().claim(sys::gettid()).index().unwrap();
        data.threads().slots[other].tid.store(sys::gettid(), Ordering::Relaxed);
        arm(data, other);
        data.threads().slots[other].tid.store(1 << 30, Ordering::Relaxed);
        arm(data, own);
        assert!(timer(data, own) != 0 && timer(data, other) != 0);
        (data, own, other)
    }

    #[test]
    fn an_expiry_of_this_life_of_the_slot_counts_with_its_overruns() {
        let (data, own, other) = armed();
        expire(data, timer(data, own), timer_value(0, own as u32, 0), 3);
        let counters = || [Counter::TimerExpiries, Counter::TimerOverruns, Counter::Stale];
        assert_eq!(counters().map(|counter| count(data, counter)), [1, 3, 0]);
        // There is no table: the sample is lost, with all periods that it stood for.
        let lost = [Counter::LostOverruns, Counter::LostThreadSlot, Counter::Broken];
        let [overruns, slot, broken] = lost.map(|counter| count(data, counter));
        assert_eq!((overruns, slot + broken), (3, 1));
        // Values of another life, another slot and another recording.
        for (cookie, slot, generation) in [(0, own, 1), (0, other, 0), (1, own, 0)] {
            let value = timer_value(cookie, slot as u32, generation);
            // The id belongs to no timer, so deleting it has no effect.
            expire(data, i32::MAX as u32, value, 5);
        }
        assert_eq!(counters().map(|counter| count(data, counter)), [1, 3, 3]);
        assert_ne!(timer(data, own), 0);
        // In its next life the slot belongs to the same thread. Expiries of the previous life are
        // stale.
        let threads = data.threads();
        assert!(threads.mark_retired(sys::gettid(), own, 0) && threads.recycle(own, 0));
        assert_eq!(threads.claim(sys::gettid()).index(), Some(own));
        expire(data, i32::MAX as u32, timer_value(0, own as u32, 0), 5);
        assert_eq!(counters().map(|counter| count(data, counter)), [1, 3, 4]);
        disarm(data);
    }

    #[test]
    fn the_first_expiry_after_the_lease_deletes_all_timers() {
        let (data, own, other) = armed();
        let control = data.control();
        control.lease_until_ns.store(sys::monotonic_ns(), Ordering::Relaxed);
        expire(data, timer(data, own), timer_value(0, own as u32, 0), 0);
        assert_eq!((timer(data, own), timer(data, other)), (0, 0));
        assert_eq!(count(data, Counter::LeaseEnded), 2);
        let pending = data.arm_pending()[0].load(Ordering::Relaxed);
        assert_eq!(pending, 1 << own | 1 << other, "a recorder that comes back finds them");
    }

    #[test]
    fn a_timer_follows_the_rate_and_its_expiries_weigh_the_old_one() {
        let (data, own, _) = armed();
        let (control, slot) = (data.control(), &data.threads().slots[own]);
        let value = timer_value(0, own as u32, 0);
        let lost = || count(data, Counter::LostOverruns);
        control.rate_shift.store(3, Ordering::Relaxed);
        expire(data, timer(data, own), value, 1);
        // There is no table, so all periods of an expiry but the first count as lost overruns.
        assert_eq!(
            (lost(), slot.timer_shift.load(Ordering::Relaxed)),
            (1, 3),
            "it ran at the old rate"
        );
        expire(data, timer(data, own), value, 1);
        assert_eq!(lost(), 1 + 15);
        control.rate_shift.store(u32::MAX, Ordering::Relaxed);
        expire(data, timer(data, own), value, 0);
        assert_eq!((lost(), slot.timer_shift.load(Ordering::Relaxed)), (16 + 7, 10));
        // A timer that is armed now has the wanted rate.
        disarm(data);
        control.rate_shift.store(2, Ordering::Relaxed);
        arm(data, own);
        assert_eq!(slot.timer_shift.load(Ordering::Relaxed), 2);
        disarm(data);
    }

    #[test]
    fn an_expiry_after_the_end_deletes_its_timer() {
        let (data, own, other) = armed();
        data.control().state.store(AgentState::Stopped as u32, Ordering::Relaxed);
        expire(data, timer(data, own), timer_value(0, own as u32, 0), 0);
        assert_eq!((timer(data, own), count(data, Counter::Off)), (0, 1));
        assert_eq!(count(data, Counter::TimerExpiries), 0);
        assert_ne!(timer(data, other), 0, "it has expiries of its own");
        disarm(data);
    }

    #[test]
    fn a_slot_of_another_thread_gets_a_timer_of_its_own() {
        let (data, own, _) = armed();
        let before = timer(data, own);
        let threads = data.threads();
        assert!(threads.mark_retired(sys::gettid(), own, 0) && threads.recycle(own, 0));
        assert_eq!(timer(data, own), before, "the kernel keeps it until somebody deletes it");
        assert_eq!(threads.claim(sys::gettid()).index(), Some(own));
        arm(data, own);
        assert_ne!(timer(data, own), before);
        assert_eq!(threads.slots[own].timer_generation.load(Ordering::Relaxed), 1);
        disarm(data);
    }
}
