//! What the handler does when a thread's timer expires: take a sample, or end the timer.

use traceprof_abi::layout::{ARM_MAX, AgentState, ControlBlock, Counter, TIMER_BUSY, timer_value};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;
use traceprof_abi::unwind::Tables;

use crate::frame::Frame;
use crate::sample::{self, Origin};
use crate::thread::{self, Thread};
use crate::timer::{end, is_leased};
use crate::{rate, sys};

/// Takes the sample of a timer's hit, or ends the timer.
pub fn on_expiry(data: DataSegment, tables: Tables, frame: &Frame<'_>) {
    let control = data.control();
    let timer = frame.info.timer();
    let Some(thread) = thread::known_thread(data).filter(|it| is_for(control, it, frame)) else {
        // Of a former owner of the thread id, or of the slot. An id that is no timer's any more
        // does no harm.
        sys::timer_delete(timer);
        return control.count(Counter::Stale);
    };
    // Acquire: pairs with the recorder's Release when it turns sampling on.
    let state = control.state.load(Ordering::Acquire);
    if state == AgentState::Stopped as u32 {
        end(thread.slot, timer);
        return control.count(Counter::Off);
    }
    if !is_leased(control) {
        expire(data, &thread);
    }
    if state != AgentState::Sampling as u32 {
        return control.count(Counter::Off);
    }
    let overruns = frame.info.overruns();
    control.count(Counter::TimerHits);
    control.count_by(Counter::TimerOverruns, u64::from(overruns));
    let periods = overruns.saturating_add(1).saturating_mul(1 << rate::running(thread.slot));
    sample::take_or_lose(data, tables, frame, (&thread, Origin::Timer { periods }));
    rate::follow(control, thread.slot, timer, frame.info.value);
}

/// The hit is of the timer that was made for this life of the thread's slot.
fn is_for(control: &ControlBlock, thread: &Thread<'_>, frame: &Frame<'_>) -> bool {
    // Relaxed: the slot is this thread's own, and the cookie is older than the handler.
    let generation = thread.slot.generation.load(Ordering::Relaxed);
    let cookie = control.cookie.load(Ordering::Relaxed);
    frame.info.value == timer_value(cookie, thread.index as u32, generation)
}

/// Deletes timers whose recorder is gone: first those of other threads, which may sleep for ever
/// and keep theirs, some at each hit; the thread's own, which brings the next hit, last. A recorder
/// that comes back finds the bits.
fn expire(data: DataSegment, own: &Thread<'_>) {
    let control = data.control();
    let slots = data.threads().slots;
    let expire_one = |index: usize, slot: &ThreadSlot| {
        // Relaxed: `end` decides.
        let timer = slot.timer.load(Ordering::Relaxed);
        let is_ended = timer != 0 && timer != TIMER_BUSY && end(slot, timer.wrapping_sub(1) as i32);
        if is_ended {
            control.count(Counter::LeaseEnded);
            data.want_timer(index);
        }
        is_ended
    };
    // Relaxed: a slot that is seen late has a handler of its own.
    let used = control.slots_next.load(Ordering::Relaxed) as usize;
    let others = slots.iter().enumerate().take(used).filter(|(index, _)| *index != own.index);
    let ended = others.filter(|(index, slot)| expire_one(*index, slot)).take(ARM_MAX).count();
    if ended < ARM_MAX {
        expire_one(own.index, own.slot);
    }
}
