//! The outer part of the signal handler: it finds out whose signal it is, and passes it on if it is
//! not the agent's.
//!
//! # Safety
//! The kernel calls it through the image's trampoline, with the three arguments of the signal
//! frame.

use traceprof_abi::layout::{
    ControlBlock, Counter, EngineMode, MAGIC, PRIMING, SAMPLING, SIG_DATA_MARK, SignalAction,
};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::signal::{POLL_IN, SI_QUEUE, SI_TIMER, TRAP_PERF};
use traceprof_abi::sync::Ordering;
use traceprof_abi::unwind::Tables;

use crate::frame::Frame;
use crate::sys::{self, SigInfo};
use crate::{cost, event_expiry, prime, timer_expiry};

/// What the trampoline does after the agent has handled a signal.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextCall {
    /// The address of the previous handler, or 0 to return.
    handler: u64,
    /// The signal mask with which that handler is called, or [`KEEPS_MASK`].
    mask: u64,
}

/// The mask of a call that changes none. No other mask is equal: the kernel clears the bits of
/// SIGKILL and SIGSTOP in masks.
pub const KEEPS_MASK: u64 = u64::MAX;

impl NextCall {
    /// The signal is handled.
    const NONE: Self = Self { handler: 0, mask: 0 };
}

/// Handles one signal.
pub fn on_signal(data: DataSegment, tables: Tables, frame: &mut Frame<'_>) -> NextCall {
    let control = data.control();
    // Relaxed: written before the handler was installed.
    if control.magic.load(Ordering::Relaxed) != MAGIC {
        // Not counted: an unknown control block must not be written.
        return NextCall::NONE;
    }
    let info = frame.info;
    if is_notification(control, info) {
        let begin = cost::begin(control);
        event_expiry::on_notification(data, tables, frame);
        cost::end(control, begin);
        return NextCall::NONE;
    }
    let Some(kind) = Kind::of(info) else {
        control.count(Counter::Foreign);
        return chain(control, frame);
    };
    let cookie = (info.value >> 32) as u16;
    // Relaxed: written before the handler was installed.
    if u32::from(cookie) != control.cookie.load(Ordering::Relaxed) & 0xffff {
        if kind == Kind::Timer {
            // The timer was left behind by an earlier recording.
            sys::timer_delete(info.timer());
        }
        control.count(Counter::Stale);
        return NextCall::NONE;
    }
    if kind == Kind::Prime {
        prime::on_prime(data, frame);
        return NextCall::NONE;
    }
    if !kind.has_signal(control, info.signo) {
        if kind == Kind::Timer {
            timer_expiry::on_late_expiry(data, frame);
        }
        control.count(Counter::Stale);
        return NextCall::NONE;
    }
    let begin = cost::begin(control);
    match kind {
        Kind::Timer => timer_expiry::on_expiry(data, tables, frame),
        _ => event_expiry::on_event(data, tables, frame),
    }
    cost::end(control, begin);
    NextCall::NONE
}

/// Handles a call whose arguments describe no signal. The application made it, so it gets what it
/// would get from the previous handler.
pub fn on_bare_call(data: DataSegment, signal: i32) -> NextCall {
    let control = data.control();
    // Relaxed: as in `on_signal`.
    if control.magic.load(Ordering::Relaxed) != MAGIC {
        return NextCall::NONE;
    }
    control.count(Counter::Foreign);
    let Some(action) = action_of(control, signal) else { return NextCall::NONE };
    // Relaxed: written at installation, by this process.
    match action.old_action[0].load(Ordering::Relaxed) {
        sys::SIG_DFL | sys::SIG_IGN => NextCall::NONE,
        handler => NextCall { handler, mask: KEEPS_MASK },
    }
}

/// Whether a perf event of the recorder notified the thread as the owner of its descriptor.
///
/// The kernel puts no mark of the recorder into such a signal. The recorder chooses one that has no
/// handler: a program that installs one later, and has a descriptor send it, loses those signals.
fn is_notification(control: &ControlBlock, info: &SigInfo) -> bool {
    // Relaxed, both: written before the handler was installed for this signal.
    info.code == POLL_IN
        && control.engine.load(Ordering::Relaxed) == EngineMode::Signal as u32
        && control.signals[PRIMING].signal.load(Ordering::Relaxed) == info.signo as u32
}

/// The kind of a signal that the agent uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The expiry of a perf event.
    Event,
    /// The expiry of a timer.
    Timer,
    /// The recorder's request to prime the thread.
    Prime,
}

