//! The rate of a thread's timer. The thread adopts the recorder's wanted rate at the timer's next
//! expiry.
//!
//! # Invariants
//! - An expiry stands for the number of periods of the rate at which its timer ran.

use traceprof_abi::event::SHIFT_MAX;
use traceprof_abi::layout::ControlBlock;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;

use crate::sys;

/// Returns the exponent of the divisor of the rate that the recorder wants.
pub fn wanted(control: &ControlBlock) -> u32 {
    // Relaxed: a rate that is seen late is adopted late.
    control.rate_shift.load(Ordering::Relaxed).min(SHIFT_MAX)
}

/// Returns the exponent of the divisor of the rate at which a slot's timer runs.
pub fn running(slot: &ThreadSlot) -> u32 {
    // Relaxed: written before the timer existed, or by this thread.
    slot.timer_shift.load(Ordering::Relaxed).min(SHIFT_MAX)
}

/// Sets the calling thread's timer to the wanted rate. Like a new timer, it first expires at
/// a random phase of its new period, so that the weight of that expiry is right on average.
pub fn follow(control: &ControlBlock, slot: &ThreadSlot, timer: i32, value: u64) {
    let shift = wanted(control);
    if shift == running(slot) {
        return;
    }
    // Relaxed: written before the handler was installed.
    let period_ns = control.period_ns.load(Ordering::Relaxed) << shift;
    // Each change uses another phase.
    // Relaxed: a count of this thread's own.
    let samples = slot.samples.load(Ordering::Relaxed);
    let first_ns = phase(value.wrapping_add(samples << 32), period_ns);
    if sys::timer_set(timer, first_ns, period_ns) == 0 {
        // Relaxed: only this thread uses it.
        slot.timer_shift.store(shift, Ordering::Relaxed);
    }
}

/// Returns the time to a timer's first expiry: anywhere in its period, so that threads which live
/// for part of a period are sampled in proportion to it. The timer's value differs for each life of
/// a slot and for each recording, so no clock is needed. A clock call would stop a thread twice
/// more while a tracer steps it.
pub fn phase(value: u64, period_ns: u64) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut mixed = value.wrapping_mul(ODD);
    mixed = (mixed ^ mixed >> 29).wrapping_mul(ODD);
    mixed ^= mixed >> 32;
    1 + ((mixed & 0xFFFF_FFFF).wrapping_mul(period_ns) >> 32)
}

#[cfg(test)]
mod tests {
    use traceprof_abi::layout::timer_value;

    use super::*;

    #[test]
    fn first_expiry_is_within_a_period() {
        let periods = [1, 1000, 1_001_001, 1_000_000_000];
        let phase = |slot: u32, period_ns: u64| phase(timer_value(0x1234, slot, 0), period_ns);
        for (slot, period_ns) in (1..200).zip(periods.into_iter().cycle()) {
            let first = phase(slot, period_ns);
            assert!((1..=period_ns).contains(&first), "{first} of {period_ns}");
        }
        // The phases of a thousand threads are spread evenly.
        let mut tenths = [0; 10];
        (0..1000).for_each(|slot| tenths[(phase(slot, 1_000_000) - 1) as usize / 100_000] += 1);
        assert!(tenths.iter().all(|count| (60..140).contains(count)), "{tenths:?}");
    }
}
