//! The handler of a timer's expiry: it takes a sample, or deletes the timer.

use traceprof_abi::layout::{ARM_MAX, AgentState, ControlBlock, Counter, TIMER_BUSY, timer_value};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;
use traceprof_abi::unwind::Tables;

use crate::frame::Frame;
use crate::sample::{self, Origin};
use crate::thread::{self, Thread};
use crate::timer::{end, is_leased};
use crate::{rate, sys, timer};

/// Takes the sample of a timer's expiry, or deletes the timer.
#[inline(never)]
pub fn on_expiry(data: DataSegment, tables: Tables, frame: &Frame<'_>) {
    let control = data.control();
    let id = frame.info.timer();
    let Some(thread) = thread::known_thread(data).filter(|it| is_for(control, it, frame)) else {
        // The timer belongs to an earlier thread with this id or slot. Deleting an id that is no
        // longer a timer is harmless.
        sys::timer_delete(id);
        return control.count(Counter::Stale);
    };
    // Acquire: pairs with the recorder's Release when it turns sampling on.
    let state = control.state.load(Ordering::Acquire);
    if state == AgentState::Stopped as u32 {
        end(thread.slot, id);
        return control.count(Counter::Off);
    }
    if !is_leased(control) {
        expire(data, &thread);
    }
    if state != AgentState::Sampling as u32 {
        return control.count(Counter::Off);
    }
    let overruns = frame.info.overruns();
    control.count(Counter::TimerExpiries);
    control.count_by(Counter::TimerOverruns, u64::from(overruns));
    let periods = overruns.saturating_add(1).saturating_mul(1 << rate::running(thread.slot));
    sample::take_or_lose(data, tables, frame, (&thread, Origin::Timer { periods }));
    timer::drain(data, timer::ARM_PER_SAMPLE);
    rate::follow(control, thread.slot, id, frame.info.value);
}

/// Deletes the timer of a former signal. Its thread gets another timer, with the present signal.
pub fn on_late_expiry(data: DataSegment, frame: &Frame<'_>) {
    let timer = frame.info.timer();
    match thread::known_thread(data).filter(|it| is_for(data.control(), it, frame)) {
        Some(thread) if end(thread.slot, timer) => data.want_timer(thread.index),
        // The slot has another timer by now, or none.
        _ => sys::timer_delete(timer),
    }
}

/// Whether the expired timer was created for this life of the thread's slot.
fn is_for(control: &ControlBlock, thread: &Thread<'_>, frame: &Frame<'_>) -> bool {
    // Relaxed: the slot belongs to this thread, and the cookie was written before the handler was
    // installed.
    let generation = thread.slot.generation.load(Ordering::Relaxed);
    let cookie = control.cookie.load(Ordering::Relaxed);
    frame.info.value == timer_value(cookie, thread.index as u32, generation)
}

/// Deletes the timers of a recorder that no longer exists. Other threads may sleep forever and keep
/// theirs, so those come first, some at each expiry. The thread's own timer, which brings the next
/// expiry, comes last. A recorder that comes back finds the request bits.
#[cold]
fn expire(data: DataSegment, own: &Thread<'_>) {
    let control = data.control();
    let slots = data.threads().slots;
    let expire_one = |index: usize, slot: &ThreadSlot| {
        // Relaxed: the swap in `end` decides.
        let timer = slot.timer.load(Ordering::Relaxed);
        let is_ended = timer != 0 && timer != TIMER_BUSY && end(slot, timer.wrapping_sub(1) as i32);
        if is_ended {
            control.count(Counter::LeaseEnded);
            data.want_timer(index);
        }
        is_ended
    };
    // Relaxed: if a slot is seen late, its own thread's handler deletes the timer.
    let used = control.slots_next.load(Ordering::Relaxed) as usize;
    let others = slots.iter().enumerate().take(used).filter(|(index, _)| *index != own.index);
    let ended = others.filter(|(index, slot)| expire_one(*index, slot)).take(ARM_MAX).count();
    if ended < ARM_MAX {
        expire_one(own.index, own.slot);
    }
}
