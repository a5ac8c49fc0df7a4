//! The signal handler's outer part: whose signal is it, and who gets it if it is not ours.
//!
//! # Safety
//! Called by the kernel through the image's trampoline with the signal frame's three arguments.

use traceprof_abi::layout::{
    ControlBlock, Counter, MAGIC, PRIMING, SAMPLING, SIG_DATA_MARK, SignalAction,
};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::unwind::Tables;

use crate::sys::{self, SigInfo, UserContext};
use crate::{prime, sample, timer};

/// What the kernel left on the stack for the handler.
#[derive(Debug)]
pub struct Frame<'a> {
    /// What the signal is.
    pub info: &'a SigInfo,
    /// What it interrupted.
    pub context: &'a UserContext,
    /// The return address of the handler: the restorer.
    pub return_slot: &'a mut u64,
}

/// Handles one signal. Returns the address of a previous handler that the trampoline jumps to in
/// our place, or 0 when the signal is done with.
pub fn on_signal(data: DataSegment, tables: Tables, frame: &mut Frame<'_>) -> u64 {
    let control = data.control();
    // Relaxed: written before the handler was installed.
    if control.magic.load(Ordering::Relaxed) != MAGIC {
        // Not counted: what cannot be recognised must not be written either.
        return 0;
    }
    let info = frame.info;
    let Some(kind) = Kind::of(control, info) else {
        control.count(Counter::Foreign);
        return chain(data, frame);
    };
    let cookie = (info.value >> 32) as u16;
    // Relaxed: written before the handler was installed.
    if u32::from(cookie) != control.cookie.load(Ordering::Relaxed) & 0xffff {
        if kind == Kind::Timer {
            // Of a recording that ended before ours began, and left it behind.
            sys::timer_delete(info.timer());
        }
        control.count(Counter::Stale);
        return 0;
    }
    match kind {
        Kind::Event => sample::on_event(data, tables, frame),
        Kind::Timer => timer::on_hit(data, tables, frame),
        Kind::Prime => prime::on_prime(data, frame),
    }
    0
}

/// What a signal of ours is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The hit of a perf event.
    Event,
    /// The hit of a timer.
    Timer,
    /// The recorder wants the thread primed.
    Prime,
}

impl Kind {
    /// `None` for what is not ours.
    fn of(control: &ControlBlock, info: &SigInfo) -> Option<Kind> {
        let (kind, place) = match info.code {
            sys::TRAP_PERF => (Kind::Event, SAMPLING),
            sys::SI_TIMER => (Kind::Timer, PRIMING),
            sys::SI_QUEUE => (Kind::Prime, PRIMING),
            _ => return None,
        };
        // Relaxed: written before the handler was installed for it.
        let signal = control.signals[place].signal.load(Ordering::Relaxed);
        let is_ours = (info.value >> 48) as u16 == SIG_DATA_MARK && signal == info.signo as u32;
        is_ours.then_some(kind)
    }
}

/// Passes a foreign signal on as if we were not there: the previous handler runs in our place, on
/// our frame, and returns through its own restorer, so that no address of ours stays behind.
fn chain(data: DataSegment, frame: &mut Frame<'_>) -> u64 {
    let signal = frame.info.signo;
    let is_of = |action: &&SignalAction| action.signal.load(Ordering::Relaxed) == signal as u32;
    // Relaxed: as below.
    let Some(action) = data.control().signals.iter().find(is_of) else { return 0 };
    // Relaxed: written at installation, by this process.
    let [handler, flags, restorer, mask] =
        action.old_action.each_ref().map(|word| word.load(Ordering::Relaxed));
    match handler {
        sys::SIG_IGN => 0,
        sys::SIG_DFL if sys::is_ignored_by_default(signal) => 0,
        sys::SIG_DFL => {
            let default = [sys::SIG_DFL, 0, 0, 0];
            let mut ours = [0; 4];
            // SAFETY: the default disposition has no handler.
            unsafe { sys::sigaction(signal, &default, &mut ours) };
            sys::requeue(signal, frame.info);
            0
        }
        _ => {
            if flags & sys::SA_RESETHAND != 0 {
                // Relaxed: the next foreign signal of any thread may see it late, as it could
                // without us.
                action.old_action[0].store(sys::SIG_DFL, Ordering::Relaxed);
            }
            if flags & sys::SA_RESTORER != 0 {
                *frame.return_slot = restorer;
            }
            let own = if flags & sys::SA_NODEFER == 0 { 1 << (signal - 1).clamp(0, 63) } else { 0 };
            sys::set_signal_mask(frame.context.signal_mask | mask | own);
            handler
        }
    }
}
