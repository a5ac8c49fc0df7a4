//! The outer part of the signal handler: it finds out whose signal it is, and passes it on if it is
//! not the agent's.
//!
//! # Safety
//! The kernel calls it through the image's trampoline, with the three arguments of the signal
//! frame.

use traceprof_abi::layout::{
    ControlBlock, Counter, MAGIC, PRIMING, SAMPLING, SIG_DATA_MARK, SignalAction,
};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::signal::{SI_QUEUE, SI_TIMER, TRAP_PERF};
use traceprof_abi::sync::Ordering;
use traceprof_abi::unwind::Tables;

use crate::frame::Frame;
use crate::sys::{self, SigInfo};
use crate::{cost, prime, sample, timer_expiry};

/// Handles one signal. Returns the address of the previous handler, to which the trampoline then
/// jumps, or 0 if the signal is handled.
pub fn on_signal(data: DataSegment, tables: Tables, frame: &mut Frame<'_>) -> u64 {
    let control = data.control();
    // Relaxed: written before the handler was installed.
    if control.magic.load(Ordering::Relaxed) != MAGIC {
        // Not counted: an unknown control block must not be written.
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
            // The timer was left behind by an earlier recording.
            sys::timer_delete(info.timer());
        }
        control.count(Counter::Stale);
        return 0;
    }
    if kind == Kind::Prime {
        prime::on_prime(data, frame);
        return 0;
    }
    let begin = cost::begin(control);
    match kind {
        Kind::Timer => timer_expiry::on_expiry(data, tables, frame),
        _ => sample::on_event(data, tables, frame),
    }
    cost::end(control, begin);
    0
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
    /// Returns the kind of a signal, or `None` if it is not the agent's.
    fn of(control: &ControlBlock, info: &SigInfo) -> Option<Kind> {
        let (kind, index) = match info.code {
            TRAP_PERF => (Kind::Event, SAMPLING),
            SI_TIMER => (Kind::Timer, PRIMING),
            SI_QUEUE => (Kind::Prime, PRIMING),
            _ => return None,
        };
        // Relaxed: written before the handler was installed for it.
        let signal = control.signals[index].signal.load(Ordering::Relaxed);
        let is_ours = (info.value >> 48) as u16 == SIG_DATA_MARK && signal == info.signo as u32;
        is_ours.then_some(kind)
    }
}

/// Passes a foreign signal on as if the agent did not exist. The previous handler runs in place of
/// the agent's, on its frame, and returns through its own restorer. So no address of the agent
/// stays on the stack.
fn chain(data: DataSegment, frame: &mut Frame<'_>) -> u64 {
    let signal = frame.info.signo;
    // Relaxed: the recorder writes it before it has the handler installed.
    let is_of = |action: &&SignalAction| action.signal.load(Ordering::Relaxed) == signal as u32;
    let Some(action) = data.control().signals.iter().find(is_of) else { return 0 };
    // Relaxed: written at installation, by this process.
    let [handler, flags, restorer, mask] =
        action.old_action.each_ref().map(|word| word.load(Ordering::Relaxed));
    match handler {
        sys::SIG_IGN => 0,
        sys::SIG_DFL if sys::is_ignored_by_default(signal) => 0,
        // The kernel had no memory for the signal's information, so it may be an expiry of the
        // agent's, which would end the program. A signal that root sends from outside the pid
        // namespace looks the same and is swallowed, too. Root can send it again after the detach.
        sys::SIG_DFL if frame.info.is_info_lost() => {
            data.control().count(Counter::SignalInfoLost);
            0
        }
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
                // Relaxed: another thread's next foreign signal may see it late, as it could
                // without the agent.
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

#[cfg(test)]
mod tests {
    use traceprof_abi::layout::timer_value;

    use super::*;
    use crate::sample::tests::segment;
    use crate::sys::UserContext;

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
        // SAFETY: zeroes are a valid value of structures of integers.
        let (mut info, context): (SigInfo, UserContext) = unsafe { std::mem::zeroed() };
        info.signo = SIGCONT;
        change(&mut info);
        let mut return_slot = 7;
        let mut frame = Frame { info: &info, context: &context, return_slot: &mut return_slot };
        // SAFETY: more than the header's length, of zeroes: no snapshot was ever published.
        let tables = unsafe { Tables::new(data.base(), 4096) };
        let next = on_signal(data, tables, &mut frame);
        // The signal mask is now the called handler's.
        sys::set_signal_mask(0);
        (next, return_slot)
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
        // A signal of the agent's kinds without the mark, and one with another signal number.
        assert_eq!(come(data, |info| info.code = SI_TIMER), (HANDLER, 7));
        let value = timer_value(0, 1, 0);
        let other = |info: &mut SigInfo| (info.signo, info.code, info.value) = (3, -1, value);
        assert_eq!(come(data, other), (0, 7), "a signal without a handler of the agent");
        saved(data, [HANDLER, sys::SA_RESETHAND, 0, 0]);
        assert_eq!([come(data, |_| {}), come(data, |_| {})], [(HANDLER, 7), (0, 7)], "once");
        assert_eq!(count(data, Counter::Foreign), 6);
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