impl Kind {
    /// Returns the kind of a signal, or `None` if it does not bear the agent's mark. The number
    /// does not matter: an application forwards late signals of a number that was the agent's.
    fn of(info: &SigInfo) -> Option<Kind> {
        let kind = match info.code {
            TRAP_PERF => Kind::Event,
            SI_TIMER => Kind::Timer,
            SI_QUEUE => Kind::Prime,
            _ => return None,
        };
        ((info.value >> 48) as u16 == SIG_DATA_MARK).then_some(kind)
    }

    /// Whether signals of this kind have this number now.
    fn has_signal(self, control: &ControlBlock, signal: i32) -> bool {
        let index = if self == Kind::Event { SAMPLING } else { PRIMING };
        // Relaxed: written before the handler was installed for it.
        control.signals[index].signal.load(Ordering::Relaxed) == signal as u32
    }
}

/// Returns the action of a signal, from before the agent's.
fn action_of(control: &ControlBlock, signal: i32) -> Option<&SignalAction> {
    // Relaxed: the recorder writes it before it has the handler installed.
    let is_of = |action: &&SignalAction| action.signal.load(Ordering::Relaxed) == signal as u32;
    control.signals.iter().find(is_of)
}

/// Passes a foreign signal on as if the agent did not exist. The previous handler runs in place of
/// the agent's, on its frame, and returns through its own restorer. So no address of the agent
/// stays on the stack.
#[inline(never)]
fn chain(control: &ControlBlock, frame: &mut Frame<'_>) -> NextCall {
    let signal = frame.info.signo;
    let Some(action) = action_of(control, signal) else { return NextCall::NONE };
    // Relaxed: written at installation, by this process.
    let [handler, flags, restorer, mask] =
        action.old_action.each_ref().map(|word| word.load(Ordering::Relaxed));
    match handler {
        sys::SIG_IGN => NextCall::NONE,
        sys::SIG_DFL if sys::is_ignored_by_default(signal) => NextCall::NONE,
        // The kernel had no memory for the signal's information, so it may be an expiry of the
        // agent's, which would end the program. A signal that root sends from outside the pid
        // namespace looks the same and is swallowed, too. Root can send it again after the detach.
        sys::SIG_DFL if frame.info.is_info_lost() => {
            control.count(Counter::SignalInfoLost);
            NextCall::NONE
        }
        sys::SIG_DFL => {
            act_by_default(action, frame);
            NextCall::NONE
        }
        // The application's own handler called the agent's as a function, and waits for the return
        // of the previous one, with the mask and the frame that it has.
        _ if !frame.is_kernels() => NextCall { handler, mask: KEEPS_MASK },
        _ => {
            if flags & sys::SA_RESETHAND != 0 {
                // Relaxed: another thread's next foreign signal may see it late, as it could
                // without the agent.
                action.old_action[0].store(sys::SIG_DFL, Ordering::Relaxed);
            }
            if flags & sys::SA_RESTORER != 0 {
                *frame.return_slot = restorer;
            }
            let own = if flags & sys::SA_NODEFER == 0 { 1 << (signal - 1).clamp(0, 63) } else { 0 };
            NextCall { handler, mask: frame.context.signal_mask | mask | own }
        }
    }
}

/// Sends a signal again with the default action, which ends the program, if the agent's action is
/// the installed one. If it is not, the application has a handler of its own, which decides about
/// the signal and has forwarded it.
fn act_by_default(action: &SignalAction, frame: &Frame<'_>) {
    const DEFAULT: sys::KernelSigaction = [sys::SIG_DFL, 0, 0, 0];
    let signal = frame.info.signo;
    // Relaxed: written at installation, by this process.
    let [handler, _, restorer, _] =
        action.our_action.each_ref().map(|word| word.load(Ordering::Relaxed));
    let is_ours = |action: &sys::KernelSigaction| action[0] == handler;
    let (mut current, mut replaced) = ([0; 4], [0; 4]);
    if sys::query_sigaction(signal, &mut current) != 0 {
        return;
    }
    if is_ours(&current) {
        // SAFETY: the default disposition has no handler.
        unsafe { sys::sigaction(signal, &DEFAULT, &mut replaced) };
        if is_ours(&replaced) {
            return sys::requeue(signal, frame.info);
        }
        // Another thread has replaced the agent's action since the query.
        current = replaced;
        // SAFETY: the application has installed this action.
        unsafe { sys::sigaction(signal, &current, &mut replaced) };
    }
    // The kernel called the agent before its action was replaced, so the signal is for the new
    // action. A handler that was left by a jump into the agent's has another restorer, or an action
    // that was copied from the agent's.
    if frame.is_kernels() && *frame.return_slot == restorer && current[2] != restorer {
        sys::requeue(signal, frame.info);
    }
}

#[cfg(test)]
mod tests {
    use traceprof_abi::layout::timer_value;

    use super::*;
    use crate::frame::KernelFrame;
    use crate::sample::tests::segment;

