//! Priming: before its first sample, a thread gets its slot and, on the timer engine, its timer.
//!
//! # Safety
//! Only the tests are unsafe: they construct the data that the kernel passes to a handler.

use traceprof_abi::layout::{
    ARM_MAX, AgentState, ControlBlock, Counter, EngineMode, prime_latency_ns,
};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;

use crate::frame::Frame;
use crate::{sys, thread, timer};

/// Primes the thread that got the signal, and serves pending timer requests. For a thread that is
/// primed already, only acknowledges the signal.
#[inline(never)]
pub fn on_prime(data: DataSegment, frame: &Frame<'_>) {
    let control = data.control();
    // Acquire: pairs with the restore's Release; nothing is primed after it.
    if control.state.load(Ordering::Acquire) == AgentState::Stopped as u32 {
        return control.count(Counter::Off);
    }
    let Some(thread) = thread::find_thread(data) else {
        return control.count(Counter::PrimeFailed);
    };
    // Relaxed: incremented only after this thread has exited.
    let generation = thread.slot.generation.load(Ordering::Relaxed);
    if data.threads().prime(thread.index, generation) {
        control.count(Counter::Primed);
    }
    // Relaxed: written before the signal was sent.
    let engine = control.engine.load(Ordering::Relaxed);
    if engine == EngineMode::Timer as u32 && timer::may_arm(control) {
        timer::arm(data, thread.index);
    }
    timer::drain(data, ARM_MAX);
    acknowledge(control, frame.info.value);
}

fn acknowledge(control: &ControlBlock, value: u64) {
    if let Some(latency_ns) = prime_latency_ns(value, sys::monotonic_ns()) {
        // Relaxed, both: measurements.
        control.prime_latency_sum_ns.fetch_add(latency_ns, Ordering::Relaxed);
        let most = latency_ns.min(u64::from(u32::MAX)) as u32;
        control.prime_latency_max_ns.fetch_max(most, Ordering::Relaxed);
    }
    // Release: pairs with the recorder's Acquire; the slot and its timer are visible.
    control.prime_acks.fetch_add(1, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use traceprof_abi::layout::{PRIMING, prime_value};
    use traceprof_abi::thread::SlotState;

    use super::*;
    use crate::sample::tests::segment;

    fn prime(data: DataSegment) {
        // SAFETY: zeroes are a valid value of structures of integers.
        let (mut info, context): (sys::SigInfo, _) = unsafe { std::mem::zeroed() };
        info.value = prime_value(0, sys::monotonic_ns().saturating_sub(3_000_000));
        on_prime(
            data,
            &Frame { info: &info, context: &context, return_slot: &mut 0, is_direct: false },
        );
    }

    #[test]
    fn a_signal_primes_once_and_is_acknowledged_each_time() {
        /// A signal that does nothing by default: the timer here is real.
        const SIGURG: u32 = 23;
        let data = segment();
        let control = data.control();
        let count = |counter: Counter| control.counters[counter as usize].load(Ordering::Relaxed);
        control.slots_limit.store(1, Ordering::Relaxed);
        control.pid.store(sys::getpid(), Ordering::Relaxed);
        prime(data);
        let slot = thread::known_thread(data).unwrap().slot;
        assert_eq!(slot.state.load(Ordering::Relaxed), SlotState::Primed as u32);
        assert_eq!(slot.timer.load(Ordering::Relaxed), 0, "the thread is sampled by events");
        control.signals[PRIMING].signal.store(SIGURG, Ordering::Relaxed);
        control.signals[PRIMING].installed.store(1, Ordering::Relaxed);
        control.period_ns.store(1_000_000_000, Ordering::Relaxed);
        control.lease_until_ns.store(u64::MAX, Ordering::Relaxed);
        control.engine.store(EngineMode::Timer as u32, Ordering::Relaxed);
        prime(data);
        assert_ne!(slot.timer.load(Ordering::Relaxed), 0, "the thread arms its own timer");
        assert_eq!((count(Counter::Primed), control.prime_acks.load(Ordering::Relaxed)), (1, 2));
        let most_ns = control.prime_latency_max_ns.load(Ordering::Relaxed);
        let sum_ns = control.prime_latency_sum_ns.load(Ordering::Relaxed);
        assert!(most_ns >= 3_000_000 && sum_ns >= 6_000_000, "{most_ns} {sum_ns}");
        control.state.store(AgentState::Stopped as u32, Ordering::Relaxed);
        prime(data);
        assert_eq!((count(Counter::Off), control.prime_acks.load(Ordering::Relaxed)), (1, 2));
        timer::disarm(data);
    }

    #[test]
    fn a_missing_slot_is_only_counted() {
        let data = segment();
        data.control().pid.store(sys::getpid(), Ordering::Relaxed);
        prime(data);
        let control = data.control();
        let count = |counter: Counter| control.counters[counter as usize].load(Ordering::Relaxed);
        assert_eq!((count(Counter::PrimeFailed), count(Counter::LostThreadSlot)), (1, 0));
        assert_eq!(control.prime_acks.load(Ordering::Relaxed), 0);
    }
}
