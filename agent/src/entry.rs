//! The agent's entry, which the injection calls as a step of its chain.
//!
//! # Safety
//! This module installs a signal handler whose code is in this image.

use traceprof_abi::layout::{
    AgentError, AgentState, ControlBlock, INSTALLED, MAGIC, Operation, REPLACED, SignalAction,
    entry_asked,
};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;

use crate::sys::{self, KernelSigaction};
use crate::timer;

/// Addresses in this image.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// The entry.
    pub entry: u64,
    /// The signal handler.
    pub handler: u64,
    /// The code that returns from the handler.
    pub restorer: u64,
}

/// Carries out the [`Operation`] that the argument names. Returns 0 or a negated errno.
///
/// # Safety
/// `data` is the target's data segment. The addresses are in this image and stay mapped until the
/// dispositions are restored.
pub unsafe fn run(argument: u64, data: DataSegment, own: Addresses) -> i64 {
    const EINVAL: i64 = -22;
    let (op, arm_most) = entry_asked(argument);
    let control = data.control();
    // Relaxed throughout: the recorder wrote all of it before it started the chain. It reads the
    // results after it has seen the entry's end in `entered` (Release below).
    let is_known = control.magic.load(Ordering::Relaxed) == MAGIC
        && control.version.load(Ordering::Relaxed) == traceprof_abi::ABI_VERSION;
    let result = if !is_known {
        control.error.store(AgentError::Version as u32, Ordering::Relaxed);
        EINVAL
    } else if op == Operation::Install as u64 {
        control.entry_avma.store(own.entry, Ordering::Relaxed);
        // SAFETY: see this function's contract.
        let result = unsafe { install_all(control, own) };
        if result == 0 {
            // The recorder may have requested timers before the handler was installed.
            timer::drain(data, arm_most);
        }
        result
    } else if op == Operation::Arm as u64 {
        timer::drain(data, arm_most);
        0
    } else if op == Operation::CheckHandlers as u64 {
        control.signals.iter().for_each(check_handler);
        0
    } else if op == Operation::Disarm as u64 {
        timer::disarm(data);
        0
    } else {
        EINVAL
    };
    // Release: pairs with the recorder's load of `entered`; all of the above is visible.
    control.entered.fetch_add(1, Ordering::Release);
    result
}

/// # Safety
/// As for [`run`].
unsafe fn install_all(control: &ControlBlock, own: Addresses) -> i64 {
    // The mask blocks all signals, so no handler of the application runs on top of this one. An
    // empty mask was tried: then the kernel does not wake an idle thread in vain that could take a
    // signal to the process, and the EINTR of traceprof-limits(7) disappear. But an application's
    // handler may leave the agent's by `longjmp`, or suspend it on a fiber that no thread runs at
    // the detach. It would then return into unmapped code.
    let ours: KernelSigaction = [own.handler, sys::SA_FLAGS, own.restorer, u64::MAX];
    for action in &control.signals {
        let is_due = action.signal.load(Ordering::Relaxed) != 0
            && action.installed.load(Ordering::Relaxed) == 0;
        if !is_due {
            continue;
        }
        // SAFETY: promised by the caller.
        let result = unsafe { install(action, &ours) };
        if result != 0 {
            control.error_detail.store(result.unsigned_abs() as u32, Ordering::Relaxed);
            control.error.store(AgentError::SigactionFailed as u32, Ordering::Relaxed);
            return result;
        }
    }
    let (prepared, installed) = (AgentState::Prepared as u32, AgentState::Installed as u32);
    // Release: pairs with the Acquire of the restore; the saved actions are visible. Relaxed on
    // failure: a signal was added to a running agent.
    let _ =
        control.state.compare_exchange(prepared, installed, Ordering::Release, Ordering::Relaxed);
    0
}