    /// A signal that does nothing by default and that no other test uses.
    const SIGCONT: i32 = 18;
    const HANDLER: u64 = 0x1234;

    fn ready() -> DataSegment {
        let data = segment();
        data.control().magic.store(MAGIC, Ordering::Relaxed);
        data.control().signals[PRIMING].signal.store(SIGCONT as u32, Ordering::Relaxed);
        data
    }

    fn saved(data: DataSegment, action: [u64; 4]) {
        let words = &data.control().signals[PRIMING].old_action;
        words.iter().zip(action).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }

    /// Delivers a signal. Returns the handler for the trampoline to call and the address to which
    /// that returns.
    fn come(data: DataSegment, change: impl FnOnce(&mut SigInfo)) -> (u64, u64) {
        let (next, return_slot) = arrive(data, true, change);
        (next.handler, return_slot)
    }

    /// Delivers a signal on the kernel's frame, or as a handler of the application forwards it.
    fn arrive(
        data: DataSegment,
        is_kernels: bool,
        change: impl FnOnce(&mut SigInfo),
    ) -> (NextCall, u64) {
        // SAFETY: zeroes are a valid value of structures of integers.
        let mut kernel: KernelFrame = unsafe { std::mem::zeroed() };
        kernel.info.signo = SIGCONT;
        kernel.context.signal_mask = 1 << 40;
        change(&mut kernel.info);
        kernel.return_slot = 7;
        let mut callers = 7;
        let KernelFrame { return_slot, context, info } = &mut kernel;
        let return_slot = if is_kernels { return_slot } else { &mut callers };
        let mut frame = Frame { info, context, return_slot, is_direct: false };
        assert_eq!(frame.is_kernels(), is_kernels);
        // SAFETY: more than the header's length, of zeroes: no snapshot was ever published.
        let tables = unsafe { Tables::new(data.base(), 4096) };
        let next = on_signal(data, tables, &mut frame);
        (next, *frame.return_slot)
    }

    fn count(data: DataSegment, counter: Counter) -> u64 {
        data.control().counters[counter as usize].load(Ordering::Relaxed)
    }

    #[test]
    fn a_foreign_signal_goes_to_the_handler_that_was_there() {
        let data = ready();
        saved(data, [HANDLER, sys::SA_RESTORER, 9, 0]);
        assert_eq!(come(data, |_| {}), (HANDLER, 9));
        saved(data, [HANDLER, 0, 9, 0]);
        assert_eq!(come(data, |_| {}), (HANDLER, 7), "it returns to the agent's restorer");
        // A signal of the agent's kinds without the mark, and one with another number.
        assert_eq!(come(data, |info| info.code = SI_TIMER), (HANDLER, 7));
        assert_eq!(come(data, |info| info.signo = 3), (0, 7), "no signal of the agent");
        saved(data, [HANDLER, sys::SA_RESETHAND, 0, 0]);
        assert_eq!([come(data, |_| {}), come(data, |_| {})], [(HANDLER, 7), (0, 7)], "once");
        assert_eq!(count(data, Counter::Foreign), 6);
    }

    #[test]
    fn a_handler_gets_its_mask_on_the_kernels_frame_only() {
        let data = ready();
        saved(data, [HANDLER, sys::SA_RESTORER | sys::SA_RESETHAND, 9, 1 << 50]);
        let forwarded = arrive(data, false, |_| {});
        assert_eq!(forwarded, (NextCall { handler: HANDLER, mask: KEEPS_MASK }, 7));
        let mask = 1 << 40 | 1 << 50 | 1 << (SIGCONT - 1);
        let own = arrive(data, true, |_| {});
        assert_eq!(own, (NextCall { handler: HANDLER, mask }, 9), "no call has reset it before");
        saved(data, [HANDLER, sys::SA_RESTORER | sys::SA_NODEFER, 9, 0]);
        assert_eq!(arrive(data, true, |_| {}).0.mask, 1 << 40);
        assert_eq!(on_bare_call(data, SIGCONT), forwarded.0);
        assert_eq!(on_bare_call(data, 3), NextCall::NONE, "no signal of the agent");
        saved(data, [sys::SIG_DFL, 0, 0, 0]);
        assert_eq!(on_bare_call(data, SIGCONT), NextCall::NONE);
        assert_eq!(count(data, Counter::Foreign), 6);
    }

