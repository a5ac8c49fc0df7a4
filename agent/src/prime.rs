//! Priming: a thread gets its slot, and on the timer engine its timer, before its first sample.

use traceprof_abi::layout::{
    ARM_MAX, AgentState, ControlBlock, Counter, EngineMode, prime_latency_ns,
};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;

use crate::signal::Frame;
use crate::{sample, sys, timer};

/// Primes the thread that got the signal, and serves others that wait. A thread that is primed
/// already is acknowledged, and nothing else.
pub fn on_prime(data: DataSegment, frame: &Frame<'_>) {
    let control = data.control();
    // Acquire: pairs with the Release in the cure.
    if control.state.load(Ordering::Acquire) == AgentState::Stopped as u32 {
        return control.count(Counter::Off);
    }
    let Some(thread) = sample::find_thread(data) else {
        return control.count(Counter::LostThreadSlot);
    };
    // Relaxed: raised only when this thread is gone.
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