/// # Safety
/// As for [`run`].
unsafe fn install(action: &SignalAction, ours: &KernelSigaction) -> i64 {
    let signal = action.signal.load(Ordering::Relaxed) as i32;
    let mut old: KernelSigaction = [0; 4];
    let store = |to: &[traceprof_abi::sync::AtomicU64; 4], from: &KernelSigaction| {
        to.iter().zip(from).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
    };
    store(&action.our_action, ours);
    // A query stores the old action first. If a signal arrives between installing and storing (from
    // another profiler's event), the handler chains it correctly.
    let result = sys::query_sigaction(signal, &mut old);
    if result != 0 {
        return result;
    }
    store(&action.old_action, &old);
    // SAFETY: promised by the caller.
    let result = unsafe { sys::sigaction(signal, ours, &mut old) };
    if result == 0 {
        store(&action.old_action, &old);
        // Release: pairs with the Acquire in `timer::may_arm`; the signal has its handler.
        action.installed.store(INSTALLED, Ordering::Release);
    }
    result
}

/// Records whether another handler has replaced the agent's, or the agent's is back.
fn check_handler(action: &SignalAction) {
    if action.installed.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut current: KernelSigaction = [0; 4];
    let signal = action.signal.load(Ordering::Relaxed) as i32;
    if sys::query_sigaction(signal, &mut current) == 0 {
        let is_ours = action.our_action[0].load(Ordering::Relaxed) == current[0];
        action.installed.store(if is_ours { INSTALLED } else { REPLACED }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::segment;

    /// Signals that do nothing by default.
    const SIGURG: i32 = 23;
    const SIGWINCH: i32 = 28;

    fn action(signal: i32) -> KernelSigaction {
        let mut action = [0; 4];
        assert_eq!(sys::query_sigaction(signal, &mut action), 0);
        action
    }

    #[test]
    fn each_signal_that_is_named_gets_its_handler_once() {
        let data = segment();
        let control = data.control();
        // "Ignore" stands for a handler: it differs from the default, and is harmless.
        let own = Addresses { entry: 77, handler: sys::SIG_IGN, restorer: 88 };
        // SAFETY: the dispositions have no handler that could be called.
        let run = |operation: u64| unsafe { run(operation, data, own) };
        assert_eq!(run(Operation::Install as u64), -22, "no control block");
        assert_eq!(control.error.load(Ordering::Relaxed), AgentError::Version as u32);
        control.magic.store(MAGIC, Ordering::Relaxed);
        control.version.store(traceprof_abi::ABI_VERSION, Ordering::Relaxed);
        let before = [SIGURG, SIGWINCH].map(action);
        control.signals[0].signal.store(SIGURG as u32, Ordering::Relaxed);
        assert_eq!(run(Operation::Install as u64), 0);
        assert_eq!(action(SIGURG)[0], sys::SIG_IGN);
        // A signal that is named later gets a handler; the first signal stays as it is.
        control.signals[1].signal.store(SIGWINCH as u32, Ordering::Relaxed);
        assert_eq!(run(Operation::Install as u64), 0);
        assert_eq!(action(SIGWINCH)[0], sys::SIG_IGN);
        for (signal, before) in control.signals.iter().zip(&before) {
            let [old, ours] = [&signal.old_action, &signal.our_action]
                .map(|words| words.each_ref().map(|word| word.load(Ordering::Relaxed)));
            assert_eq!((&old, ours[0]), (before, sys::SIG_IGN));
            assert_eq!(signal.installed.load(Ordering::Relaxed), 1);
        }
        assert_eq!(control.state.load(Ordering::Relaxed), AgentState::Installed as u32);
        assert_eq!(run(99), -22, "no such operation");
        assert_eq!(control.entered.load(Ordering::Relaxed), 4, "each run increments it at its end");
        assert_eq!(control.entry_avma.load(Ordering::Relaxed), 77);
        for (signal, before) in [SIGURG, SIGWINCH].into_iter().zip(&before) {
            // SAFETY: the action that was there before.
            assert_eq!(unsafe { sys::sigaction(signal, before, &mut [0; 4]) }, 0);
        }
        // A signal that cannot have a handler: the control block gets the error.
        control.signals[1].installed.store(0, Ordering::Relaxed);
        control.signals[1].signal.store(9, Ordering::Relaxed);
        assert_eq!(run(Operation::Install as u64), -22);
        let error = (&control.error, &control.error_detail);
        let error = (error.0.load(Ordering::Relaxed), error.1.load(Ordering::Relaxed));
        assert_eq!(error, (AgentError::SigactionFailed as u32, 22));
    }
}