    /// The default action of SIGUSR1 would end this test.
    #[test]
    fn the_default_action_is_not_for_a_signal_that_the_application_has_forwarded() {
        const SIGUSR1: i32 = 10;
        let data = ready();
        data.control().signals[PRIMING].signal.store(SIGUSR1 as u32, Ordering::Relaxed);
        data.control().signals[PRIMING].our_action[0].store(HANDLER, Ordering::Relaxed);
        data.control().signals[PRIMING].our_action[2].store(7, Ordering::Relaxed);
        let mut before = [0; 4];
        // SAFETY: "ignore" has no handler.
        let set = unsafe { sys::sigaction(SIGUSR1, &[sys::SIG_IGN, 0, 0, 0], &mut before) };
        assert_eq!(set, 0);
        for is_kernels in [false, true] {
            let (next, slot) = arrive(data, is_kernels, |info| info.signo = SIGUSR1);
            assert_eq!((next, slot), (NextCall::NONE, 7));
        }
        let mut after = [0; 4];
        // SAFETY: restores the earlier action.
        assert_eq!(unsafe { sys::sigaction(SIGUSR1, &before, &mut after) }, 0);
        assert_eq!(after[0], sys::SIG_IGN, "the disposition has changed");
    }

    /// A program may have a descriptor that sends the same signal.
    #[test]
    fn a_notification_is_the_agents_only_with_such_events() {
        let data = ready();
        saved(data, [HANDLER, 0, 0, 0]);
        let notify = |info: &mut SigInfo| info.code = POLL_IN;
        assert_eq!(come(data, notify), (HANDLER, 7), "sampled by timers");
        data.control().engine.store(EngineMode::Signal as u32, Ordering::Relaxed);
        assert_eq!(come(data, notify), (0, 7));
        assert_eq!(come(data, |info| info.signo = 5), (0, 7), "no signal of the agent");
        assert_eq!(come(data, |_| {}), (HANDLER, 7), "from a process");
        assert_eq!((count(data, Counter::Off), count(data, Counter::Foreign)), (1, 3));
    }

    /// The signal is counted before it would be sent again with the default action.
    #[test]
    fn a_signal_without_information_does_not_end_the_program() {
        const SIGTRAP: i32 = 5;
        let data = ready();
        data.control().signals[SAMPLING].signal.store(SIGTRAP as u32, Ordering::Relaxed);
        let lost = |info: &mut SigInfo| (info.signo, info.code, info.origin) = (SIGTRAP, 0, 0);
        assert_eq!(come(data, lost), (0, 7));
        assert_eq!((count(data, Counter::SignalInfoLost), count(data, Counter::Foreign)), (1, 1));
    }

    #[test]
    fn nothing_is_changed_for_a_signal_that_does_nothing_by_default() {
        let data = ready();
        let mut before = [0; 4];
        // SAFETY: "ignore" has no handler.
        let set = unsafe { sys::sigaction(SIGCONT, &[sys::SIG_IGN, 0, 0, 0], &mut before) };
        assert_eq!(set, 0);
        for old in [sys::SIG_DFL, sys::SIG_IGN] {
            saved(data, [old, 0, 0, 0]);
            assert_eq!(come(data, |_| {}), (0, 7));
        }
        let mut after = [0; 4];
        // SAFETY: restores the earlier action.
        assert_eq!(unsafe { sys::sigaction(SIGCONT, &before, &mut after) }, 0);
        assert_eq!(after[0], sys::SIG_IGN, "the disposition has changed");
    }

    #[test]
    fn a_late_signal_of_a_former_number_is_swallowed() {
        let data = ready();
        saved(data, [HANDLER, 0, 0, 0]);
        for code in [TRAP_PERF, SI_TIMER] {
            let late = |info: &mut SigInfo| {
                (info.signo, info.code, info.value) = (3, code, timer_value(0, 1, 0));
                // The id of no timer.
                info.origin = u64::from(u32::MAX);
            };
            assert_eq!(come(data, late), (0, 7));
        }
        assert_eq!((count(data, Counter::Stale), count(data, Counter::Foreign)), (2, 0));
    }

    #[test]
    fn a_timer_of_an_earlier_recording_is_deleted() {
        const EINVAL: i64 = -22;
        let data = ready();
        let (tid, signal) = (sys::gettid(), SIGCONT as u32);
        let timer = sys::ThreadTimer { tid, signal, value: 1, period_ns: 1_000_000_000_000 };
        let id = timer.arm(1_000_000_000_000).unwrap();
        let stale = |info: &mut SigInfo| {
            (info.code, info.origin, info.value) = (SI_TIMER, id as u64, timer_value(5, 0, 0));
        };
        assert_eq!(come(data, stale), (0, 7));
        assert_eq!((count(data, Counter::Stale), count(data, Counter::Foreign)), (1, 0));
        // SAFETY: touches no memory.
        let again = unsafe { sys::syscall4(sys::nr::TIMER_DELETE, [id as u64, 0, 0, 0]) };
        assert_eq!(again, EINVAL, "the timer still existed");
    }
}
